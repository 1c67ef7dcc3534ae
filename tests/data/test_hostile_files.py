"""Folders and tables that others made: pipes, devices, links, names that are not UTF-8, paths that are too long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import pencil
from conftest import paint
from readers import from_folder, from_table, read_table

from pencil import DataError, PencilError, RunError
from pencil.bench.spec import read_spec
from pencil.data.read import load, read_inputs
from pencil.data.settings import DataSettings
from pencil.data.sources.regular_files import kind_of, read_regular
from pencil.files import refuse_path
from pencil.recipe.trees import find as find_recipe

SMALL = ("--model", "mlp", "--epochs", "1", "--method", "cross_entropy", "--set", "data.workers=0")
TIMEOUT = 60


def first_image(examples):
    return list(examples.inputs.batches([torch.arange(len(examples))]))


def faults(examples):
    return [fault.reason for found in examples.inputs.inspect([torch.arange(len(examples))]) for fault in
            [row.fault for row in found] if fault is not None]  # fmt: skip


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "link to a device", "folder link"])
def test_what_is_no_regular_file_is_named_and_never_waited_for(pets, tmp_path, kind):
    path = pets / "cat/odd.jpg"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # zeros without end
        except PermissionError:
            pytest.skip("making a device needs root")
    elif kind == "socket":
        import socket

        os.chdir(path.parent)  # the path of a socket is short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    else:
        path.symlink_to("/dev/zero" if kind == "link to a device" else pets / "dog")
    if kind == "folder link":  # it is a folder, and folder links inside a class are not followed
        assert len(from_folder(pets).train) == 20
        return
    examples = from_folder(pets).train
    (reason,) = faults(examples)
    assert "not a regular file" in reason or "leads out of" in reason
    with pytest.raises(
        DataError, match=r"1 of 21 images cannot be read: 'cat/odd.jpg' \(row \d+\): it is .*settings={.data.bad_rows"
    ):
        first_image(examples)


def test_every_kind_has_a_name(tmp_path):
    assert kind_of(tmp_path.stat().st_mode) == "a folder" and kind_of(Path("/dev/null").stat().st_mode) == "a device"
    with pytest.raises(OSError, match="it is a folder, not a regular file"):
        read_regular(tmp_path)
    with (tmp_path / "large").open("wb") as large:
        large.truncate(2**31)  # takes no room on the disk
    with pytest.raises(OSError, match=r"it has 2,147,483,648 bytes; expected at most 1,073,741,824"):
        read_regular(tmp_path / "large")


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.filterwarnings("default:image")
def test_the_commands_name_a_pipe_or_skip_it(pets, tmp_path):
    os.mkfifo(pets / "cat/pipe.png")
    done = pencil("check", pets, *SMALL, cwd=tmp_path, code=2)
    assert "pipe.png: it is a named pipe, not a regular file" in done.stdout
    assert "1 of 20" in done.stderr or "cat/pipe.png" in done.stderr
    refused = pencil("train", pets, *SMALL, "--out", "run", cwd=tmp_path, code=2).stderr
    assert "'cat/pipe.png'" in refused and not (tmp_path / "run").exists()
    done = pencil("train", pets, *SMALL, "--set", "data.bad_rows=skip", "--out", "run", cwd=tmp_path)
    assert "pipe.png" in done.stderr and "the row is skipped" in done.stderr


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("where", ["file", "class folder"])
def test_links_out_of_the_folder_are_refused_unless_data_root_holds_both(pets, tmp_path, where):
    secret = paint(tmp_path / "elsewhere/secret.png", 5)
    if where == "file":
        (pets / "cat/link.png").symlink_to(secret)
    else:
        (pets / "fish").symlink_to(secret.parent)
    with pytest.raises(DataError, match=r"behind a link that leads out of .*pets \(copy the file into the folder"):
        first_image(load(DataSettings(source=str(pets))).train)
    allowed = load(DataSettings(source=str(pets), root=tmp_path)).train
    assert len(first_image(allowed)[0].values) == 21
    with pytest.raises(DataError, match="behind a link"):
        first_image(load(DataSettings(source=str(pets), root=tmp_path / "pets/dog")).train)


def test_data_root_is_never_proposed_to_be_all_of_the_machine(pets):
    (pets / "cat/link.png").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match=r"behind a link .*data.root\W+/etc\W"):
        first_image(load(DataSettings(source=str(pets))).train)


def test_links_inside_the_folder_and_a_linked_folder_work(pets, tmp_path):
    (pets / "cat/again.png").symlink_to("../dog/3.png")
    (tmp_path / "alias").symlink_to(pets)
    assert len(first_image(from_folder(tmp_path / "alias").train)[0].values) == 21
    inputs, _ = read_inputs([tmp_path / "alias"], DataSettings())
    assert len(next(inputs.batches([torch.arange(len(inputs))])).values) == 21


def test_link_loops_are_named(pets):
    (pets / "cat/loop.png").symlink_to("loop.png")
    assert any("symbolic links" in reason for reason in faults(from_folder(pets).train))
    (pets / "loop").symlink_to("loop")
    with pytest.raises(DataError, match=r"cannot read the folder .*loop: Too many levels of symbolic links"):
        from_folder(pets)


def test_tables_read_no_link_out_of_their_folder(pets, tmp_path):
    (pets / "cat/link.png").symlink_to(paint(tmp_path / "elsewhere/secret.png", 5))
    (pets / "away").symlink_to(tmp_path / "elsewhere")
    (pets / "t.csv").write_text("path,label\ncat/link.png,a\naway/secret.png,b\ncat/1.png,a\n")
    found = from_table(pets / "t.csv").train
    assert [("leads out of" in reason) for reason in faults(found)] == [True, True]
    with pytest.raises(DataError, match=r"2 of 3 images cannot be read: 'cat/link.png' \(row 0\): it is behind a link"):
        first_image(found)
    whole = tmp_path / "t.csv"
    whole.write_text("path,label\npets/cat/link.png,a\npets/away/secret.png,b\n")
    assert faults(from_table(whole).train) == []


@pytest.mark.timeout(TIMEOUT)
def test_images_and_folders_to_predict_are_read_as_carefully(pets, tmp_path):
    secret = paint(tmp_path / "elsewhere/secret.png", 5)
    (pets / "cat/link.png").symlink_to(secret)
    (tmp_path / "mine.png").symlink_to(paint(tmp_path / "elsewhere/mine.png", 6))
    os.mkfifo(pets / "dog/pipe.png")
    os.mkfifo(tmp_path / "t.csv")
    inputs, keys = read_inputs([pets, tmp_path / "mine.png"], DataSettings())
    found = [row.fault for part in inputs.inspect([torch.arange(len(keys))]) for row in part if row.fault]
    assert {fault.name.rpartition("/")[2] for fault in found} == {"link.png", "pipe.png"}  # mine.png was named
    with pytest.raises(DataError, match="is not a regular file"):
        read_table(tmp_path / "t.csv")


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("r.toml", find_recipe),
        ("r.toml", read_spec),
        ("a.tar", lambda path: read_inputs([Path(path)], DataSettings())),
    ],
)
def test_nothing_waits_for_a_pipe(tmp_path, name, read):
    os.mkfifo(tmp_path / name)
    with pytest.raises(PencilError, match="it is a pipe, a socket or a device; expected a file"):
        read(str(tmp_path / name))


def test_names_that_are_not_utf8_are_refused(pets, tmp_path):
    odd = os.fsencode(pets / "cat") + b"/caf\xe9.png"
    (pets / "cat/1.png").rename(os.fsdecode(odd))
    message = r"the file name '.*cat/caf\\xe9.png' is not UTF-8; expected UTF-8 names.*rename the file"
    with pytest.raises(DataError, match=message):
        from_folder(pets)
    with pytest.raises(DataError, match=message):
        read_inputs([pets], DataSettings())
    with pytest.raises(DataError, match=message):
        read_inputs([pets / "dog", pets / os.fsdecode(b"cat/caf\xe9.png")], DataSettings())
    os.rename(odd, pets / "cat/1.png")  # noqa: PTH104 - bytes
    os.rename(pets / "dog", os.fsencode(pets) + b"/d\xf6g")  # noqa: PTH104
    with pytest.raises(DataError, match=r"d\\xf6g' is not UTF-8"):
        from_folder(pets)


def test_names_that_are_not_utf8_on_the_command_line(pets, tmp_path):
    (pets / os.fsdecode(b"caf\xe9")).mkdir()
    command = [sys.executable, "-m", "pencil", "check"]
    done = subprocess.run([*command, os.fsencode(pets) + b"/caf\xe9"], capture_output=True, cwd=tmp_path)
    assert (
        done.returncode == 2
        and done.stderr.count(b"\n") == 1
        and rb"caf\\xe9' is not UTF-8" in done.stderr.replace(rb"caf\xe9", rb"caf\\xe9")
    )


@pytest.mark.parametrize("name", ["a" * 300, "b" * 300 + "/c", "missing/" + "d" * 300, "e/" * 2500])
def test_an_over_long_out_is_one_line_before_anything_is_read(tmp_path, name):
    done = pencil("train", "digits", *SMALL, "--out", name, cwd=tmp_path, code=2)
    assert done.stderr.count("\n") == 1 and "File name too long" in done.stderr
    assert not list(tmp_path.iterdir())
    resumed = pencil("train", "digits", *SMALL, "--out", name, "--resume", cwd=tmp_path, code=2)
    assert "File name too long" in resumed.stderr


@pytest.mark.parametrize("name", ["a" * 300, "x" * 5000, "~nobody-of-this-name/x", "b" * 300 + ".npz"])
def test_over_long_and_impossible_sources_are_one_line(tmp_path, name):
    for words in (("check", name), ("train", name), ("evaluate", name), ("predict", name, "x.npz")):
        done = pencil(*words, cwd=tmp_path, code=2)
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_paths_that_cannot_be_written(tmp_path):
    refuse_path(tmp_path / "fine")
    for name in ("nul\0", os.fsdecode(b"caf\xe9")):
        with pytest.raises(RunError, match="is not UTF-8 text; choose another name"):
            refuse_path(tmp_path / name)


def test_folders_that_cannot_be_read_are_named(pets, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith(("cat", "inner")):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot read the folder .*pets/cat: Permission denied"):
        from_folder(pets)
    (pets / "dog/inner").mkdir()
    with pytest.raises(DataError, match=r"cannot read the folder .*dog/inner: Permission denied"):
        read_inputs([pets / "dog"], DataSettings())
