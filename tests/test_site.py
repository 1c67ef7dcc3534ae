"""The documentation as a site: it builds strictly, its links lead somewhere, and it asks nothing of other hosts."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from commands import pencil

ROOT = Path(__file__).parent.parent


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        for name in ("href", "src"):
            if given.get(name) and given.get("rel") not in ("canonical", "next", "prev"):
                self.found.append((tag, given[name]))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """As `make docs` does it, elsewhere."""
    place = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", place)
    subprocess.run([sys.executable, ROOT / "docs" / "stage.py", place / "build" / "docs"], check=True)
    tool = Path(sys.executable).parent / "zensical"
    done = subprocess.run([tool, "build", "--strict"], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def pages_in(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_in(value)


def test_every_page_is_in_the_navigation_once(built):
    named = list(pages_in(yaml.safe_load((built / "mkdocs.yml").read_text())["nav"]))
    docs = built / "build" / "docs"
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    assert sorted(named) == sorted(path for path in there if not path.startswith("source/"))


def test_every_link_leads_to_a_file_of_the_site(built):
    site = built / "site"
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links start at the root of a server
            continue
        links = Links()
        links.feed(page.read_text())
        for tag, link in links.found:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert tag == "a", f"{page.relative_to(site)} loads {link}"
            elif parts.path:
                assert (page.parent / unquote(parts.path)).exists(), f"{page.relative_to(site)} links to {link}"


def test_files_outside_docs_come_along_as_pages(built):
    page = (built / "site" / "add-a-method.html").read_text()
    assert 'href="source/src/pencil/methods/elr.py.html"' in page
    assert "early-learning" in (built / "site/source/src/pencil/methods/elr.py.html").read_text().lower()


def test_a_broken_link_stops_the_build(built, tmp_path):
    shutil.copytree(built / "build", tmp_path / "build")
    shutil.copy(built / "mkdocs.yml", tmp_path)
    with (tmp_path / "build/docs/data.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    tool = Path(sys.executable).parent / "zensical"
    assert subprocess.run([tool, "build", "--strict"], cwd=tmp_path, capture_output=True).returncode != 0


def test_the_method_of_the_guide_works_by_the_name_of_its_file(tmp_path):
    guide = (ROOT / "docs" / "add-a-method.md").read_text()
    code = re.search(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "vote.py").write_text(code)
    words = ("--method", "vote.py:Vote", "--set", "method.keep=0.8", "--set", "data.rows=200", "--epochs", "4")
    pencil("train", "digits", *words, "--out", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "labels.parquet").exists()
