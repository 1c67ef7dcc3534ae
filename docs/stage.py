"""The pages of the site: `python docs/stage.py FOLDER` copies docs/ there, with all that its links lead to.

On a git host `[elr.py](../src/pencil/methods/elr.py)` opens the file. A site has pages only: so README and its
neighbours become pages, every other file that is linked from outside docs/ becomes a page with its text, and links are
turned to them. Links are written for the git host, always. One that leads nowhere is left as it is, for the build to
report.
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
    """Where a file of the repository lies in the site."""
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md")


def source_page(path: str) -> str:
    """A file as text, a folder as a list of what is in it."""
    file = ROOT / path
    text = "\n".join(sorted(child.name for child in file.iterdir())) if file.is_dir() else file.read_text()
    return SOURCE.format(path=path, language="python" if file.suffix == ".py" else "text", text=text.rstrip())


def relinked(path: str, outside: set[str]) -> str:
    """A page's text with its links as they are in the site; what they lead to outside docs/ is added to a set."""
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
    """Make the folder anew."""
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
