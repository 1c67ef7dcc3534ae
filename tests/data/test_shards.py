"""Folders of tar and Parquet files: rows by shard and name, images read from their place, damage named."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from commands import pencil as run_command
from PIL import Image
from pyarrow import parquet
from ranks import in_ranks

import pencil
from pencil import recipe
from pencil.data.read import load, read_inputs
from pencil.data.settings import DataSettings
from pencil.data.sources.parquet_shards import ParquetIndex
from pencil.data.sources.shards import find_shards
from pencil.data.sources.tar_shards import TarIndex
from pencil.errors import DataError, DataWarning, Stopped
from pencil.job import run_recipe
from pencil.training.checkpointing import Checkpointer


def picture(seed, bright=False, size=(12, 12)):
    pixels = np.random.default_rng(seed).integers(0, 128, (*size, 3), dtype=np.uint8) + np.uint8(127 * bright)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(first, count, label="cls"):
    """Members of some samples: even numbers are bright."""
    for number in range(first, first + count):
        yield f"{number:04}.png", picture(number, number % 2 == 0)
        name = "light" if number % 2 == 0 else "dark"
        if label == "json":
            yield f"{number:04}.json", json.dumps({"label": name, "clean": name, "more": [1, 2]}).encode()
        elif label == "cls":
            yield f"{number:04}.cls", str(number % 2).encode()


def write_parquet(path, first, count, group=4, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + count)
    columns = {
        "image": [{"bytes": picture(number, number % 2 == 0), "path": None} for number in numbers],
        "label": ["light" if number % 2 == 0 else "dark" for number in numbers],
        **{name: [value] * count for name, value in more.items()},
    }
    parquet.write_table(pa.table(columns), path, row_group_size=group)
    return path


@pytest.fixture(params=["tar", "parquet"])
def folder(request, tmp_path):
    """Three shards of 16 samples."""
    for number in range(3):
        path = tmp_path / f"data/shard-{number:05}.{request.param}"
        if request.param == "tar":
            write_tar(path, samples(16 * number, 16, "json"))
        else:
            write_parquet(path, 16 * number, 16)
    return tmp_path / "data"


def settings(folder, **more):
    return DataSettings(source=str(folder), workers=0, **more)


def test_rows_are_named_by_shard_and_read_from_their_place(folder):
    train = load(settings(folder)).train
    tar = (folder / "shard-00000.tar").exists()
    assert len(train) == 48 and train.classes == ("dark", "light")
    assert train.keys[17] == ("shard-00001.tar/0017.png" if tar else "shard-00001.parquet/1")
    assert train.given_labels.tolist() == [1, 0] * 24
    for row in (47, 0, 17, 16, 31):
        assert train.inputs.encoded.read(row) == picture(row, row % 2 == 0)


def test_predicting_needs_no_labels(folder, tmp_path):
    inputs, keys = read_inputs([folder], settings(folder, columns={"label": "label"}))
    assert len(inputs) == len(keys) == 48
    only = write_tar(tmp_path / "new/only.tar", samples(0, 4, label=None))
    for path in (only, only.parent):
        inputs, keys = read_inputs([path], settings(path))
        assert keys == [f"only.tar/{number:04}.png" for number in range(4)]
        assert inputs.encoded.read(3) == picture(3)


def test_one_tar_file_and_whole_numbers(tmp_path):
    train = load(settings(write_tar(tmp_path / "one.tar", samples(0, 6)))).train
    assert train.classes == ("0", "1") and train.given_labels.tolist() == [0, 1] * 3
    named = load(settings(tmp_path / "one.tar", classes=("light", "dark"))).train
    assert named.classes == ("light", "dark") and named.given_labels.tolist() == [0, 1] * 3


def test_splits_by_folder_name_file_name_or_column(tmp_path):
    for name in ("a/train/0.tar", "a/val/0.tar", "b/train-0-of-1.tar", "b/validation-0-of-1.tar"):
        write_tar(tmp_path / name, samples(0, 4, "json"))
    for name in ("a", "b"):
        assert load(settings(tmp_path / name)).sizes() == {"train": 4, "validation": 4}
    for number, split in enumerate(("train", "test")):
        write_parquet(tmp_path / f"c/{number}.parquet", 4 * number, 4, part=split)
    assert load(settings(tmp_path / "c", columns={"split": "part"})).sizes() == {"train": 4, "test": 4}


def test_clean_labels_and_keys_come_from_fields(tmp_path):
    write_tar(tmp_path / "d/0.tar", [*samples(0, 4, "json")])
    train = load(settings(tmp_path / "d", columns={"clean": "clean"})).train
    assert torch.equal(train.clean_labels, train.given_labels)
    write_parquet(tmp_path / "e/0.parquet", 0, 1, name="first")
    assert load(settings(tmp_path / "e", columns={"key": "name"})).train.keys.tolist() == ["first"]


def test_a_sample_without_label_is_unlabelled(tmp_path):
    members = [
        *samples(0, 4),
        ("0009.png", picture(9)),
        ("README", b"no sample"),
        ("0010.png", picture(10)),
        ("0010.cls", b""),
    ]
    splits = load(settings(write_tar(tmp_path / "one.tar", members)))
    assert splits.sizes() == {"train": 4, "unlabelled": 2}
    write_tar(tmp_path / "none.tar", samples(0, 4, label=None))
    with pytest.raises(DataError, match=r"none.tar has no labels; expected NAME.cls, or NAME.json with the field"):
        load(settings(tmp_path / "none.tar"))


def test_bad_samples_are_all_named_or_left_out(tmp_path):
    members = [*samples(0, 4), ("0005.cls", b"1"), ("0006.png", picture(6)), ("0006.json", b"{"), ("0006.cls", b"0")]
    path = write_tar(
        tmp_path / "one.tar", [*members, ("0007.png", picture(7)), ("0007.jpg", picture(7)), ("0007.cls", b"1")]
    )
    with pytest.raises(DataError) as found:
        load(settings(path))
    assert "has 3 bad rows of 7" in str(found.value) and 'settings={"data.bad_rows": "skip"}' in str(found.value)
    for reason in (
        "there is no image beside its label",
        "'0006.json' cannot be read as JSON",
        "a second image, '0007.jpg'",
    ):
        assert reason in str(found.value)
    with pytest.warns(DataWarning, match="3 bad rows of 7.*skipped"):
        assert len(load(settings(path, bad_rows="skip")).train) == 4


@pytest.mark.parametrize(
    ("cut", "left"), [("in an image", 2), ("in a label", 2), ("before a label", 2), ("garbage", 1), ("between two", 1)]
)
def test_a_damaged_tar_is_refused_or_used_up_to_the_damage(cut, left, tmp_path):
    """A sample that may go on behind the damage is not used: its label may be missing."""
    path = write_tar(tmp_path / "data/0.tar", samples(0, 6))
    content = path.read_bytes()
    with tarfile.open(path) as tar:
        third = tar.getmember("0002.cls" if "label" in cut else "0002.png")
    end = third.offset_data + (0 if "label" in cut else 100) if cut.startswith("in") else third.offset
    path.write_bytes(content[:end] + (b"x" * 2000 if cut == "garbage" else b""))
    with pytest.raises(DataError, match=r"0.tar is damaged: .*; expected an uncompressed tar file; copy it again, or "):
        load(settings(path.parent))
    with pytest.warns(DataWarning, match=f"is damaged: .*its first {left} rows are used"):
        assert load(settings(path.parent, bad_rows="skip")).sizes() == {"train": left}


def test_a_damaged_or_different_parquet_file(tmp_path):
    write_parquet(tmp_path / "data/0.parquet", 0, 8)
    damaged = write_parquet(tmp_path / "data/1.parquet", 8, 8)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"1.parquet is damaged: .*; expected a Parquet file"):
        load(settings(damaged.parent))
    with pytest.warns(DataWarning, match=r"1.parquet is damaged"):
        assert len(load(settings(damaged.parent, bad_rows="skip")).train) == 8
    parquet.write_table(pa.table({"other": [1]}), damaged)
    with pytest.raises(DataError, match=r"1.parquet has no column 'label'"):
        load(settings(damaged.parent, columns={"label": "label"}))


def test_an_unreadable_image_is_named_by_its_member(tmp_path):
    path = write_tar(tmp_path / "one.tar", [*samples(0, 40), ("bad.png", b"no image"), ("bad.cls", b"0")])
    done = run_command("check", path, cwd=tmp_path, code=2)
    assert "one.tar/bad.png" in done.stdout + done.stderr


def test_tables_in_several_files_are_one_table(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(2):
        columns = {"size": rng.normal(size=8), "colour": ["red", "blue"] * 4, "label": ["a", "b"] * 4}
        path = tmp_path / f"data/{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(pa.table(columns), path)
    train = load(settings(path.parent)).train
    assert train.inputs.records is not None and train.keys[9] == "1.parquet/1"
    assert read_inputs([path.parent], settings(path.parent))[1][15] == "1.parquet/7"


def test_what_is_no_folder_of_shards(tmp_path, pets):
    parquet.write_table(pa.table({"x": [1]}), pets / "notes.parquet")
    assert find_shards(pets) == [] and len(load(settings(pets)).train) == 20
    write_tar(tmp_path / "both/0.tar", samples(0, 2))
    write_parquet(tmp_path / "both/0.parquet", 0, 2)
    with pytest.raises(DataError, match=r"has .tar and .parquet files"):
        find_shards(tmp_path / "both")
    (tmp_path / "both/0.parquet").unlink()
    (tmp_path / "both/cover.png").write_bytes(picture(0))
    assert find_shards(tmp_path / "both") == []


def test_links_out_of_the_folder_are_refused_unless_root_allows_them(tmp_path):
    write_tar(tmp_path / "elsewhere/0.tar", samples(0, 4))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/0.tar").symlink_to(tmp_path / "elsewhere/0.tar")
    with pytest.raises(DataError, match=r"is behind a link that leads out of .*data.root"):
        load(settings(tmp_path / "data"))
    assert len(load(settings(tmp_path / "data", root=tmp_path)).train) == 4


def test_a_shard_that_changes_while_it_is_read(tmp_path):
    path = write_tar(tmp_path / "one.tar", samples(0, 4))
    encoded = load(settings(path)).train.inputs.encoded
    size, version = path.stat().st_size, encoded.version(2)
    write_tar(path, samples(4, 4))
    os.utime(path, (1, 1))
    assert path.stat().st_size == size and encoded.version(2) == version
    with pytest.raises(ValueError, match=r"one.tar has changed since it was opened"):
        encoded.read(2)
    path = write_parquet(tmp_path / "data/0.parquet", 0, 4)
    encoded = load(settings(path.parent)).train.inputs.encoded
    write_parquet(path, 4, 4)
    os.utime(path, (1, 1))
    with pytest.raises(ValueError, match=r"0.parquet has changed since it was opened"):
        encoded.read(2)


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_shard_that_changes_while_it_is_indexed(kind, tmp_path, monkeypatch):
    path = tmp_path / f"data/0.{kind}"
    write_tar(path, samples(0, 4)) if kind == "tar" else write_parquet(path, 0, 4)
    index = TarIndex if kind == "tar" else ParquetIndex
    add = index.add

    def then_changed(self, shard):
        add(self, shard)
        os.utime(path, (1, 1))

    monkeypatch.setattr(index, "add", then_changed)
    with pytest.raises(ValueError, match="has changed since it was opened"):
        load(settings(path.parent)).train.inputs.encoded.read(2)


# ---- names, splits and places of shards


def test_a_shard_without_a_split_beside_others_is_refused(tmp_path):
    for number, name in enumerate(("train-0", "test-0", "unsupervised-0")):
        write_parquet(tmp_path / f"data/{name}.parquet", 4 * number, 4, part="train")
    with pytest.raises(DataError, match=r"'test-0.parquet' in .* begins with a split, but 'unsupervised-0"):
        load(settings(tmp_path / "data"))
    assert load(settings(tmp_path / "data", columns={"split": "part"})).sizes() == {"train": 12}
    assert len(read_inputs([tmp_path / "data"], settings(tmp_path / "data"))[0]) == 12


def test_shards_in_another_place_are_named(tmp_path):
    write_parquet(tmp_path / "repo/data/0.parquet", 0, 4)
    with pytest.raises(DataError, match=r"there are shards in data/; use that folder: .*repo/data"):
        load(settings(tmp_path / "repo"))
    (tmp_path / "repo/data/logs").mkdir()
    for read in (load, lambda found: read_inputs([tmp_path / "repo/data"], found)):
        with pytest.raises(DataError, match=r"has shards, such as '0.parquet', beside the folder 'logs'.*move it away"):
            read(settings(tmp_path / "repo/data"))
    packed = tmp_path / "packed/0.tar.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(write_tar(tmp_path / "one.tar", samples(0, 4)).read_bytes()))
    with pytest.raises(DataError, match=r"has compressed tar files, such as '0.tar.gz'; .*decompress them"):
        load(settings(packed.parent))
    packed.rename(tmp_path / "packed.tar")
    with pytest.raises(
        DataError, match=r"is compressed; expected an uncompressed tar file; decompress it, or skip its"
    ):
        load(settings(tmp_path / "packed.tar"))


def test_one_file_that_is_named_may_be_a_link(tmp_path):
    write_tar(tmp_path / "elsewhere/0.tar", samples(0, 4))
    (tmp_path / "here").mkdir()
    (tmp_path / "here/0.tar").symlink_to(tmp_path / "elsewhere/0.tar")
    assert len(load(settings(tmp_path / "here/0.tar")).train) == 4


# ---- tar files that others have made


def header(name, size, kind=tarfile.REGTYPE, pax=b""):
    """A header with any size in base 256, and further headers before it."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = b"\xff" + (size % 256**11).to_bytes(11, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    before = b""
    if pax:
        before = header("pax", len(pax), tarfile.XHDTYPE) + pax.ljust(512, b"\0")
    return before + bytes(block)


def pax_record(keyword, value):
    text = f" {keyword}={value}\n"
    length = len(text) + len(str(len(text) + 2))
    return f"{length}{text}".encode()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (header("0002.png", -512), "'0002.png' has an impossible size"),
        (header("0002.png", 0, pax=pax_record("size", "-512")), "'0002.png' has an impossible size"),
        (header("long", 2**62, tarfile.GNUTYPE_LONGNAME), "'long' has an impossible size"),
        (header("long", 2**70, tarfile.GNUTYPE_LONGNAME), "'long' has an impossible size"),
        (header("long", -1024, tarfile.GNUTYPE_LONGNAME), "'long' has an impossible size"),
        (header("pax", 2**40, tarfile.XHDTYPE), "'pax' has an impossible size"),
        (header("0002.png", 2**70), "'0002.png' is truncated"),
        (header("0002.png", 0, pax=pax_record("GNU.sparse.map", "1,x")), "a header cannot be read: ValueError"),
        (header("name", 512, tarfile.GNUTYPE_LONGNAME).ljust(1024, b"x") * 2000, "a header cannot be read: Recursion"),
    ],
)
@pytest.mark.parametrize("first", [0, 2])
def test_headers_that_make_no_sense(damage, reason, first, tmp_path):
    path = write_tar(tmp_path / "0.tar", samples(0, 4))
    with tarfile.open(path) as tar:
        start = tar.getmember(f"{first:04}.png").offset
    path.write_bytes(path.read_bytes()[:start] + damage + bytes(1024))
    with pytest.raises(DataError, match=rf"0.tar is damaged: {reason}.*skip its damaged rows with .*bad_rows"):
        load(settings(path))


def test_members_of_no_sample_do_not_part_a_sample(tmp_path):
    between = [("._0.png", b"resource"), ("README", b"text"), (".hidden", b"")]
    members = [*samples(0, 2), ("0002.png", picture(2)), *between, ("0002.cls", b"0")]
    train = load(settings(write_tar(tmp_path / "0.tar", members))).train
    assert train.keys.tolist() == [f"0.tar/{number:04}.png" for number in range(3)]
    assert train.given_labels.tolist() == [0, 1, 0]


def labelled(tmp_path, *labels, suffix="json"):
    """One shard whose samples have these labels, as JSON or as text."""
    members = [
        member
        for number, label in enumerate(labels)
        for member in (
            (f"{number}.png", picture(number)),
            (f"{number}.{suffix}", label.encode() if suffix == "cls" else json.dumps(label).encode()),
        )
    ]
    return write_tar(tmp_path / "0.tar", members)


def test_keys_and_classes_are_as_they_are_written(tmp_path):
    path = labelled(tmp_path, {"label": "3", "id": "0001", "part": "train"}, {"label": "4", "id": "2", "part": "train"})
    train = load(settings(path, columns={"key": "id", "split": "part"})).train
    assert train.keys.tolist() == ["0001", "2"] and train.classes == ("3", "4")
    path = labelled(tmp_path, "007", "012", suffix="cls")
    assert load(settings(path)).train.classes == ("007", "012")
    path = labelled(tmp_path, "1" * 5000, "1", suffix="cls")
    assert load(settings(path)).train.classes == ("1", "1" * 5000)


def test_labels_of_mixed_types(tmp_path):
    path = labelled(tmp_path, {"label": "a"}, {"label": ["a", "b"]}, {"label": "b"}, {"label": {"x": 1}})
    with pytest.raises(DataError, match=r"2 bad rows of 4: row 1 .*: the field 'label' is a list .*row 3 .*an object"):
        load(settings(path))
    with pytest.warns(DataWarning, match="2 bad rows of 4"):
        train = load(settings(path, bad_rows="skip")).train
    assert train.classes == ("a", "b") and len(train) == 2
    path = labelled(tmp_path, {"label": "a"}, {"label": 1})
    assert load(settings(path)).train.classes == ("1", "a")


def test_texts_that_no_table_can_hold(tmp_path):
    path = labelled(tmp_path, {"label": "a"}, {"label": "\ud800"}, {"label": "b"})
    with pytest.raises(DataError, match=r"1 bad row of 3: row 1 .*'1.json' cannot be read as JSON: .*surrogates"):
        load(settings(path))
    members = [*samples(0, 4), ("caf\udce9.png", picture(5)), ("caf\udce9.cls", b"1")]
    path = write_tar(tmp_path / "0.tar", [*members, ("x" * 5000 + ".png", picture(6)), ("x" * 5000 + ".cls", b"1")])
    with pytest.raises(DataError, match=r"2 bad rows of 6: .*0.tar/caf.*not UTF-8 .*has 5,004 characters") as found:
        load(settings(path))
    assert len(str(found.value)) < 1000
    with pytest.warns(DataWarning, match="2 bad rows"):
        assert len(load(settings(path, bad_rows="skip")).train) == 4
    assert len(set(read_inputs([path], settings(path))[1])) == 6


def test_one_long_name_does_not_make_all_keys_long(tmp_path):
    members = [(f"{name}.{suffix}", b"1") for name in ("x" * 4000, *range(1000)) for suffix in ("png", "cls")]
    path = write_tar(tmp_path / "0.tar", members)
    tracemalloc.start()
    try:
        assert len(load(settings(path)).train) == 1001
        assert tracemalloc.get_traced_memory()[1] < 8e6  # 1,001 names of 4,000 characters in UCS-4 are 16 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "columns"), [({"label": "a", "id": [1]}, {"key": "id"}), ({"label": {"x": 1}}, {})], ids=["key", "label"]
)
def test_values_that_cannot_be_keys_or_labels(value, columns, tmp_path):
    path = labelled(tmp_path, value, value)
    with pytest.raises(
        DataError, match=r"cannot read .*0.tar: .*; expected labels, keys and splits as text or numbers"
    ):
        load(settings(path, columns=columns))


# ---- Parquet files that differ


def parquet_shards(folder, *tables):
    folder.mkdir(exist_ok=True)
    for number, columns in enumerate(tables):
        names = list(columns)
        table = pa.table([pa.array(columns[name]) for name in names], [name.removesuffix("*") for name in names])
        parquet.write_table(table, folder / f"{number}.parquet")
    return folder


PICTURES = [picture(0), picture(1, bright=True)]
STRUCT = [{"bytes": one, "path": None} for one in PICTURES]
GOOD = {"image": PICTURES, "label": ["a", "b"]}


@pytest.mark.parametrize(
    ("other", "columns", "message"),
    [
        ({"image": STRUCT, "label": ["a", "b"]}, {}, "have different columns: 1.parquet has images in 'image.bytes'"),
        (
            {"label": ["a", "b"]},
            {},
            "have different columns: 1.parquet has no images and 'label', 0.parquet has images",
        ),
        ({"image": PICTURES, "target": ["a", "b"]}, {}, "1.parquet has images in 'image' and 'target', 0.parquet"),
        ({**GOOD, "label*": ["a", "b"]}, {}, "1.parquet has the column 'label' more than once"),
        (
            {"image": [1, 2], "label": ["a", "b"]},
            {"image": "image"},
            "'image' of .*1.parquet is of type int64; expected",
        ),
        ({"image": [[1], [2]], "label": ["a", "b"]}, {"image": "image"}, "is of type list<.*expected encoded images"),
        ({"image": ["x", "y"], "label": ["a", "b"]}, {"image": "image"}, "is of type string; expected encoded images"),
        ({"image": [{"x": b"1"}] * 2, "label": ["a", "b"]}, {"image": "image"}, "is of type struct<.*expected encoded"),
        (
            {"image": [{"bytes": 1}] * 2, "label": ["a", "b"]},
            {"image": "image"},
            "is of type struct<.*expected encoded",
        ),
    ],
)
def test_a_parquet_file_that_is_unlike_the_first(other, columns, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load(settings(parquet_shards(tmp_path / "data", GOOD, other), columns=columns))


@pytest.mark.parametrize("images", [PICTURES, STRUCT], ids=["bytes", "struct"])
def test_a_column_of_images_may_have_any_name(images, tmp_path):
    other = {"my": [1, 2], "my.image.bytes.size": [3, 4], "my.image": images, "my.label": ["a", "b"]}
    columns = {"image": "my.image", "label": "my.label"}
    train = load(settings(parquet_shards(tmp_path / "data", other, other), columns=columns)).train
    assert [train.inputs.encoded.read(row) for row in (0, 3)] == PICTURES and train.classes == ("a", "b")


@pytest.mark.parametrize("name", ["Label", "TARGET", "label"])
def test_the_usual_name_of_labels_may_be_in_upper_case(name, tmp_path):
    rows = {"image": PICTURES, name: ["a", "b"]}
    train = load(settings(parquet_shards(tmp_path / "data", rows, rows))).train
    assert train.classes == ("a", "b") and train.given_labels.tolist() == [0, 1, 0, 1]


def test_columns_may_be_ignored_beside_images_or_instead(tmp_path):
    rows = {"image": PICTURES, "caption": ["a red house", "a blue boat"], "label": ["a", "b"]}
    folder = parquet_shards(tmp_path / "data", rows, rows)
    train = load(settings(folder, columns={"ignore": "caption"})).train
    assert train.inputs.encoded.read(3) == PICTURES[1]
    as_text = settings(folder, columns={"ignore": "image", "text": "caption"})
    assert load(as_text).train.inputs.records is not None
    assert read_inputs([folder], as_text)[0].records is not None


# ---- whole runs


def shard_recipe(folder, **data):
    tree = {"data": {"source": str(folder), "workers": 0, "cache": "none", **data}, "model": {"name": "small_cnn"}}
    return recipe.parse({**tree, "method": {"name": "pencil"}, "training": {"epochs": 4, "batch_size": 16}})


def stop_after(monkeypatch, done):
    save_or_stop = Checkpointer.__call__

    def stop(self, trainer):
        if len(trainer.records) == done:
            self.request.signal = "SIGTERM"
        save_or_stop(self, trainer)

    monkeypatch.setattr(Checkpointer, "__call__", stop)


def test_resume_is_exact_and_refuses_a_changed_shard(folder, tmp_path, monkeypatch):
    whole = run_recipe(shard_recipe(folder), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_after(patch, 2)
        run_recipe(shard_recipe(folder), tmp_path / "run")
    shard = sorted(folder.iterdir())[1]
    times = shard.stat()
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))
    with pytest.raises(DataError, match=r"the data has changed since .*: train inputs differ"):
        run_recipe(shard_recipe(folder), tmp_path / "run", resume=True)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    resumed = run_recipe(shard_recipe(folder), tmp_path / "run", resume=True)
    assert resumed.labels.table.equals(whole.labels.table)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def _train(source):
    warnings.simplefilter("ignore")
    run = run_recipe(shard_recipe(source))
    return run.labels.table.to_pydict(), len(run.labels)


def test_two_ranks_agree(tmp_path):
    write_tar(tmp_path / "data/0.tar", samples(0, 24, "json"))
    write_tar(tmp_path / "data/1.tar", samples(24, 24, "json"))
    first, second = in_ranks(2, _train, tmp_path / "data")
    assert first == second and first[1] == 48


def test_commands_take_shards(folder, tmp_path):
    for words in (
        ["check", folder],
        ["train", folder, "--epochs", "2", "--model", "small_cnn", "--out", "run", "--quiet"],
    ):
        run_command(*words, cwd=tmp_path)
    done = run_command("predict", "run", folder, "--json", cwd=tmp_path)
    assert "shard-00002." in done.stdout
    assert len(pencil.open_run(tmp_path / "run").labels) == 48


MEMORY = """
import re, sys
import torch
from pencil.data.examples import fingerprints
from pencil.data.settings import DataSettings
from pencil.data.read import load

def of(key):  # in MB
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def read(source):
    train = load(DataSettings(source=source, workers=0)).train
    fingerprints({"train": train}, content=True)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    for values, _ in train.inputs.batches(order.split(8)):
        assert values.isfinite().all()

read(sys.argv[1])  # imports, buffers of libraries
open("/proc/self/clear_refs", "w").write("5")
before = of("VmRSS")
read(sys.argv[2])
print(of("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_images_are_never_all_in_memory(kind, tmp_path):
    """110 MB of images, in any order, take the memory of a batch and of two row groups."""
    for name, count in (("small", 1), ("large", 4)):
        for number in range(count):
            pictures = [
                np.random.default_rng(seed).integers(0, 256, (300, 300, 3), dtype=np.uint8) for seed in range(102)
            ]
            contents = []
            for pixels in pictures[: 102 if name == "large" else 40]:
                content = io.BytesIO()
                Image.fromarray(pixels).save(content, "BMP")
                contents.append(content.getvalue())
            path = tmp_path / name / f"{number}.{kind}"
            path.parent.mkdir(exist_ok=True)
            if kind == "tar":
                members = [
                    (f"{i}.{suffix}", data)
                    for i, one in enumerate(contents)
                    for suffix, data in (("bmp", one), ("cls", b"%d" % (i % 2)))
                ]
                write_tar(path, members)
            else:
                table = pa.table({"image": contents, "label": [i % 2 for i in range(len(contents))]})
                parquet.write_table(table, path, row_group_size=16)
    folders = [str(tmp_path / name) for name in ("small", "large")]
    done = subprocess.run([sys.executable, "-c", MEMORY, *folders], capture_output=True, text=True, check=True)
    size = sum(path.stat().st_size for path in (tmp_path / "large").iterdir()) / 2**20
    assert size > 100 and float(done.stdout) < size / 4, done.stdout
