"""A run that somebody else sent makes no contact with the network and creates no folder."""

import shutil
import socket
from pathlib import Path

import pytest
from commands import pencil
from received import make_home

from pencil.data.datasets import small
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import DataError
from pencil.review.session import Review

SOURCES = {
    "hub": 'source = "hf/some/name"',
    "hub with options": 'source = "hf/some/name"\noptions = { split = "train" }',
    "test set of the hub": 'source = "data.npz"\ntest = "hf/some/name"',
    "fashion_mnist": 'source = "fashion_mnist"\nroot = "nowhere"',
    "cifar10": 'source = "cifar10"\nroot = "nowhere/deep"',
    "cifar100": 'source = "cifar100"',
    "asks for it": 'source = "cifar10"\nroot = "nowhere"\noptions = { download = true }',
    "canvases": 'source = "canvases"\nroot = "nowhere"\noptions = { items = "fashion_mnist" }',
    "clothing1m": 'source = "clothing1m"\nroot = "nowhere"',
    "cached": 'source = "data.npz"\ncache = "nowhere"',
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return make_home(tmp_path_factory.mktemp("received"))


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """Every contact is refused and counted; the home directory is an empty folder."""
    found = []

    def refuse(*arguments, **_options):
        found.append(arguments)
        raise OSError("there is no network here")

    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(small, "DEBIAN_FASHION_MNIST", tmp_path / "none")  # which may be installed
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return found


@pytest.fixture(params=SOURCES)
def home(request, prepared, tmp_path):
    """The run with another source of data in its recipe."""
    folder = Path(shutil.copytree(prepared, tmp_path / "home"))
    text = (folder / "run" / "recipe.toml").read_text()
    head, _, rest = text.partition("[data]\n")
    rest = rest[rest.index("\n[") :]
    tables = [part for part in rest.split("\n[") if part and not part.startswith("data")]
    section = f"[data]\n{SOURCES[request.param]}\n"
    (folder / "run" / "recipe.toml").write_text(head + section + "".join(f"\n[{part}" for part in tables))
    return folder


def folders(home):
    return sorted(path for path in home.parent.rglob("*") if path.is_dir())


def test_reports_contact_nobody_and_make_no_folder(home, attempts):
    before = folders(home)
    pencil("report", "run", cwd=home)
    page = (home / "run" / "report.html").read_text()
    assert attempts == [] and folders(home) == before
    if 'cache = "nowhere"' not in (home / "run" / "recipe.toml").read_text():
        assert "The data could not be loaded" in page


def test_reviews_contact_nobody_and_make_no_folder(home, attempts, monkeypatch):
    before = folders(home)
    monkeypatch.chdir(home)
    with Review(Path("run")) as review:
        review.details.neighbours.wait()  # which loads the data too
    pictures = review.pictures
    assert attempts == [] and folders(home) == before
    assert pictures.state.kind == ("numbers" if "cache" in (home / "run" / "recipe.toml").read_text() else "none")


def test_labels_contact_nobody_and_make_no_folder(home, attempts):
    before = folders(home)
    pencil("labels", "run", cwd=home)
    for words in (["--with-columns"], ["--format", "imagefolder", "--out", "sorted"]):
        pencil("labels", "run", *words, cwd=home, code=2)
    assert attempts == [] and folders(home) == before


def test_exports_and_predictions_contact_nobody_and_make_no_folder(home, attempts):
    before = folders(home)
    pencil("predict", "run", "new.npy", "--trust", cwd=home)
    pencil("export", "run", "--trust", "--format", "safetensors", "--out", "net.safetensors", cwd=home)
    assert attempts == [] and [path for path in folders(home) if path.name != "__pycache__"] == before


def test_evaluating_needs_trust_to_download(home, attempts):
    pencil("evaluate", "run", cwd=home, code=2)
    assert attempts == []


def test_why_there_are_no_pictures(tmp_path):
    for settings, reason in (
        (
            {"source": "hf/some/name"},
            "'hf/some/name' is not a saved folder on this machine, and downloads are disabled",
        ),
        ({"source": "cifar10", "root": tmp_path / "none"}, "CIFAR-10 .* is not in .*none, and downloads are disabled"),
    ):
        with pytest.raises(DataError, match=reason):
            load(DataSettings(**settings), local=True)


def test_code_of_a_hub_dataset_is_refused():
    options = {"trust_remote_code": True}
    with pytest.raises(DataError, match="trust_remote_code, which runs code of the dataset"):
        load(DataSettings(source="hf/some/name", options=options))
