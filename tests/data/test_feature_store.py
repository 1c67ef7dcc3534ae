"""Features on disk: found again by content, whole after a kill, one writer at a time."""

import hashlib

import numpy as np
import pytest

from pencil.data.inputs.feature_store import DIGESTS, FEATURES, FeatureStore
from pencil.errors import DataError


def digest(number):
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def vectors(*numbers, width=5):
    return np.array([np.full(width, number) + np.arange(width) / 8 for number in numbers], np.float32)


def test_vectors_are_found_again(tmp_path):
    store = FeatureStore(tmp_path / "deep/folder", 5)
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


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot store features in .*data.cache"):
        FeatureStore(tmp_path / "file/folder", 5)
