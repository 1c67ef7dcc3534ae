"""``pencil audit`` from the command line: a sheet, answers, results, targets, and a page in a process of its own."""

import csv
import json
import os
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar

import pytest
from audit_runs import answer_all, make_run, make_timid_run
from commands import pencil

from pencil.auditing.results import read_answers, record
from pencil.auditing.sample import open_sample
from pencil.auditing.sheet import read_sheet
from pencil.errors import RunError
from pencil.runs.directory import RunReader
from pencil.runs.lock import RunLock
from pencil.runs.manifest import verify

DECIDED = "labels as decided by the audit (100 answers); --as-trained reads the labels of training"
COMMAND = "import sys; sys.argv[0] = 'pencil'; from pencil.cli import main; main()"


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def fill(sheet, truth, classes=("cat", "dog", "bird"), **special):
    lines = list(csv.DictReader(sheet.read_text().splitlines()))
    for line in lines:
        line["label"] = special.get(line["key"], classes[truth[int(line["key"])]])
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    return lines


def test_a_sheet_from_writing_to_results(run, tmp_path):
    truth = make_run(run, rows=1500)
    said = pencil("audit", "run", "--sheet", "sheet.csv", cwd=tmp_path).stderr
    assert "100 rows written to sheet.csv" in said
    lines = list(csv.DictReader((tmp_path / "sheet.csv").read_text().splitlines()))
    assert list(lines[0]) == ["key", "split", "classes", "label"] and not any(line["label"] for line in lines)
    assert {line["classes"] for line in lines} == {
        "; ".join(order) for order in (
            ("cat", "dog", "bird"), ("cat", "bird", "dog"), ("dog", "cat", "bird"),
            ("dog", "bird", "cat"), ("bird", "cat", "dog"), ("bird", "dog", "cat"))
    }  # fmt: skip
    special = {lines[3]["key"]: "cannot tell", lines[4]["key"]: "None of the classes"}
    fill(tmp_path / "sheet.csv", truth, **special)
    done = pencil("audit", "run", "--answers", "sheet.csv", "--target", "0.999", cwd=tmp_path)
    assert "100 new answers" in done.stderr
    assert done.stdout.startswith("audited: ") and "%) of the corrected labels are right" in done.stdout
    for words in ("given labels wrong", "changes right", "100 of 1,500", "none of the classes",
                  "cannot tell", "target 99.9 %: cannot be reached", "labels  "):  # fmt: skip
        assert words in done.stdout
    assert "0 new answers" in pencil("audit", "run", "--answers", "sheet.csv", cwd=tmp_path).stderr
    again = pencil("audit", "run", "--results", "--json", "--target", "0.5", cwd=tmp_path)
    tree = json.loads(again.stdout)
    assert (tree["rows"], tree["cannot_tell"], tree["no_class"], tree["rows_needed"]) == (100, 1, 1, 0)
    assert RunReader(run).summary.audit.rows == 100 and all(status.ok for status in verify(run))


def test_results_are_printed_while_another_command_has_the_run(run, tmp_path):
    truth = make_run(run, rows=300)
    pencil("audit", "run", "--sheet", "sheet.csv", cwd=tmp_path)
    fill(tmp_path / "sheet.csv", truth)
    with RunLock(run, "review"):
        refused = pencil("audit", "run", "--answers", "sheet.csv", cwd=tmp_path, code=2).stderr
        assert "(review); only one process may write" in refused and "stop it with Ctrl-C" in refused
        assert "--out" not in refused
    pencil("audit", "run", "--answers", "sheet.csv", cwd=tmp_path)
    expected = pencil("audit", "run", "--results", cwd=tmp_path)
    before = (run / "summary.json").read_bytes()
    with RunLock(run, "review"):
        found = pencil("audit", "run", "--results", cwd=tmp_path)
        pencil("audit", "run", "--results", "--rows", 200, cwd=tmp_path, code=2)
    assert found.stdout == expected.stdout and "results not written to run: run is in use by" in found.stderr
    assert (run / "summary.json").read_bytes() == before


def test_targets_in_words(run, tmp_path):
    truth = make_run(run, rows=3000)
    answer_all(run, truth)
    right = json.loads(pencil("audit", "run", "--results", "--json", cwd=tmp_path).stdout)["corrected_right"]
    low, middle = right["low"] - 0.01, (right["low"] + right["estimate"]) / 2
    assert (
        "reached; the interval starts at"
        in pencil("audit", "run", "--results", "--target", f"{low:.3f}", cwd=tmp_path).stdout
    )
    said = pencil("audit", "run", "--results", "--target", f"{middle:.3f}", cwd=tmp_path).stdout
    assert "more rows needed: `pencil audit run --rows " in said
    assert (
        "--target is 98; expected a fraction" in pencil("audit", "run", "--target", "98", cwd=tmp_path, code=2).stderr
    )


def test_the_labels_and_the_report_have_the_results(run, tmp_path):
    truth = make_timid_run(run)
    trained = pencil("labels", "run", cwd=tmp_path)
    assert "as decided" not in trained.stderr
    answer_all(run, truth)
    said = pencil("audit", "run", "--results", cwd=tmp_path).stdout
    changed = int(RunReader(run).labels.changed.sum())
    assert f"labels                           decided again by the answers: {changed} corrections, " in said
    done = pencil("labels", "run", "--only-changed", cwd=tmp_path)
    assert done.stderr.splitlines()[0] == DECIDED and len(done.stdout.splitlines()) == changed + 1
    again = pencil("labels", "run", "--as-trained", cwd=tmp_path)
    assert (again.stdout, again.stderr) == (trained.stdout, trained.stderr)
    reviewed = pencil("labels", "run", "--reviewed", cwd=tmp_path).stdout.splitlines()
    assert sum(line.lower().endswith(",true") for line in reviewed) == 100


@pytest.mark.parametrize("words", [("show",), ("show", "--json"), ("review", "--import", "answers.json")])
def test_commands_say_which_labels_they_read(run, tmp_path, words):
    (tmp_path / "answers.json").write_text("[]")
    record(run, read_answers(run, answer_all(run, make_timid_run(run))))
    command, *options = words
    decided, trained = (pencil(command, "run", *options, *more, cwd=tmp_path) for more in ((), ("--as-trained",)))
    assert decided.stderr.splitlines()[0] == DECIDED and "as decided" not in trained.stderr
    assert command == "review" or decided.stdout != trained.stdout


def test_an_interrupted_audit_is_said(run, tmp_path):
    before = make_timid_run(run), (run / "summary.json").read_bytes()
    record(run, read_answers(run, answer_all(run, before[0])))
    (run / "summary.json").write_bytes(before[1])
    assert "labels as decided by an audit that was interrupted; --as-" in pencil("labels", "run", cwd=tmp_path).stderr


def test_the_report_says_it(tmp_path):
    import numpy as np

    import pencil as package
    from pencil.report import write_report

    x = np.random.default_rng(0).normal(size=(120, 4))
    package.fit("mlp", (x, np.arange(120) % 3), out=tmp_path / "run", epochs=3)
    run = tmp_path / "run"
    answer_all(run, np.arange(120) % 3)
    pencil("audit", "run", "--results", cwd=tmp_path)
    page = write_report(run).read_text()
    sentence = RunReader(run).summary.audit.sentence
    looked = "a person labelled 100 of 120 rows blind"
    assert f'<p class="reason">A{sentence[1:]} ({looked}).</p>' in page
    assert all(status.ok for status in verify(run))


def test_few_answers_say_how_many_are_missing(run, tmp_path):
    truth = make_run(run)
    answer_all(run, truth, upto=4)
    done = pencil("audit", "run", "--results", cwd=tmp_path)
    assert done.stdout == "" and "answered: 4 rows; " in done.stderr and "more are needed" in done.stderr
    found = json.loads(pencil("audit", "run", "--results", "--json", cwd=tmp_path).stdout)
    assert found == {"answered": 4, "missing": found["missing"]} and f"; {found['missing']} more are" in done.stderr
    assert RunReader(run).summary.audit is None


def test_what_cannot_be_audited_is_one_line(run, tmp_path):
    said = pencil("audit", "nowhere", "--no-browser", cwd=tmp_path, code=2).stderr
    assert "not a run directory" in said and said.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()
    make_run(run)
    assert "has no audit yet" in pencil("audit", "run", "--results", cwd=tmp_path, code=2).stderr
    assert "mutually exclusive" in pencil("audit", "run", "--results", "--sheet", "x", cwd=tmp_path, code=2).stderr
    assert "--allow-remote" in pencil("audit", "run", "--host", "0.0.0.0", cwd=tmp_path, code=2).stderr


def test_keys_that_tell_the_label_make_no_sheet(run, tmp_path):
    import numpy as np

    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 400)
    given = np.where(rng.random(400) < 0.2, (truth + rng.integers(1, 3, 400)) % 3, truth)  # as make_run draws them
    keys = [f"{('cat', 'dog', 'bird')[code]}/{number}.jpg" for number, code in enumerate(given)]
    make_run(run, keys=keys)
    said = pencil("audit", "run", "--sheet", "sheet.csv", cwd=tmp_path, code=2).stderr
    assert "answer on the page instead: `pencil audit run`" in said
    assert "the keys of this run contain the given labels" in said and not (tmp_path / "sheet.csv").exists()


def test_digits_as_keys_and_as_classes_are_no_hint(run, tmp_path):
    make_run(run, classes=tuple("0123456789"))
    pencil("audit", "run", "--sheet", "sheet.csv", cwd=tmp_path)
    pencil("audit", "run", "--sheet", "sheet.csv", cwd=tmp_path, code=2)  # a file that is there stays


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n", "has the columns a, b; expected key and label"),
        ("key,label\nnobody,cat\n", "line 2 of .* names 'nobody', which does not identify one row"),
        (
            "key,label\n{key},lion\n",
            "line 2 of .* says 'lion'; expected a class .* \\('cat', 'dog', 'bird'\\), 'cannot tell' or",
        ),
        ("", "has the columns none"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (f"key,label,{'x' * 200_000}\n", "is not a CSV file: field larger than field limit"),
    ],
)
def test_odd_sheets_are_refused_and_nothing_of_them_is_saved(run, tmp_path, content, words):
    make_run(run)
    sample = open_sample(run)
    path = tmp_path / "sheet.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.format(key=sample.where(0)[0]).encode())
    with pytest.raises(RunError, match=words):
        list(read_sheet(path, sample))
    pencil("audit", "run", "--answers", "sheet.csv", cwd=tmp_path, code=2)
    assert (run / "reviews.jsonl").read_bytes() == b""


def test_classes_in_another_case_are_read_unless_two_are_alike(run, tmp_path):
    make_run(run, classes=("Cat", "dog", "DOG"))
    sample, path = open_sample(run), tmp_path / "sheet.csv"
    first, second, third = (sample.where(at)[0] for at in range(3))
    path.write_text(f"key,label\n{first},cAT\n{second},DOG\n{third},None of the Classes\n")
    assert list(read_sheet(path, sample)) == [(0, 0), (1, 2), (2, -1)]
    path.write_text(f"key,label\n{first},Dog\n")
    with pytest.raises(RunError, match=r"says 'Dog'; expected a class of the run \('Cat', 'dog', 'DOG'\)"):
        list(read_sheet(path, sample))


def test_sheets_of_other_programs(run, tmp_path):
    make_run(run)
    sample, path = open_sample(run), tmp_path / "sheet.csv"
    first, second = sample.where(0)[0], sample.where(1)[0]
    path.write_bytes(f"\ufeffkey;label\r\n{first}; dog \r\n{second};\r\n".encode())
    assert list(read_sheet(path, sample)) == [(0, sample.labels.classes.index("dog"))]
    path.write_bytes(f"key,label\r{first},dog\r{second},\r".encode())  # "CSV (Macintosh)"
    assert list(read_sheet(path, sample)) == [(0, sample.labels.classes.index("dog"))]


def test_a_page_until_ctrl_c(run, tmp_path):
    truth = make_run(run)
    answer_all(run, truth)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "audit", str(run), "--no-browser", "--rows", "110"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        assert b"pencil audit" in browser.open(address).read()
        home = address.split("?")[0]
        assert json.load(browser.open(f"{home}api/row"))["answered"] == 100
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert "10 of 110 rows left" in err and out.startswith("audited: ") and "Traceback" not in err
    assert RunReader(run).summary.audit.rows == 100
