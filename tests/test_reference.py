"""The reference pages: as the docstrings and the help texts are now, with links that lead to a heading."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("api.md", "cli.md")
LOCKED = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().splitlines())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    command = [sys.executable, ROOT / "docs" / "write_reference.py", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stale = [line for line in done.stderr.splitlines() if "does not appear in the function signature" in line]
    assert stale == [], "a docstring describes a parameter that is not there"
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_committed_pages_are_as_the_source_is(page, written):
    others = [name for name in ("typer", "griffelib") if version(name) != LOCKED[name]]
    if others:  # other releases may word the same thing differently
        pytest.skip(f"not the locked release: {', '.join(others)}")
    fresh = (written / page).read_text(encoding="utf-8")
    assert (ROOT / "docs/reference" / page).read_text(encoding="utf-8") == fresh, "run `make reference`"


@pytest.mark.parametrize("page", PAGES)
def test_links_within_a_page_lead_to_one_heading(page, written):
    text = (written / page).read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", text))
    slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
    for target in re.findall(r"\]\(#([^)]+)\)", text):
        assert slugs.count(target) == 1, f"{page} links to #{target}"


def test_every_public_name_and_command_is_described(written):
    import pencil
    from pencil.cli import app

    api, cli = ((written / page).read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in pencil.__all__ if not name.startswith("_") and f"\n### `pencil.{name}`\n" not in api] == []
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert [name for name in names if f"\n## `pencil {name}`\n" not in cli] == []
