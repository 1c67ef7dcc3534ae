"""Features on disk: found again by content, whole after a kill, one writer at a time."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from pencil.data.inputs.feature_store import DIGESTS, FEATURES, LOCK, FeatureStore
from pencil.errors import DataError


def digest(number):
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def vectors(*numbers, width=5):
    return np.array([np.full(width, number) + np.arange(width) / 8 for number in numbers], np.float32)


def test_vectors_are_found_again(tmp_path):
    store = FeatureStore(tmp_path / "deep/folder", 5)
    with store.lock():  # which makes the folder
        store.add([digest(1), digest(2)], vectors(1, 2))
    again = FeatureStore(tmp_path / "deep/folder", 5)
    assert again.missing([digest(2), digest(3), digest(3), digest(1)]) == [digest(3)]
    again.add([digest(3)], vectors(3))
    np.testing.assert_array_equal(again.read([digest(3), digest(1), digest(3)]), vectors(3, 1, 3).astype(np.float16))
    store.refresh()
    assert store.missing([digest(3)]) == []


@pytest.mark.parametrize(("name", "size"), [(FEATURES, 7), (FEATURES, 10), (DIGESTS, 5)])
def test_what_a_killed_writer_left_is_overwritten(tmp_path, name, size):
    FeatureStore(tmp_path, 5).add([digest(1)], vectors(1))
    with (tmp_path / name).open("ab") as file:
        file.write(b"x" * size)
    store = FeatureStore(tmp_path, 5)
    store.add([digest(2)], vectors(2))
    found = FeatureStore(tmp_path, 5)
    np.testing.assert_array_equal(found.read([digest(1), digest(2)]), vectors(1, 2).astype(np.float16))


def test_a_cut_file_loses_only_its_end(tmp_path):
    FeatureStore(tmp_path, 5).add([digest(1), digest(2)], vectors(1, 2))
    path = tmp_path / FEATURES
    path.write_bytes(path.read_bytes()[:-1])
    assert FeatureStore(tmp_path, 5).missing([digest(1), digest(2)]) == [digest(2)]


def test_reading_makes_nothing(tmp_path):
    store = FeatureStore(tmp_path / "folder", 5)
    assert store.missing([digest(1)]) == [digest(1)] and store.read([]).shape == (0, 5)
    assert not (tmp_path / "folder").exists()


def link(path):
    """A link in place of a file of the store, to a file of the user."""
    (path.parent.parent / "mine").write_text("precious")
    path.symlink_to("../mine")


@pytest.mark.parametrize("name", [FEATURES, DIGESTS, LOCK])
@pytest.mark.parametrize(("make", "seen"), [(link, "symbolic link"), (Path.mkdir, "folder"), (os.mkfifo, "named pipe")])
def test_only_regular_files_are_used(tmp_path, name, make, seen):
    folder = tmp_path / "store"
    with FeatureStore(folder, 5).lock():
        FeatureStore(folder, 5).add([digest(1)], vectors(1))
    (folder / name).unlink()
    make(folder / name)
    with (
        pytest.raises(DataError, match=rf"features in {folder}: {name}: it is a {seen}, not .*data.cache"),
        FeatureStore(folder, 5).lock(),
    ):
        pass
    assert not (tmp_path / "mine").exists() or (tmp_path / "mine").read_text() == "precious"


def test_a_link_to_another_folder_is_refused(tmp_path):
    FeatureStore(tmp_path, 5).add([digest(1)], vectors(1))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"features in .*link: it is a symbolic link"):
        FeatureStore(tmp_path / "link", 7)


@pytest.mark.parametrize("damage", [lambda one: one * 5, lambda one: bytes(80), lambda one: one + bytes(64)])
def test_digests_that_nobody_wrote_are_overwritten(tmp_path, damage):
    FeatureStore(tmp_path, 5).add([digest(number) for number in range(5)], vectors(*range(5)))
    (tmp_path / DIGESTS).write_bytes(damage(digest(0)))
    store, wanted = FeatureStore(tmp_path, 5), {digest(number): number for number in (0, 7, 8)}
    new = store.missing(list(wanted))
    known = [one for one in wanted if one not in new]
    np.testing.assert_array_equal(store.read(known), vectors(*(wanted[one] for one in known)).reshape(-1, 5))
    assert store.missing([bytes(16)])
    store.add(new, vectors(*(wanted[one] for one in new)))
    found = FeatureStore(tmp_path, 5).read([digest(8), digest(0), digest(7)])
    np.testing.assert_array_equal(found, vectors(8, 0, 7).astype(np.float16))


def test_huge_files_take_no_memory(tmp_path):
    FeatureStore(tmp_path, 5).add([digest(1)], vectors(1))
    for name in (FEATURES, DIGESTS):
        os.truncate(tmp_path / name, 2**40)  # sparse
    assert FeatureStore(tmp_path, 5).missing([digest(1), digest(2)]) == [digest(2)]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot read features in .*data.cache"):
        FeatureStore(tmp_path / "file/folder", 5)
