import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import paint
from pydantic import ValidationError

from pencil.bench import runner, tables
from pencil.bench.latex import as_latex, escape
from pencil.bench.plots import mean_curve, plot_cells
from pencil.bench.spec import Spec, names, read_spec
from pencil.cli import bench as command
from pencil.errors import RecipeError
from pencil.files import write_json

SMALL = {
    "name": "small",
    "seeds": [1, 2],
    "recipe": {
        "data": {"source": "digits", "rows": 120},
        "training": {"epochs": 3},
        "model": {"options": {"width": 4}},
    },
    "datasets": [{"name": "digits"}],
    "noises": [
        {"name": "clean", "set": {"data": {"noise": {"kind": "symmetric", "rate": 0.0}}}},
        {"name": "half", "set": {"data": {"noise": {"kind": "symmetric", "rate": 0.5}}}},
    ],
    "methods": [
        {"name": "cross_entropy", "set": {"method": {"name": "cross_entropy"}}},
        {"name": "pencil", "paper": {"half": {"last": 91.5}}},
        {"name": "told", "set": {"method": {"name": "forward"}}},
    ],
}


@pytest.fixture
def spec():
    return Spec.model_validate(SMALL)


def result(last, best=None, seconds=2.0, labels=None):
    test = {"best": last if best is None else best, "last": last}
    found = {} if labels is None else {"correct_after": labels}
    return {"status": "done", "summary": {"test_accuracy": test, "seconds": seconds, "labels": found}, "curves": {}}


def test_part_of_a_grid_has_the_same_cells_as_the_whole():
    whole = read_spec("pocket-wide")
    part = whole.part(["digits", "wine"], ["clean", "class map 40"], ["elr", "auto"], [2])
    cells = [(cell.dataset, cell.noise, cell.method, cell.seed) for cell in part.cells()]
    assert cells == [
        *[("digits", noise, method, 2) for noise in ("clean", "class map 40") for method in ("auto", "elr")],
        *[("wine", "clean", method, 2) for method in ("auto", "elr")],
    ]
    same = [cell for cell in whole.cells() if (cell.dataset, cell.noise, cell.method, cell.seed) in cells]
    assert {cell.identity() for cell in part.cells()} == {cell.identity() for cell in same}
    assert part.reference == "auto" and whole.part() == whole
    human = whole.part(["CIFAR-10"])
    assert [(noise.name, noise.datasets) for noise in human.noises] == [("human, one annotator", ("CIFAR-10",))]
    Spec.model_validate(human.model_dump())


def test_part_of_a_grid_that_does_not_exist_is_an_error():
    whole = read_spec("pocket-wide")
    with pytest.raises(RecipeError, match="no method 'elr2'; expected one of 'cross_entropy', 'auto'"):
        whole.part(methods=["elr2"])
    with pytest.raises(RecipeError, match="none of the noises"):
        whole.part(["wine"], ["class map 40"])


def test_cells_are_the_whole_grid_seed_by_seed(spec):
    cells = list(spec.cells())
    assert len(cells) == 12 and [cell.seed for cell in cells] == [1] * 6 + [2] * 6
    assert len({cell.identity() for cell in cells}) == 12
    pencil = next(cell for cell in cells if cell.method == "pencil" and cell.noise == "half")
    assert pencil.recipe().data.noise.rate == 0.5 and pencil.recipe().method["name"] == "auto"
    changed = spec.model_copy(update={"recipe": {**spec.recipe, "training": {"epochs": 4}}})
    assert not {cell.identity() for cell in changed.cells()} & {cell.identity() for cell in cells}


def test_a_noise_may_be_for_some_datasets_only(tmp_path):
    datasets = [{"name": "digits"}, {"name": "wine", "set": {"data": {"source": "wine"}}}]
    noises = [*SMALL["noises"], {**SMALL["noises"][1], "name": "of digits", "datasets": ["digits"]}]
    spec = Spec.model_validate({**SMALL, "seeds": [1], "datasets": datasets, "noises": noises})
    columns = {
        dataset: {cell.noise for cell in spec.cells() if cell.dataset == dataset} for dataset in ("digits", "wine")
    }
    assert columns == {"digits": {"clean", "half", "of digits"}, "wine": {"clean", "half"}}
    results = {cell.identity(): result(0.5) | {"curves": {"test_accuracy": [0.4, 0.5]}} for cell in spec.cells()}
    shown = {grid["dataset"]: grid["noises"] for grid in tables.grids(spec, tables.collect_entries(spec, results))}
    assert shown == {"digits": ["clean", "half", "of digits"], "wine": ["clean", "half"]}
    assert len(plot_cells(spec, results, tmp_path)) == 5
    with pytest.raises(ValidationError, match=r"'of digits' is for datasets \['digit'\]"):
        Spec.model_validate({**SMALL, "noises": [{"name": "of digits", "datasets": ["digit"]}]})


def test_tables_have_means_deviations_stars_and_the_papers_figures(spec):
    results = {}
    for cell in spec.cells():
        share = {"cross_entropy": 0.6, "pencil": 0.8, "told": 0.9}[cell.method] + 0.02 * (cell.seed - 1)
        seconds = cell.seed * (3.0 if cell.method == "pencil" else 2.0)
        results[cell.identity()] = result(share, best=share + 0.05, seconds=seconds, labels=share)
    broken = next(cell for cell in spec.cells() if cell.method == "cross_entropy" and cell.noise == "clean")
    results[broken.identity()] = {"status": "failed", "error": "ValueError: no <b>luck</b>"}
    entries = {(entry.noise, entry.method): entry for entry in tables.collect_entries(spec, results)}
    half = entries["half", "pencil"]
    assert half.last.mean == pytest.approx(81.0) and half.best.mean == pytest.approx(86.0)
    assert half.relative_time == pytest.approx(1.5) and str(half.last) == "81.0 ± 1.4"
    assert entries["clean", "pencil"].relative_time == pytest.approx(1.5)  # seeds that both have
    assert half.as_json()["last"]["by_seed"] == {1: pytest.approx(80), 2: pytest.approx(82)}
    broken_entry = entries["clean", "cross_entropy"]
    assert broken_entry.done == 1 and list(broken_entry.failed) == [1]
    assert entries["half", "told"].starred and not half.starred
    text = tables.as_markdown(spec, list(entries.values()))
    assert "| told * | 91.0 ± 1.4 | 91.0 ± 1.4 |" in text  # starred: never in bold
    assert "| pencil | **81.0 ± 1.4** | **81.0 ± 1.4 (paper 91.5)** |" in text
    assert "failed (1 of 2) 62.0" in text
    assert text.count("(paper 91.5)") == 1  # beside the last epoch, of which the paper speaks, and nowhere else
    assert "## digits: Training time, seconds" in text and "| pencil | 1.50 | 1.50 |" in text
    page = tables.as_html(spec, list(entries.values()))
    assert '<td class="leads">81.0 ± 1.4</td>' in page and "<b>luck" not in page


def test_latex_has_the_tables_of_markdown(spec):
    results = {}
    for cell in spec.cells():
        share = {"cross_entropy": 0.6, "pencil": 0.8, "told": 0.9}[cell.method] + 0.02 * (cell.seed - 1)
        results[cell.identity()] = result(share, labels=share)
    entries = tables.collect_entries(spec, results)
    text, lines = as_latex(spec, entries), as_latex(spec, entries).splitlines()
    assert r"pencil & \textbf{81.0 $\pm$ 1.4} & \textbf{81.0 $\pm$ 1.4 (paper 91.5)} \\" in lines
    assert r"told {*} & 91.0 $\pm$ 1.4 & 91.0 $\pm$ 1.4 \\" in lines  # starred: never in bold
    assert r"cross\_entropy & 61.0 $\pm$ 1.4 & 61.0 $\pm$ 1.4 \\" in lines
    assert r"\caption{digits: Test accuracy at the last epoch, \%}" in lines
    assert lines.count(r"method & clean & half \\") == tables.as_markdown(spec, entries).count("| method |")
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == text.count(r"\begin{tabular}{lrr}") == text.count(r"\end{table}")
    labels = [line for line in lines if line.startswith(r"\label")]
    assert len(set(labels)) == len(labels) > 2 and labels[0] == r"\label{tab:small-1}"


def test_latex_prints_every_name_as_it_is(spec):
    assert escape("50 % & a_b #1 $x^2 ~") == r"50 \% \& a\_b \#1 \$x\textasciicircum{}2 \textasciitilde{}"
    assert escape(r"\input{a}") == r"\textbackslash{}input\{a\}" and escape("<|>")[:14] == r"\textless{}\te"
    hostile = Spec.model_validate({**SMALL, "name": "one\n\\two", "methods": [{"name": "[1cm]\r\n* it"}]})
    results = {cell.identity(): result(0.5) for cell in hostile.cells()}
    text = as_latex(hostile, tables.collect_entries(hostile, results))
    assert "{[}1cm] {*} it & " in text  # a bracket at the start would be an argument of the row before
    assert r"\two" not in text.replace("% one \\two", "") and r"\label{tab:one--two-1}" in text


def test_names_in_a_spec_cannot_break_out_of_the_page(spec):
    hostile = spec.model_copy(update={"description": "<script>alert(1)</script>"})
    assert "<script>" not in tables.as_html(hostile, tables.collect_entries(hostile, {}))


def test_a_benchmark_goes_on_where_it_stopped_and_survives_a_broken_cell(tmp_path, spec):
    tree = dict(SMALL, seeds=[1], noises=SMALL["noises"][1:])
    tree["methods"] = [*SMALL["methods"][:2], {"name": "broken", "set": {"model": {"name": "nothing"}}}]
    small = Spec.model_validate(tree)
    told = []

    def tell(cell, result, left):
        told.append((cell.method, result["status"], left))

    cells = list(small.cells())
    results = runner.run_cells(cells, tmp_path, 2, tell)
    assert sorted(told)[0][:2] == ("broken", "failed") and {left for _, _, left in told} == {0, 1, 2}
    assert sorted(found["status"] for found in results.values()) == ["done", "done", "failed"]
    assert "'nothing'" in next(found["error"] for found in results.values() if found["status"] == "failed")
    told.clear()
    again = runner.run_cells(cells, tmp_path, 1, tell)
    assert [method for method, _, _ in told] == ["broken"]  # what is done is not done again
    done = cells[1].identity()
    assert again[done] == results[done] == json.loads((tmp_path / f"{done}.json").read_text())


def die_at_work(pipe, number, threads):
    """A worker that is killed in the middle of its first cell."""
    pipe.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_once(pipe, number, threads):
    """A worker that does not live to see its first cell."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("worker", [die_at_work, die_at_once])
def test_a_worker_that_is_killed_costs_its_cell_only(tmp_path, spec, monkeypatch, worker):
    monkeypatch.setattr(runner, "_work", worker)
    cells = list(spec.cells())[:2]
    results = runner.run_cells(cells, tmp_path, 1, lambda *_: None)
    assert [found["error"] for found in results.values()] == ["the process died with exit code -9"] * 2


@pytest.mark.parametrize(("named", "expected"), [("3", []), (None, [2]), ("", [2])])
def test_a_worker_leaves_the_threads_that_the_environment_names(monkeypatch, named, expected):
    """A spawned process inherits the environment, and torch reads ``OMP_NUM_THREADS`` when it is loaded."""
    chosen = []
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    monkeypatch.setattr(runner, "cores", lambda: 4)
    monkeypatch.setattr(runner, "_end_with_parent", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if named is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    ours, theirs = multiprocessing.Pipe()
    ours.close()  # no cell: it ends at once
    runner._work(theirs, 0, runner.threads_per_cell(2))
    assert chosen == expected


@pytest.mark.parametrize(("named", "expected"), [("2", 4), ("16", 1), (None, 8)])
def test_as_many_cells_run_at_a_time_as_have_a_core_for_each_thread(monkeypatch, named, expected):
    monkeypatch.setattr(runner, "cores", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.get_num_threads", lambda: int(named or 8))
    if named is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert runner.default_processes() == expected


START_A_WORKER = """
import time
from pencil.bench.runner import _Worker
class Cell:
    def recipe(self):
        time.sleep(600)
if __name__ == "__main__":
    worker = _Worker(0, 1)
    worker.take(Cell())
    print(worker.process.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_no_worker_outlives_a_benchmark_that_is_killed(tmp_path):
    script = tmp_path / "start_a_worker.py"
    script.write_text(START_A_WORKER)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as benchmark:
        worker = int(benchmark.stdout.readline())
        benchmark.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}/stat").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":  # ended, and nobody has waited for it
            return
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}/stat").exists()


@pytest.mark.slow
def test_cells_may_read_images_with_workers_of_their_own(tmp_path):
    for number in range(24):
        paint(tmp_path / "photos" / "ab"[number % 2] / f"{number}.png", number)
    data = {"source": str(tmp_path / "photos"), "cache": "none", "workers": 1}
    tree = {"recipe": {"data": data, "training": {"epochs": 1}}, "seeds": [1]}
    tree |= {"name": "images", "methods": [{"name": "cross_entropy", "set": {"method": {"name": "cross_entropy"}}}]}
    (found,) = runner.run_cells(list(Spec.model_validate(tree).cells()), tmp_path / "out", 1, lambda *_: None).values()
    assert found["status"] == "done", found.get("traceback")


def test_interrupted_it_still_writes_what_is_done(tmp_path, spec, monkeypatch, capsys):
    def interrupted(cells, folder, *_):
        folder.mkdir(parents=True)
        write_json(folder / f"{cells[0].identity()}.json", result(0.5, labels=0.5))
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_cells", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command._run(spec, spec, tmp_path, 1, "local")
    assert "1 of 12 cells are done; run the same command to resume" in capsys.readouterr().err
    assert "50.0 (1 of 2 seeds)" in (tmp_path / "results.md").read_text()


def test_tables_of_a_part_keep_what_the_folder_has(tmp_path, spec):
    (tmp_path / "cells").mkdir()
    first, second = spec.part(noises=["clean"], seeds=[1]), spec.part(methods=["pencil"], seeds=[7])
    for part, share in ((first, 0.25), (second, 0.75)):
        for cell in part.cells():
            write_json(tmp_path / "cells" / f"{cell.identity()}.json", result(share, labels=share))
        entries = command._write_tables(spec, part, tmp_path)
    found = {(entry.noise, entry.method): entry.done for entry in entries}
    assert found["clean", "cross_entropy"] == 1 and found["clean", "pencil"] == 2 and found["half", "pencil"] == 1
    assert "50.0" in (tmp_path / "results.md").read_text()


def test_the_command_writes_tables_and_plots(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pencil.bench.progress.SECONDS_PER_LINE", 0.0)
    path = tmp_path / "tiny.toml"
    path.write_text(
        'seeds = [1]\n[recipe]\ndata = { source = "digits", rows = 100 }\ntraining = { epochs = 3 }\n'
        'model = { options = { width = 4 } }\n[[methods]]\nname = "cross_entropy"\n'
        'set = { method = { name = "cross_entropy" } }\n'
    )
    command.bench(str(path), out=tmp_path / "out", processes=1)
    printed = capsys.readouterr()
    assert "| cross_entropy |" in printed.out and "cells are done" not in printed.err
    label, epoch = "data, as given, cross_entropy, seed 1", "epoch 1/3 train"
    said = [line for line in printed.err.splitlines() if line.startswith(label)]
    assert said[0] == f"{label}: loading data" and any(line.startswith(f"{label}: {epoch}") for line in said)
    assert said[-1].endswith("(0 left)") and epoch not in printed.out
    made = {entry.name for entry in (tmp_path / "out").iterdir()}
    assert made == {"cells", "results.json", "results.md", "results.html", "data-as-given.svg"}
    command.bench(str(path), out=tmp_path / "out", processes=1, latex=True)
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == made | {"results.tex"}
    assert r"cross\_entropy & " in (tmp_path / "out" / "results.tex").read_text()
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stored["entries"][0]["done"] == 1 and stored["spec"]["seeds"] == [1]


@pytest.mark.parametrize("name", names())
def test_shipped_benchmarks_are_valid(name):
    spec = read_spec(name)
    cells = [cell for cell in spec.cells() if cell.seed == spec.seeds[0]]
    for cell in cells:
        cell.recipe()
    places = {noise.name for noise in spec.noises}
    assert all(set(row.paper) <= places for row in spec.methods)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(RecipeError, match="kl-analysis is not a grid; remove --latex"):
        command.bench("kl-analysis", out=tmp_path, latex=True)
    with pytest.raises(RecipeError, match=r"there is no benchmark 'tabel2'; expected .*table2"):
        read_spec("tabel2")
    (tmp_path / "bad.toml").write_text('seeds = ["one"]\ncolour = 1\n[[methods]]\nname = "cross_entropy"')
    with pytest.raises(RecipeError, match=r"3 errors in"):
        read_spec(str(tmp_path / "bad.toml"))
    twice = dict(SMALL, methods=[SMALL["methods"][0]] * 2)
    with pytest.raises(ValidationError, match="expected unique names"):
        Spec.model_validate(twice)
    word = Spec.model_validate(dict(SMALL, methods=[{"name": "cross_entropy", "set": {"method": "elr"}}]))
    with pytest.raises(RecipeError, match=r"sets method to 'elr'; expected a table: method.name = 'elr'"):
        list(word.cells())
    (tmp_path / "lone.toml").write_text('[[methods]]\nname = "pencil"')
    with pytest.raises(RecipeError, match="is 'cross_entropy'; expected one of its methods"):
        read_spec(str(tmp_path / "lone.toml"))


def test_curves_of_seeds_may_differ_in_length():
    assert mean_curve([[0.1, 0.2, 0.9], [0.3, 0.4]]) == pytest.approx([20.0, 30.0])


def test_a_result_that_cannot_be_put_together_fails_its_cell_only(monkeypatch):
    class Unfinished:
        metrics = ()

    monkeypatch.setattr("pencil.job.run_recipe", lambda *_, **__: Unfinished())
    found = runner.run_cell(next(iter(Spec.model_validate(SMALL).cells())))
    assert found["status"] == "failed" and found["error"].startswith("IndexError") and "Traceback" in found["traceback"]
