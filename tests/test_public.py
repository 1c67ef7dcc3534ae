import ast
import difflib
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from surface import FILE, surface

import pencil
from pencil.errors import warn
from pencil.loggers.events import Events
from pencil.methods import Constant, Phase


def test_every_public_name_is_there():
    for name in pencil.__all__:
        assert getattr(pencil, name) is not None
    assert set(pencil.__all__) <= set(dir(pencil))


def test_import_does_not_bring_torch():
    code = "import pencil, pencil.cli, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_imports_nothing_heavy():
    """What makes a command slow to answer is its imports; seconds would depend on the machine."""
    code = """
import sys
sys.argv = ["pencil", "--help"]
from pencil.cli import main
try:
    main()
except SystemExit:
    pass
heavy = {"torch", "pyarrow", "numpy", "pydantic", "matplotlib", "sklearn", "scipy", "PIL"} & sys.modules.keys()
sys.exit(str(heavy) if heavy else 0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_names_options_and_recipe_keys_are_those_that_version_1_promises():
    """A line that is missing or differs breaks programs of users; a new line is a new promise."""
    promised = FILE.read_text(encoding="utf-8").splitlines()
    changed = "\n".join(difflib.unified_diff(promised, surface().splitlines(), "promised", "now", lineterm="", n=0))
    assert not changed, (
        f"{changed}\n\nA removed or changed line needs a deprecation first (docs/stability.md). If the change is "
        "meant, run `make surface`, commit tests/surface.txt and add a line to CHANGELOG.md."
    )


@pytest.mark.parametrize(
    ("promise", "part"),
    [
        ("pencil.Run.predict_probs(self, x, *, mirror=False)", "a method with its default"),
        ("pencil.AuditSession.sample", "an attribute that only the docstring names"),
        ("pencil.runs.summary.Summary.verdict", "a field of what is returned"),
        ("pencil train option --resume", "an option"),
        ("training.batch_size", "a key of a recipe"),
    ],
)
def test_the_promise_covers(promise, part):
    assert promise in FILE.read_text(encoding="utf-8").splitlines(), part


def test_every_warning_goes_through_one_function():
    """So that it has a category of pencil's and is logged."""
    root = Path(pencil.__file__).parent
    for path in root.rglob("*.py"):
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        assert "warnings.warn" not in calls or path == root / "errors.py", path


def digits():
    x, y = load_digits(return_X_y=True)
    return x[:300], y[:300]


def test_a_silent_run_can_be_followed_by_logging(tmp_path, caplog, capfd):
    phases = {"method.backbone_epochs": 1, "method.correction_epochs": 2, "method.finetune_epochs": 1}
    with caplog.at_level(logging.INFO, "pencil"):
        pencil.fit("mlp", digits(), out=tmp_path / "run", method="pencil", settings=phases, progress=False)
    found = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert {name for name, _, _ in found} == {"pencil.run"} and {level for _, level, _ in found} == {"INFO"}
    sentences = [message for _, _, message in found]
    assert sentences[:4] == [
        "training starts: 4 epochs",
        "phase backbone starts at epoch 1",
        "phase correction starts at epoch 2",
        "phase finetune starts at epoch 4",
    ]
    assert sentences[-2].startswith("verdict: ") and sentences[-1] == f"results are in {tmp_path / 'run'}"
    assert capfd.readouterr() == ("", "")  # the test's handler gets the records; nothing is printed


def test_a_resumed_run_says_so(caplog):
    with caplog.at_level(logging.INFO, "pencil"):
        Events().on_start((Phase("train", 4, lambda outputs, batch: None, Constant(0.1)),), 10, 25, 0)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["training resumes after 25 steps of 4 epochs", "phase train starts at epoch 3"]


def test_nothing_is_printed_without_a_handler():
    code = "from pencil.errors import PencilWarning, warn; import warnings\n"
    code += "with warnings.catch_warnings(record=True): warn('rows are missing', PencilWarning)"
    done = subprocess.run([sys.executable, "-c", f"import pencil\n{code}"], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_warnings_are_logged_unless_a_filter_ignores_them(caplog):
    with pytest.warns(pencil.DataWarning, match="two rows"):
        warn("two rows are alike", pencil.DataWarning)
    assert [(record.name, record.levelname) for record in caplog.records] == [("pencil", "WARNING")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pencil.PencilWarning)
        warn("two rows are alike", pencil.DataWarning)
    assert len(caplog.records) == 1


def test_categories_can_be_told_apart():
    """20 rows hold out too few for auto, so another method runs: the method's affair, not the data's."""
    x, y = digits()
    with pytest.warns(pencil.MethodWarning, match="held-out rows"):
        pencil.fit("mlp", (x[:20], y[:20] % 2), epochs=3, progress=False, settings={"data.validation": 0.1})
    assert issubclass(pencil.DataWarning, pencil.PencilWarning) and issubclass(pencil.PencilWarning, UserWarning)


def test_the_command_line_prints_a_warning_once(tmp_path):
    """It is logged too, but the command line has no handler for log records."""
    x, y = digits()
    np.savez(tmp_path / "few.npz", x=x[:20], y=y[:20] % 2)
    command = [sys.executable, "-m", "pencil", "train", "few.npz", "--epochs", "3", "--out", "run"]
    command += ["--set", "data.validation=0.1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.count("held-out rows, but there are") == 1 and "training starts" not in done.stderr
