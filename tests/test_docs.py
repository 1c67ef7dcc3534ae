"""Every Python snippet, every `pencil` command and every relative link in README and docs really works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:\s]+)(#[^)]*)?\)")


def blocks(language: str) -> list[pytest.param]:
    return [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (kind, code) in enumerate(FENCE.findall(page.read_text()))
        if kind == language
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_snippet_runs(code, tmp_path):
    """As a user would: a script of its own in an empty folder."""
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the files that the pages talk about: a finished run and some arrays."""
    import numpy as np

    from pencil.data.named import digits

    folder = tmp_path_factory.mktemp("docs")
    train, test = digits()
    values = train.inputs.values
    np.savez(folder / "shoes.npz", x=values[train.rows][:300], y=train.given_labels[:300])
    np.savez(folder / "new.npz", x=values[test.rows][:5])
    command = ["train", "shoes.npz", "--out", "runs/shoes", "--epochs", "3"]
    subprocess.run([sys.executable, "-m", "pencil", *command], cwd=folder, check=True, capture_output=True)
    return folder


SLOW = ("pencil demo",)  # `make demo` is run by its own test


@pytest.mark.parametrize("code", blocks("console"))
def test_console_commands_run(code, workplace, tmp_path):
    for line in code.splitlines():
        command = line.removeprefix("$ ").split("#")[0].strip()
        if not line.startswith("$ pencil") or command in SLOW:
            continue
        words = [sys.executable, "-m", *shlex.split(command.split("|")[0])]
        if words[3] == "train":
            words += ["--out", str(tmp_path / "run"), "--epochs", "2"]
        done = subprocess.run(words, cwd=workplace, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    for target, _ in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
