"""Files are complete or absent, whatever happens while they are written; and nested tables are flattened in one way."""

import doctest
import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import pencil.recipe.trees
from pencil import files
from pencil.errors import ModelError, RunError
from pencil.files import atomic_write, clear_temporaries, digest, write, write_json, write_text
from pencil.runs.directory import _save_weights


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_when_the_block_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old" and temporary.parent == tmp_path and temporary.suffix == ".txt"
    assert path.read_text() == "new" and names(tmp_path) == ["a.txt"]
    write_text(path, "ü")
    assert path.read_bytes() == "ü".encode() and len(digest(path)) == 64
    write_json(path, {"a": 1}, indent=None)
    assert path.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), ModelError("ours"), OSError(errno.ENOSPC, "full")]
)
def test_an_error_leaves_nothing(tmp_path, folder, error):
    expected = RunError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected), atomic_write(tmp_path / "a", folder=folder) as temporary:
        (temporary / "inside" if folder else temporary).write_text("half")
        raise error
    assert names(tmp_path) == []


def test_what_was_there_survives_a_full_disk(tmp_path, monkeypatch):
    write_text(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(RunError, match=r"cannot write .*a: No space left on device; the previous file.*unchanged"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("folder", [False, True])
def test_new_files_and_folders_overwrite_nothing(tmp_path, folder):
    path = tmp_path / "a"
    with atomic_write(path, folder=folder, new=True):
        pass
    assert path.is_dir() == folder
    kind = "folder" if folder else "file"
    with (
        pytest.raises(RunError, match=f"it already exists; name a new {kind} in an existing folder"),
        atomic_write(path, folder=folder, new=True),
    ):
        pytest.fail("the block ran")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunError, match="it already exists"), atomic_write(tmp_path / "link", new=True):
        pytest.fail("the block ran")
    with pytest.raises(RunError, match="No such file"), atomic_write(tmp_path / "no" / "a", new=True):
        pytest.fail("the block ran")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no hard links here")))
        with atomic_write(tmp_path / "a", new=True) as temporary:
            temporary.write_text("mine")
        assert (tmp_path / "a").read_text() == "mine" and names(tmp_path) == ["a"]
        return
    with pytest.raises(RunError, match="it already exists"), atomic_write(tmp_path / "a", new=True) as temporary:
        temporary.write_text("mine")
        (tmp_path / "a").write_text("theirs")
    assert (tmp_path / "a").read_text() == "theirs" and names(tmp_path) == ["a"]


def test_a_reader_never_sees_a_part(tmp_path):
    path, done, seen = tmp_path / "a", threading.Event(), set()
    write_text(path, "0" * 10_000)

    def read():
        while not done.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        write_text(path, str(number % 10) * 10_000)
    done.set()
    reader.join()
    assert all(len(text) == 10_000 and len(set(text)) == 1 for text in seen)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_permissions_of_the_users_umask(tmp_path, umask):
    """safetensors makes files that only their owner may read."""
    before = os.umask(umask)
    try:
        write(tmp_path / "model.safetensors", lambda target: _save_weights({"w": torch.ones(2)}, target))
        write_text(tmp_path / "a.json", "{}")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~umask}


def left_by(pid, name="a.npz", machine=None, number=0):
    """The name of a temporary file of a process."""
    return f".{name}.{pid}-{files._machine() if machine is None else machine}-{number}{Path(name).suffix}"


@pytest.fixture
def dead():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_temporary_files_of_killed_processes_are_cleared_by_the_next_writer(tmp_path, dead):
    (tmp_path / left_by(dead)).write_text("half")
    (tmp_path / left_by(dead, "other.csv", number=12)).write_text("half")
    (tmp_path / left_by(dead, "folder")).mkdir()
    (tmp_path / left_by(dead, "folder") / "inside").write_text("half")
    (tmp_path / left_by(os.getpid(), number=10**6)).write_text("of one that had our number")
    with atomic_write(tmp_path / "a.npz", new=True) as temporary, temporary.open("wb") as stream:
        np.savez(stream, x=np.ones(2))
    assert names(tmp_path) == ["a.npz"]


def test_other_files_are_never_cleared(tmp_path, dead):
    """Those of living processes, of other machines, and everything that only looks alike."""
    kept = [
        left_by(os.getppid()),
        left_by(dead, machine="0" * 8 if files._machine() != "0" * 8 else "1" * 8),
        left_by(dead).removeprefix("."),
        f".a.npz.{dead}.npz",
        f".a.npz.{dead}-{files._machine()}.npz",
        f".a.npz.{dead}-{files._machine()}-x.npz",
        f".a.npz.0-{files._machine()}-0.npz",
        f".a.npz.9999999999-{files._machine()}-0.npz",
        ".2024-01-02.csv",
        ".hidden",
    ]
    for name in kept:
        (tmp_path / name).write_text("mine")
    (tmp_path / left_by(dead, "link")).symlink_to(tmp_path.parent)  # the link goes, what it leads to stays
    clear_temporaries(tmp_path)
    assert names(tmp_path) == sorted(kept) and tmp_path.parent.is_dir()
    clear_temporaries(tmp_path / "missing")


def test_a_writer_does_not_clear_its_own_other_files(tmp_path):
    with atomic_write(tmp_path / "a") as outer, atomic_write(tmp_path / "a") as inner:
        assert outer != inner and outer.exists() and inner.exists()
        outer.write_text("outer")
        inner.write_text("inner")
    assert (tmp_path / "a").read_text() == "outer" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127, "a." + "b" * 253, "a."])
def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path, name):
    write_text(tmp_path / name, "x")
    assert names(tmp_path) == [name]


def test_tables_are_flattened():
    assert doctest.testmod(pencil.recipe.trees).attempted == 1
    assert doctest.testmod(pencil.recipe.trees).failed == 0
    assert pencil.recipe.trees.flatten({"a": {"b": None}, "c": 1}, separator=", ") == {"a, b": None, "c": 1}


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("folder", [False, True])
def test_the_folder_is_flushed_after_the_rename(tmp_path, monkeypatch, new, folder):
    """Else a power cut takes the name of a file that was said to be written."""
    seen, fsync = [], os.fsync

    def flush(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            assert os.path.samestat(os.fstat(descriptor), tmp_path.stat())
            seen.append(names(tmp_path))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush)
    with atomic_write(tmp_path / "a", new=new, folder=folder):
        assert seen == []
    assert seen == [["a"]]


def test_a_folder_that_cannot_be_flushed_is_an_error_only_where_others_can(tmp_path, monkeypatch):
    fsync = os.fsync

    def fail_with(number):
        def flush(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", flush)

    fail_with(errno.EINVAL)  # as on some network file systems
    write_text(tmp_path / "a", "new")
    fail_with(errno.EIO)
    with pytest.raises(
        RunError, match=r"a is written, but a power cut may lose it: .*Input/output error; check the disk"
    ):
        write_text(tmp_path / "a", "newer")
    assert (tmp_path / "a").read_text() == "newer" and names(tmp_path) == ["a"]
