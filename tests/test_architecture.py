"""Data flows one way: a package imports only packages to its left. Read from the source, so lazy imports count too."""

import ast
from pathlib import Path

import pytest

import pencil

ROOT = Path(pencil.__file__).parent
ORDER = [
    (
        "_version",
        "errors",
        "seeding",
        "files",
        "memory",
        "terminal",
        "user_file",
        "decisions",
        "arrow_arrays",
        "formulas",
    ),
    ("data",),
    ("labels",),
    ("models",),
    ("methods",),
    ("training",),
    ("recipe",),
    ("runs",),
    ("loggers", "export", "report", "review"),
    ("auditing",),
    ("job",),
    ("fitting",),
    ("bench", "integrations"),
    ("cli",),
    ("__init__", "__main__"),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The packages of pencil that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; packages are named in full"
            module = node.module or ""
            if module == "pencil":
                found |= {alias.name for alias in node.names}
            elif module.startswith("pencil."):
                found.add(module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pencil.")}
    return found


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_left(path):
    own = package(path)
    for other in imports(path) - {own}:
        assert other in RANK, f"{own} imports {other}, which has no place in the order"
        assert RANK[other] < RANK[own] or (RANK[other] == RANK[own] and own in ORDER[0]), f"{own} imports {other}"


def test_every_room_has_a_place():
    assert {package(path) for path in FILES} == set(RANK)


def test_clean_labels_never_reach_a_method():
    """Methods do not name them, and what they are handed cannot carry them."""
    from dataclasses import fields

    from pencil.data import Batch
    from pencil.methods import Task

    for path in (ROOT / "methods").glob("*.py"):
        assert "clean_labels" not in path.read_text(), path
    for handed in (Batch, Task):
        assert not [field.name for field in fields(handed) if "clean" in field.name or "rate" in field.name]


CHANGES = {"unlink", "rmtree", "rename", "rmdir", "mkdir", "symlink_to", "link", "makedirs"}
ALLOWED = {
    ("runs/lock.py", "mkdir"),  # of the run directory itself
    ("runs/lock.py", "unlink"),  # of the file that it holds open
    ("runs/directory.py", "unlink"),  # of a file in the run directory itself, which may be a link: that goes
    ("runs/checkpoints.py", "mkdir"),  # after `recover`, which refuses links
    ("loggers/trackers.py", "mkdir"),  # after `refuse_links_out`
    ("loggers/mlflow_model.py", "mkdir"),  # in a temporary folder
}


def test_what_changes_a_run_directory_refuses_links():
    """Folders are made and files renamed and removed by functions of ``files.py``, which refuse links in a run."""
    found = set()
    for path in FILES:
        if package(path) in ("runs", "report", "review", "auditing", "decisions", "loggers"):
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            names = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
            found |= {(path.relative_to(ROOT).as_posix(), name) for name in names & CHANGES}
    assert found == ALLOWED
