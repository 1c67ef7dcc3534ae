"""The pages of the site: `python docs/stage.py FOLDER` copies docs/ there, with every file that its pages link to.

Links are always written for the git host, where `[elr.py](../src/pencil/methods/elr.py)` opens the file. A site has
pages only, so README, CONTRIBUTING and CHANGELOG become pages, every other linked file outside docs/ becomes a page
with its text, and links are changed to these pages. A broken link is left as it is, for the build to report.
"""

import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()[^)#:\s]+")
SOURCE = "---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n~~~~~~~~{language}\n{text}\n~~~~~~~~\n"


def page_of(path: str) -> str:
    """Return the path in the site of a file of the repository."""
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md")


def source_page(path: str) -> str:
    """Return a page with the text of a file, or with the list of files in a folder."""
    file = ROOT / path
    text = "\n".join(sorted(child.name for child in file.iterdir())) if file.is_dir() else file.read_text()
    return SOURCE.format(path=path, language="python" if file.suffix == ".py" else "text", text=text.rstrip())


def relinked(path: str, outside: set[str]) -> str:
    """Return a page's text with links for the site; linked files outside docs/ are added to ``outside``."""
    here = posixpath.dirname(page_of(path))

    def relink(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[0]))
        if target.startswith("..") or not (ROOT / target).exists():
            return match[0]
        if page_of(target).startswith("source/"):
            outside.add(target)
        return posixpath.relpath(page_of(target), here or ".")

    return LINK.sub(relink, (ROOT / path).read_text())


def stage(folder: Path) -> None:
    """Write all pages to a folder, which is emptied first."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    outside: set[str] = set()
    for file in [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md")]:
        path = file.relative_to(ROOT).as_posix()
        (folder / page_of(path)).write_text(relinked(path, outside))
    for path in outside:
        page = folder / page_of(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(source_page(path))


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
