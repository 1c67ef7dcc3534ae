"""`pencil labels` answers at once: it imports neither torch nor pandas."""

import resource
import subprocess
import sys
import time

import pytest
from review_runs import many_classes_run, one_class_run

IN_PROCESS = """
import sys
from pencil.cli import main
sys.argv = ["pencil", "labels", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    assert not stop.code
heavy = [name for name in ("torch", "pandas", "matplotlib", "pencil.recipe", "pencil.data") if name in sys.modules]
print(heavy, file=sys.stderr)
"""


@pytest.mark.parametrize("words", [[], ["--only-changed"], ["--min-confidence", "0.7"], ["--format", "jsonl"]], ids=str)
@pytest.mark.parametrize("make", [one_class_run, many_classes_run])
def test_labels_need_no_torch(tmp_path, make, words):
    run = make(tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", IN_PROCESS, run, *words], capture_output=True, text=True)
    assert done.stderr.strip() == "[]" and done.stdout


@pytest.mark.parametrize(
    "words", [["--format", "parquet", "--out", "o"], ["--format", "cleanlab"], ["--reviewed"], ["--entries"]], ids=str
)
def test_no_other_format_needs_it_either(tmp_path, words):
    run = many_classes_run(tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", IN_PROCESS, run, *words], capture_output=True, text=True, cwd=tmp_path)
    assert "torch" not in done.stderr.splitlines()[-1] and "pencil.recipe" not in done.stderr.splitlines()[-1]


def test_labels_answer_in_under_a_second(tmp_path):
    """The best of three, in time on the clock or, on a busy machine, in processor time."""
    run = one_class_run(tmp_path / "run", rows=2000, shape=(1,))
    spent = []
    for _ in range(3):
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "pencil", "labels", run], check=True, capture_output=True)
        clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(min(clock, after.ru_utime - before.ru_utime))
    assert min(spent) < 1.0, spent
