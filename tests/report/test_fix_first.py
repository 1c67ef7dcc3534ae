"""The first screen of a report: what should I fix first?"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import pencil
from review_runs import suspecting
from test_report import _each_figure_once, made_up, opened, some_probs  # noqa: F401 - a fixture

from pencil.cli.show import show_results
from pencil.errors import TrainingError
from pencil.job import run_recipe
from pencil.labels.losses import cross_entropy
from pencil.methods import Method, Phase, Terms, as_schedule
from pencil.recipe import parse
from pencil.report import write_report
from pencil.report.gallery import CASES, vary
from pencil.report.words import LEVELS
from pencil.runs.advice import describe_doubt, explain_difference, next_commands, next_step
from pencil.runs.summary import AuditSummary, Interval

RATE = {"estimate": 0.35, "low": 0.25, "high": 0.45}


def noisy(rows=400, size=6, seed=0, **summary):
    """A run in which a third of the labels changed, most of them between the first two classes."""
    rng = np.random.default_rng(seed)
    given = rng.integers(0, size, rows)
    target = np.where(rng.random(rows) < 0.1, rng.integers(0, size, rows), given)
    target = np.where((given == 0) & (rng.random(rows) < 0.9), 1, target)
    probs = np.full((rows, size), 0.02) + np.eye(size)[target] * (1 - 0.02 * size)
    probs[given == 0] = np.eye(size)[target[given == 0]]  # the most confident are all of one kind
    return made_up(given, probs, classes=[f"c{k}" for k in range(size)], **summary)


def page(run, tmp_path):
    return opened(write_report(run, tmp_path / "r.html")), (tmp_path / "r.html").read_text()


def test_the_order_is_next_step_verdict_numbers_corrections_suspects_classes_curves_recipe(tmp_path):
    verdict = {"level": "doubtful", "reasons": ["only 12 rows were held out"]}
    run = noisy(verdict=verdict, findings={"noise_rate": RATE})
    path = tmp_path / "my run"
    seen, raw = page(replace(run, path=path), tmp_path)
    text = seen.text
    quoted = f"'{path}'"
    order = [
        "What to do next", "changed (the corrections) and", "are worth a look (the suspects).",
        "Before you use the corrections, look at the suspects.",
        "10 minutes of looking decide whether 100 or 180 of the labels are wrong",
        f"pencil audit {quoted}", "look at the suspects", f"pencil review {quoted}",
        "The corrections are doubtful.", "Only 12 rows were held out.", "estimated wrong", "about 140",
        "about 35.0 % (95 % interval 25.0 to 45.0 %)",
        "corrections", "suspects",
        "The most confident corrections", "Suspects that did not change", "Changes between classes", "Class by class",
        "Training", "Repeat this run", "Recipe", "[training]",
    ]  # fmt: skip
    place = 0
    for words in order:
        assert words in text[place:], f"{words} is not behind what comes before it"
        place = text.index(words, place)
    assert '<p class="verdict doubtful">' in raw
    recipe = raw[raw.index("<summary>Recipe") - 60 : raw.index("<summary>Recipe")]
    assert "<details>" in recipe and "open" not in recipe


def test_the_difference_between_changed_and_wrong_is_explained(tmp_path):
    run = noisy(findings={"noise_rate": RATE})
    changed = run.summary.labels.changed / 400
    assert changed < 0.34
    seen, _ = page(run, tmp_path)
    assert (
        f"{100 * changed:.1f} % of the labels changed, and an estimated 35.0 % are wrong: a label changes only"
        in seen.text
    )
    words = {fraction: explain_difference(run.summary, fraction) for fraction in (0.2, 0.351, 0.4, 0.5)}
    assert "wrong labels may remain" in words[0.2] and words[0.351] == ""
    assert "within the interval of the estimate." in words[0.4]
    assert "some changes are probably wrong" in words[0.5]
    assert explain_difference(noisy().summary, 0.5) == ""
    refused = noisy(
        findings={"noise_rate": RATE}, verdict={"level": "do not use the corrections", "reasons": []}
    ).summary
    assert "because of the verdict, all labels were left as given" in explain_difference(refused, 0.0)
    assert "unknown" in page(noisy(), tmp_path)[0].text


def test_commands_follow_the_verdict(tmp_path):
    reliable = {"level": "reliable", "reasons": []}
    sure, unsure = noisy(verdict=reliable).summary, noisy(verdict={"level": "doubtful", "reasons": []}).summary
    path = tmp_path / "r"
    commands = [command for _, command in next_commands(sure, path, "python -m pencil")]
    assert commands == [f"python -m pencil labels {path} --only-changed", f"python -m pencil review {path}"]
    assert [command for _, command in next_commands(unsure, path)] == [f"pencil review {path}", f"pencil audit {path}"]
    several = made_up(np.eye(3)[np.arange(12) % 3], 1 - np.eye(3)[np.arange(12) % 3], classes=list("abc")).summary
    assert next_commands(several, path)[0][1] == f"pencil labels {path} --only-changed --entries"


def test_the_next_step_follows_the_verdict_and_what_there_is_to_look_at():
    levels = {level: noisy(verdict={"level": level, "reasons": []}).summary for level in LEVELS}
    changed = levels["reliable"].labels.total_changed
    lists = f"Of 400 labels, {changed} changed (the corrections) and {changed} are worth a look (the suspects)."
    assert next_step(levels["reliable"]).startswith(f"{lists} The corrections can be used.")
    assert next_step(levels["doubtful"]).startswith(f"{lists} Before you use the corrections, look at the suspects.")
    refused = f"{lists} Do not use the corrections without review: look at the suspects, train longer"
    assert next_step(levels["do not use the corrections"]).startswith(refused)
    several = made_up(np.eye(3)[np.arange(12) % 3], 1 - np.eye(3)[np.arange(12) % 3], classes=list("abc")).summary
    assert next_step(several).startswith("Of 36 known labels, 36 changed (the corrections) and 36 are worth a look")
    counted = several.model_copy(
        update={"labels": several.labels.model_copy(update={"suspects": 36, "rows_to_look_at": 12})}
    )
    assert "and 36 in 12 rows are worth a look (the suspects)" in next_step(counted)
    clean = made_up(np.arange(6) % 2, np.eye(2)[np.arange(6) % 2], classes=["a", "b"]).summary
    assert next_step(clean) == "There is nothing to fix: no label changed, and none is a suspect."
    suspected = clean.model_copy(update={"labels": clean.labels.model_copy(update={"suspects": 1})})
    assert next_step(suspected).endswith("none changed and 1 is worth a look (the suspects). Look at the suspects.")
    refused = clean.model_copy(update={"verdict": levels["do not use the corrections"].verdict})
    assert next_step(refused).startswith("This network cannot judge the labels")


def test_class_names_of_the_matrix_are_not_cut(tmp_path):
    long = "pullover with a long name"
    run = made_up(np.arange(30) % 2, some_probs(30, 2), classes=["coat", long])
    _, raw = page(run, tmp_path)
    table = raw[raw.index('<table class="matrix">') : raw.index("</table>", raw.index('<table class="matrix">'))]
    assert table.count(long) == 2


def test_corrections_are_varied_over_pairs_of_classes(tmp_path):
    """By confidence alone all of them would be from c0 to c1."""
    run = noisy()
    _, raw = page(run, tmp_path)
    cards = raw[raw.index('id="sure"') : raw.index('id="others"')]
    pairs = re.findall(r"given <bdi>(c\d)</bdi>.*?now <bdi>(c\d)</bdi>", cards, flags=re.DOTALL)
    assert len(pairs) == CASES
    kinds = set(zip(*np.array([(a, b) for a, b in pairs]).T, strict=True))
    changed = run.labels.take(np.flatnonzero(run.labels.changed))
    every = set(zip(changed["given"].to_pylist(), changed["corrected"].to_pylist(), strict=True))
    assert len(kinds) == min(CASES, len(every)) and ("c0", "c1") in kinds
    assert {given for given, _ in pairs} == {f"c{k}" for k in range(6)} == {now for _, now in pairs}


def test_what_is_shown_is_sure_first_then_varied_then_frequent():
    given = np.array([0] * 30 + [1] * 5 + [2] * 5)
    corrected = np.array([1] * 30 + [2] * 5 + [0] * 5)
    confidence = np.concatenate([np.linspace(0.99, 0.95, 30), np.linspace(0.98, 0.94, 5), np.full(5, 0.6)])
    chosen = vary(given, corrected, confidence, most=12)
    assert chosen[0] == 0 and chosen[1] == 30  # the most frequent pair, then the other sure one
    assert sorted(given[chosen].tolist()) == [0] * 7 + [1] * 5  # the third pair is not sure
    assert set(vary(given, corrected, confidence, most=100).tolist()) == set(range(40))
    assert len(vary(given[:0], corrected[:0], confidence[:0])) == 0


def test_multi_label_corrections_are_varied_over_classes(tmp_path):
    rng = np.random.default_rng(0)
    given = (rng.random((200, 5)) < 0.4).astype(np.float32)
    probs = given * 0.98 + 0.01
    probs[:100, 0] = 1 - given[:100, 0]  # surest by far
    probs[:4, 1:] = (1 - given[:4, 1:]) * 0.9 + 0.05
    _, raw = page(made_up(given, probs, classes=list("abcde")), tmp_path)
    cards = raw[raw.index('id="sure"') : raw.index('id="others"')]
    shown = re.findall(r'<bdi class="to">(\w)</bdi>', cards)
    assert {name: shown.count(name) for name in "abcde"} == dict.fromkeys("abcde", 4)


def test_a_loss_below_zero_is_explained(tmp_path):
    run = noisy()
    parts = {"loss": -0.5, "loss_classification": 1.0, "loss_early_learning": -0.5}
    metrics = [record | parts for record in run.metrics]
    seen, _ = page(replace(run, metrics=metrics), tmp_path)
    assert "plus the ELR regulariser, which is the logarithm of a number below 1" in seen.text
    assert "part: ELR regulariser (unweighted)" in seen.text
    assert "ELR" not in page(run, tmp_path)[0].text


def test_an_epoch_without_a_loss_does_not_stop_the_page(tmp_path):
    run = noisy()
    metrics = [{"epoch": 1, "phase": "backbone", "loss_early_learning": -0.5}, *run.metrics]
    assert "What to do next" in page(replace(run, metrics=metrics), tmp_path)[0].text


def test_counts_of_the_page_the_summary_and_the_list_agree_and_name_held_out_rows(tmp_path):
    rng = np.random.default_rng(0)
    clean = np.arange(300) % 3
    x = (np.eye(3)[clean] * 4 + rng.normal(size=(300, 3))).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.where(rng.random(300) < 0.3, (clean + 1) % 3, clean))
    done = pencil("train", "d.npz", "--out", "run", "--epochs", 12, cwd=tmp_path).stdout
    listed = pencil("labels", "run", "--only-changed", "--anyway", cwd=tmp_path).stdout.splitlines()[1:]
    held_out = sum(",validation," in line for line in listed)
    assert 0 < held_out < len(listed)
    suspects = pencil("labels", "run", "--suspects", "--anyway", cwd=tmp_path).stdout.splitlines()[1:]
    words = f"{len(listed)} corrections (labels that changed), {len(suspects)} suspects (worth a look)"
    assert words in done and words in pencil("show", "run", cwd=tmp_path).stdout
    text = opened(tmp_path / "run/report.html").text
    assert f"Of 300 labels, {len(listed)} were changed" in text and f"corrections{len(listed)}" in text.replace(" ", "")
    assert f"suspects{len(suspects)}worth" in text.replace(" ", "") and set(listed) <= set(suspects)
    assert f"{held_out} in held-out rows" in text
    rows = pencil("runs", ".", cwd=tmp_path).stdout.splitlines()
    assert rows[0].split() == ["run", "verdict", "method", "score", "changed", "age"]
    assert rows[1].split()[0] == "run" and f" {len(listed)} " in rows[1]


class Explodes(Method):
    """Its loss is not finite in the third epoch."""

    def __init__(self):
        self.calls = 0

    def start(self, task):
        return (Phase("train", 5, self.loss, as_schedule(0.1)),)

    def loss(self, outputs, batch):
        self.calls += 1
        return Terms(cross_entropy(outputs.logits, batch.given_labels) * (1.0 if self.calls < 3 else torch.nan))


def test_a_failed_run_says_why_at_the_top(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(60, 4)).astype(np.float32), y=np.arange(60) % 3)
    recipe = parse(
        {
            "data": {"source": str(tmp_path / "d.npz"), "validation": 0.0},
            "model": {"name": "mlp"},
            "training": {"epochs": 5},
        }
    )
    with pytest.raises(TrainingError, match="the loss became nan"):
        run_recipe(recipe, tmp_path / "run", method=Explodes(), progress=False)
    seen = opened(tmp_path / "run/report.html")
    top = seen.text[: seen.text.index("pencil resume")]
    assert "This run failed" in top and "the loss became nan" in top and "It ended after 2 epochs." in top
    assert "Training up to the failure" in seen.text and "There are no corrected labels" in top
    shown = pencil("show", "run", cwd=tmp_path).stdout
    assert "failed after 2 epochs" in shown and "the loss became nan" in shown and "pencil resume run" in shown
    assert " failed " in pencil("runs", ".", cwd=tmp_path).stdout
    pencil("report", "run", "--out", "again.html", cwd=tmp_path)
    assert "the loss became nan" in opened(tmp_path / "again.html").text
    (tmp_path / "run/failure.json").write_text("[]")
    assert "failure.json" in pencil("report", "run", cwd=tmp_path, code=2).stderr
    assert " damaged " in pencil("runs", ".", cwd=tmp_path).stdout


def test_suspects_that_did_not_change_are_shown_with_the_highest_issue_score_first(tmp_path):
    run = noisy()
    kept = np.flatnonzero(~run.labels.changed)[:3]
    _, raw = page(replace(run, labels=suspecting(run.labels, kept)), tmp_path)
    cards = raw[raw.index('id="others"') : raw.index('id="transitions"')]
    order = kept[np.argsort(-run.labels.issue_score[kept], kind="stable")]
    assert re.findall(r"<bdi>(\d+)</bdi></span>", cards) == [str(row) for row in order]
    assert cards.count("issue score") == 1 + len(kept) and "and 3 other labels with high issue scores" in raw
    assert "There are none." in page(run, tmp_path)[1].split('id="others"')[1]


def test_a_wide_interval_leads_to_the_audit():
    """Wide: its upper end is more than twice the corrections, and more than a point of all labels above them."""
    run = noisy(rows=10_000, verdict={"level": "reliable", "reasons": []})
    counts = run.summary.labels.model_copy(update={"changed": 200, "suspects": 540})

    def of(low, high, **update):
        findings = {"noise_rate": {"estimate": high / 2, "low": low, "high": high}}
        return run.summary.model_copy(update={"labels": counts, "findings": findings, **update})

    wide = of(0.0212, 0.1384)
    assert describe_doubt(wide) == "10 minutes of looking decide whether 210 or 1,400 of the labels are wrong"
    assert next_commands(wide, Path("r")) == [
        (describe_doubt(wide), "pencil audit r"),
        ("list the corrections", "pencil labels r --only-changed"),
        ("look at the suspects", "pencil review r"),
    ]
    assert describe_doubt(of(0.0, 0.1384)).endswith("whether none or 1,400 of the labels are wrong")
    few = counts.model_copy(update={"changed": 10})
    assert describe_doubt(of(0.0, 0.011, labels=few)) == describe_doubt(of(0.01, 0.04)) == ""
    assert describe_doubt(of(0.0, 0.0111, labels=few)) and describe_doubt(of(0.01, 0.041))
    measured = Interval(estimate=0.05, low=0.01, high=0.2)
    audit = AuditSummary(
        population=400, rows=100, cannot_tell=0, no_class=0, given_wrong=measured, corrected_right=measured
    )
    assert describe_doubt(of(0.0212, 0.1384, audit=audit)) == ""
    assert describe_doubt(run.summary) == ""  # no estimate


def test_the_terminal_says_what_the_audit_decides(capsys):
    run = noisy(verdict={"level": "doubtful", "reasons": []}, findings={"noise_rate": RATE | {"high": 0.9}})
    show_results([(Path("r"), run.summary)])
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("next"))
    words = " ".join(line[12:] for line in lines[at:-2])
    assert words == "10 minutes of looking decide whether 100 or 360 of the labels are wrong:"
    assert [line.split()[-2:] for line in lines[-2:]] == [["audit", "r"], ["review", "r"]]


def test_what_to_look_at_are_suspects():
    one = made_up(np.arange(60) % 6, some_probs(60, 6), classes=[f"c{k}" for k in range(6)]).summary.labels
    assert one.suspects is None and one.to_look_at == one.total_changed > 0  # as in a run of an earlier version
    assert one.model_copy(update={"suspects": 59}).to_look_at == 59
    given = np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32)
    probs = np.array([[0.9, 0.45], [0.55, 0.9], [0.9, 0.1]], dtype=np.float32)
    several = made_up(given, probs, classes=["a", "b"]).summary.labels
    assert several.total_changed == several.to_look_at == 1
    assert several.model_copy(update={"suspects": 3}).to_look_at == 3
