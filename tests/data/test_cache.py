import errno
import os
import time

import numpy as np
import pytest
import torch
from conftest import paint, truncate

from pencil import DataError
from pencil.data.inputs.base import TensorInputs
from pencil.data.prepare import prepare
from pencil.data.read import load
from pencil.data.settings import DataSettings
from pencil.errors import DataWarning


@pytest.fixture
def decoded(monkeypatch):
    """How often an image was decoded."""
    from pencil.data.inputs import images

    calls, real = [], images.decode
    monkeypatch.setattr(images, "decode", lambda *given: calls.append(1) or real(*given))
    return calls


def ready(folder, cache, **settings):
    chosen = DataSettings(source=str(folder), cache=str(cache), workers=0, validation=0, **settings)
    return prepare(chosen, load(chosen), seed=0).splits.train


def values(examples):
    return torch.cat([batch.inputs for batch in examples.batches(4)])


def test_a_second_run_finds_the_pixels_and_decodes_nothing(pets, tmp_path, decoded):
    plain = values(ready(pets, "none", normalize="none"))
    decoded.clear()
    first = ready(pets, tmp_path / "cache", normalize="none")
    assert len(decoded) == 20 and torch.equal(values(first), plain)
    second = ready(pets, tmp_path / "cache", normalize="none")
    assert len(decoded) == 20 and torch.equal(values(second), plain)
    assert second.keys.tolist() == first.keys.tolist()
    assert not list((tmp_path / "cache").glob(".*"))


@pytest.mark.parametrize("cache", ["memory", "auto"])
def test_in_memory_every_image_is_decoded_once(pets, cache, decoded):
    train = ready(pets, cache, normalize="none")
    values(train), values(train)
    assert len(decoded) == 20 and isinstance(train.inputs, TensorInputs)


def test_auto_leaves_encoded_what_would_not_fit(pets, monkeypatch, decoded):
    monkeypatch.setattr("pencil.data.inputs.cache.IN_MEMORY", 20 * 3 * 8 * 8 - 1)
    train = ready(pets, "auto", normalize="none")
    assert not isinstance(train.inputs, TensorInputs) and not decoded


def test_another_image_size_or_choice_of_rows_makes_it_anew(pets, tmp_path, decoded):
    cache = tmp_path / "cache"
    before = values(ready(pets, cache, normalize="none"))
    paint(pets / "cat/3.png", seed=77)
    os.utime(pets / "cat/3.png", ns=(time.time_ns(), time.time_ns() + 10**9))
    after = values(ready(pets, cache, normalize="none"))
    assert len(decoded) == 40 and (before != after).flatten(1).any(1).nonzero()[:, 0].tolist() == [3]
    assert values(ready(pets, cache, resize=4, normalize="none")).shape == (20, 3, 4, 4) and len(decoded) == 60
    ready(pets, cache, rows=7, normalize="none")
    assert len(decoded) == 67


def test_a_cache_that_lost_its_pixels_is_made_anew(pets, tmp_path, decoded):
    before = values(ready(pets, tmp_path / "cache"))
    next((tmp_path / "cache").glob("*.pixels")).unlink()
    assert torch.equal(values(ready(pets, tmp_path / "cache")), before) and len(decoded) == 40


SHAPE = '"shape": [20, 3, 8, 8]'
INDEXES = ["", "[]", "{}", "\xff", "[" * 100_000, " " * 2**20, f'{{{SHAPE}, "unreadable": [20]}}',
           f'{{{SHAPE}, "unreadable": "x"}}', f'{{{SHAPE}, "unreadable": [1.5]}}',
           '{"shape": [1], "unreadable": []}']  # fmt: skip


@pytest.mark.parametrize("content", INDEXES)
def test_a_cache_with_a_damaged_index_is_made_anew(pets, tmp_path, decoded, content):
    before = values(ready(pets, tmp_path / "cache"))
    next((tmp_path / "cache").glob("*.json")).write_text(content, "latin-1")
    assert torch.equal(values(ready(pets, tmp_path / "cache")), before) and len(decoded) == 40
    ready(pets, tmp_path / "cache")
    assert len(decoded) == 40


def test_a_cache_with_damaged_pixels_is_made_anew(pets, tmp_path, decoded):
    before = values(ready(pets, tmp_path / "cache"))
    pixels = next((tmp_path / "cache").glob("*.pixels"))
    for size in (10, 2**40):
        os.truncate(pixels, size)
        assert torch.equal(values(ready(pets, tmp_path / "cache")), before)
    pixels.replace(tmp_path / "mine")
    pixels.symlink_to(tmp_path / "mine")
    assert torch.equal(values(ready(pets, tmp_path / "cache")), before) and not pixels.is_symlink()
    assert len(decoded) == 80


@pytest.mark.parametrize("suffix", ["pixels", "json"])
def test_a_folder_in_place_of_a_cache_file_is_reported(pets, tmp_path, suffix):
    ready(pets, tmp_path / "cache")
    path = next((tmp_path / "cache").glob(f"*.{suffix}"))
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"cannot write the cache .* in .*cache: Is a directory; .*data.cache"):
        ready(pets, tmp_path / "cache")


def test_rows_that_cannot_be_read_are_remembered(pets, tmp_path, decoded):
    truncate(pets / "cat/0.png"), truncate(pets / "dog/4.png")
    with pytest.warns(DataWarning, match="the row is skipped"):
        first = ready(pets, tmp_path / "cache", bad_rows="skip", normalize="none")
    second = ready(pets, tmp_path / "cache", bad_rows="skip", normalize="none")
    assert len(decoded) == 20 and len(second) == 20  # rows keep their place, as without a cache
    assert second.keys.tolist() == first.keys.tolist() and int(second.inputs.readable.sum()) == 18
    plain = ready(pets, "none", bad_rows="skip", normalize="none")
    assert plain.keys.tolist() == second.keys.tolist()
    with pytest.warns(DataWarning, match="the row is skipped"):
        assert torch.equal(values(second), values(plain)) and len(values(second)) == 18


def test_the_policy_error_leaves_no_cache_behind(pets, tmp_path):
    truncate(pets / "dog/4.png")
    with pytest.raises(DataError, match=r"1 of 20 images cannot be read: 'dog/4.png' \(row 14\)"):
        ready(pets, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_full_disk_is_reported(pets, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        DataError, match=r"cannot write the cache of .* GiB in .*No space left on device; .*free some space"
    ):
        ready(pets, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_a_folder_is_reported(pets, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        DataError,
        match=r"cannot write the cache .*File exists; .*free some space, or .*settings=.*data.cache",
    ):
        ready(pets, tmp_path / "file")


def test_workers_fill_it_with_the_same_bits(pets, tmp_path):
    chosen = DataSettings(source=str(pets), cache="memory", workers=2, validation=0)
    assert torch.equal(values(prepare(chosen, load(chosen), seed=0).splits.train), values(ready(pets, "memory")))


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_annotators_labels_of_a_file_follow_their_rows_when_some_are_chosen(pets, tmp_path, cache):
    """The file is the clean labels of all rows: no label of the chosen ones may differ."""
    everything = ready(pets, "none")
    np.save(tmp_path / "labels.npy", everything.given_labels.numpy())
    noise = {"kind": "file", "file": tmp_path / "labels.npy"}
    some = ready(pets, cache, rows=9, noise=noise)
    assert len(some) == 9 and torch.equal(some.given_labels, some.clean_labels)
