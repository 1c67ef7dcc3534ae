"""A checkpoint is whole or it is not there, whatever happens to the process, the disk or the files."""

import errno
import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from pencil.errors import RecipeError, RunError
from pencil.files import read_regular
from pencil.models.cifar import preact_resnet32
from pencil.runs.checkpoints import CODES, Checkpoint, Checkpoints, write_part


def assert_same(seen, expected):
    """Equal to the last bit and of the same type; NaN is NaN, -0.0 is not 0.0, and dicts keep their order."""
    assert type(seen) is type(expected)
    if isinstance(expected, dict):
        assert [(type(key), key) for key in seen] == [(type(key), key) for key in expected]
        for key in expected:
            assert_same(seen[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(seen) == len(expected)
        for pair in zip(seen, expected, strict=True):
            assert_same(*pair)
    elif isinstance(expected, torch.Tensor):
        assert (seen.dtype, seen.shape) == (expected.dtype, expected.shape)
        assert bits(seen) == bits(expected)
    elif isinstance(expected, float):
        assert struct.pack("<d", seen) == struct.pack("<d", expected)
    else:
        assert seen == expected


def bits(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).untyped_storage().tolist()


def random_tensor(rng):
    shape = rng.choice([(), (0,), (3,), (2, 0, 3), (4, 5), (2, 3, 4)])
    gen = torch.Generator().manual_seed(rng.randrange(2**32))
    tensor = torch.randint(0, 256, (*shape, 8), dtype=torch.uint8, generator=gen)
    dtype = rng.choice(list(CODES))
    tensor = tensor[..., :1].bool()[..., 0] if dtype == torch.bool else tensor.view(dtype)[..., 0]  # any bits at all
    return tensor.transpose(0, -1) if shape and rng.random() < 0.3 else tensor


def random_tree(rng, depth=0):
    leaves = [
        lambda: random_tensor(rng),
        lambda: rng.choice([None, True, False, 0, 1, -(2**80), "", "a/b", "$tensor", 'é\n"\\\0', "\ud800"]),
        lambda: rng.choice([0.1, -0.0, 1.0, 5e-324, 1e308, float("inf"), -float("inf"), float("nan"), rng.random()]),
    ]
    branches = [
        lambda: [random_tree(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: tuple(random_tree(rng, depth + 1) for _ in range(rng.randrange(4))),
        lambda: {random_key(rng): random_tree(rng, depth + 1) for _ in range(rng.randrange(5))},
    ]
    return rng.choice(leaves if depth > 4 else leaves + 2 * branches if depth else branches)()


def random_key(rng):
    return rng.choice([0, 1, -7, "0", "a", "a/b", "b", "$tensor", "$dict", "", "__metadata__", "é", "\ud800", "x.y"])


def states(step):
    """Two parts whose content follows from the step."""
    gen = torch.Generator().manual_seed(step)
    return {
        "model": {"weight": torch.randn(20, 5, generator=gen), "step": step},
        "labels": {"logits": torch.randn(50, 3, generator=gen), "epoch": step / 10},
    }


def assert_holds(checkpoint, step):
    assert checkpoint.step == step
    assert {name: checkpoint.part(name) for name in checkpoint.parts()}.keys() == states(step).keys()
    for name, tree in states(step).items():
        assert_same(checkpoint.part(name), tree)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    for step in (1, 2):
        Checkpoints(folder).save(step, states(step))
    return folder


@pytest.fixture
def saved(tmp_path, template):
    """Checkpoints of steps 1 and 2."""
    return Checkpoints(shutil.copytree(template, tmp_path / "checkpoints"))


def names(found):
    return sorted(path.name for path in found.folder.iterdir())


BOTH = ["step-0000000001", "step-0000000002"]
FILES = ["manifest.json", "model.json", "model.safetensors", "labels.json", "labels.safetensors"]


# What goes in comes out


@pytest.mark.parametrize("seed", range(60))
def test_any_tree_comes_back(tmp_path, seed):
    tree = random_tree(random.Random(seed))
    partial = Checkpoints(tmp_path).begin(seed)
    checkpoint = Checkpoints(tmp_path).commit(partial, write_part(partial, "tree", tree))
    assert_same(checkpoint.part("tree"), tree)
    assert_same(Checkpoints(tmp_path).newest().part("tree"), tree)


def test_the_trees_are_of_every_kind():
    """The generator above reaches what it is for."""
    seen = set()

    def note(value):
        seen.add(type(value))
        if isinstance(value, torch.Tensor):
            seen.add(value.dtype)
            seen.update([("0-d", value.dim() == 0), ("empty", not value.numel()), ("cut", not value.is_contiguous())])
        for key, item in value.items() if isinstance(value, dict) else ():
            seen.add(("key", type(key)))
            note(item)
        for item in value if isinstance(value, list | tuple) else ():
            note(item)

    for seed in range(60):
        note(random_tree(random.Random(seed)))
    assert seen >= {*CODES, dict, list, tuple, int, float, bool, str, type(None), ("key", int), ("key", str)}
    assert seen >= {("0-d", True), ("empty", True), ("cut", True)}


def test_tensors_that_share_storage_come_back_apart(tmp_path):
    base = torch.arange(12.0)
    tree = {"whole": base, "again": base, "row": base.view(3, 4)[1], "column": base.view(3, 4)[:, 2]}
    back = Checkpoints(tmp_path).save(1, {"a": tree}).part("a")
    assert_same(back, tree)
    back["whole"].zero_()
    assert_same(back["again"], base)
    assert base[3] == 3


def test_states_of_torch_and_python_come_back(tmp_path):
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters(), betas=(0.8, 0.9))
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    tree = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "random": random.getstate()}
    back = Checkpoints(tmp_path).save(1, {"all": {**tree, "bias": net.bias}}).part("all")
    assert isinstance(tree["net"], OrderedDict) and type(back["net"]) is dict
    assert type(back["bias"]) is torch.Tensor and not back["bias"].requires_grad
    assert_same(back["optimizer"], tree["optimizer"])
    assert list(back["optimizer"]["state"]) == [0, 1]
    random.setstate(back["random"])
    net.load_state_dict(back["net"])


def test_paths_that_are_taken(tmp_path):
    numbers = (torch.tensor(number) for number in range(99))
    tree = {"a": {"b": next(numbers)}, "a/b": next(numbers), "a/b~": next(numbers), "__metadata__": next(numbers)}
    tree |= {
        0: next(numbers),
        "0": next(numbers),
        "": {"": next(numbers)},
        "/": next(numbers),
        "\\ud800": next(numbers),
    }
    tree |= {"\ud800": next(numbers)}
    assert_same(Checkpoints(tmp_path).save(1, {"a": tree}).part("a"), tree)
    lone = torch.ones(2)
    assert_same(Checkpoints(tmp_path).save(2, {"a": lone}).part("a"), lone)


def test_tensors_of_odd_strides_come_back(tmp_path):
    """NumPy gives empty arrays strides of 0, and one element of a column keeps the stride of the column."""
    table = torch.arange(12.0).view(4, 3)
    tensors = [torch.from_numpy(np.zeros(shape)) for shape in ((0,), (2, 0), (0, 3), (2, 0, 3))]
    tensors += [table[:1, 0].expand(3)[:0], table.T[:0], table[1:2, 1], table[1, 1], table[2:3, 1:2], table[:, :1]]
    assert {tensor.stride() for tensor in tensors} >= {(0,), (3,), (3, 1), ()}
    assert_same(Checkpoints(tmp_path).save(1, {"a": tensors}).part("a"), tensors)


def test_negated_views_are_written_as_they_read(tmp_path):
    tensor = torch._neg_view(torch.ones(3))  # as .conj().imag gives
    assert tensor.is_neg() and tensor.is_contiguous()
    assert Checkpoints(tmp_path).save(1, {"a": tensor}).part("a").tolist() == [-1, -1, -1]


def test_the_files_are_plain(saved):
    """Tensors open with safetensors alone, under their paths; the rest is JSON; the manifest tells the truth."""
    folder = saved.save(3, {"a": {"net": {"w.x": torch.ones(2)}, "state": {0: [torch.zeros(1), 5]}}}).path
    assert set(safetensors.torch.load_file(folder / "a.safetensors")) == {"net/w.x", "state/0/0"}
    assert json.loads((folder / "a.json").read_text()) == {
        "net": {"w.x": {"$tensor": "net/w.x"}},
        "state": {"$dict": [[0, [{"$tensor": "state/0/0"}, 5]]]},
    }
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == 1 and manifest["checkpoint"] == folder.name
    assert manifest["files"] == {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }


def test_tensors_are_aligned_in_the_file(saved):
    """So that a mapped file needs no copies."""
    tensor = torch.arange(40, dtype=torch.bfloat16).reshape(10, 4)
    tree = {"store": {"logits": tensor, "flags": torch.ones(3, dtype=torch.bool), "lr": torch.tensor(0.1)}}
    checkpoint = saved.save(3, {"labels": tree})
    raw = (checkpoint.path / "labels.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    for name, place in json.loads(raw[8 : 8 + length]).items():
        assert not (8 + length + place["data_offsets"][0]) % tree["store"][name.split("/")[1]].element_size()


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"a": {"b": object()}}, "a/b is object"),
        ({"a": [1, {2}]}, "a/1 is set"),
        ({"a": np.ones(3)}, "a is ndarray"),
        ({"a": b"bytes"}, "a is bytes"),
        ({"a": {True: 1}}, "a is dict, or has keys"),
        ({1.5: 1}, "a part is dict, or has keys"),
        ({"a": torch.ones(2, dtype=torch.complex64)}, r"the tensor a is torch.complex64"),
        ({"a": torch.eye(2).to_sparse()}, "torch.sparse_coo"),
        ({"a": torch.ones(2, device="meta")}, "on meta"),
        ({"a": 10**5000}, "cannot write"),
    ],
)
def test_what_cannot_be_kept_is_refused(saved, tree, expected):
    with pytest.raises(RunError, match=expected):
        saved.save(3, {"model": {}, "bad": tree})
    assert names(saved) == BOTH


def test_a_tree_that_contains_itself_is_refused(saved):
    tree = {}
    tree["self"] = tree
    with pytest.raises(RunError, match="does it contain itself"):
        saved.save(3, {"model": tree})


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "../a", "/tmp/a", ".a", "a.b", "Model", "manifest", "a\n", "é", "x" * 101]
)
def test_odd_part_names_are_refused(saved, name):
    with pytest.raises(RunError, match="expected lower-case letters"):
        saved.save(3, {name: {}})
    assert names(saved) == BOTH


def test_unknown_parts_are_refused(saved):
    for name in ("other", "../step-0000000001/model", "manifest"):
        with pytest.raises(RunError, match="its parts are labels, model"):
            saved.newest().part(name)


def test_odd_arguments_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="keep is 1"):
        Checkpoints(tmp_path, keep=1)
    with pytest.raises(RunError, match="step is -1"):
        Checkpoints(tmp_path).save(-1, {})


# Several processes, and several checkpoints


def test_nothing_yet(tmp_path):
    assert Checkpoints(tmp_path / "none").newest() is None
    assert Checkpoints(tmp_path / "none").verify() == []
    assert not (tmp_path / "none").exists()


def test_weights_may_be_larger_than_a_text_file_of_a_run(saved, monkeypatch):
    newest = saved.newest()
    monkeypatch.setattr(read_regular, "__defaults__", (100,))
    assert max(one["bytes"] for one in newest.files.values()) > 100
    assert newest.part("model")


def test_parts_of_several_processes_make_one_checkpoint(saved):
    partial = saved.begin(3)
    digests = {}
    for rank, name in enumerate(("labels", "model")):
        digests |= json.loads(json.dumps(write_part(partial, name, states(3)[name])))  # as they are gathered
        assert saved.newest().step == 2, rank
    checkpoint = saved.commit(partial, digests)
    assert_holds(checkpoint, 3)
    assert_holds(pickle.loads(pickle.dumps(checkpoint)), 3)  # as it is broadcast


def test_parts_that_are_not_here_make_none(saved):
    """The other machine wrote to its own disk: the old checkpoints must not be pruned for that."""
    partial = saved.begin(3)
    digests = write_part(partial, "model", states(3)["model"])
    (partial / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model.safetensors|No such file"):
        saved.commit(partial, digests)
    saved.recover()
    assert names(saved) == BOTH


def test_no_part_is_written_twice(saved):
    partial = saved.begin(3)
    write_part(partial, "model", {})
    with pytest.raises(RunError, match="File exists"):
        write_part(partial, "model", {})


def test_the_newest_are_kept(tmp_path):
    found = Checkpoints(tmp_path, keep=3)
    for step in (5, 6, 8, 100, 12_000_000_000):
        found.save(step, states(step))
    assert [finding.path.name for finding in found.verify()] == [
        "step-12000000000",
        "step-0000000100",
        "step-0000000008",
    ]
    assert_holds(found.newest(), 12_000_000_000)


def test_a_later_one_never_pushes_out_the_one_just_written(tmp_path):
    found = Checkpoints(tmp_path)
    for step in (10, 20, 30):
        found.save(step, states(step))
    Checkpoints(tmp_path).save(15, states(15))
    assert names(found) == [f"step-{step:010d}" for step in (15, 20, 30)]


def test_the_same_step_is_replaced(saved):
    saved.save(2, {"model": {"new": 1}})
    assert names(saved) == BOTH
    assert saved.newest().part("model") == {"new": 1}
    assert saved.newest().parts() == ["model"]


def test_killed_between_the_two_renames(saved):
    """The moment at which the old checkpoint of this step stands aside and the new one is not yet there."""
    shutil.copytree(saved.folder / BOTH[0], saved.folder / f".{BOTH[1]}.partial")
    (saved.folder / BOTH[1]).rename(saved.folder / f".{BOTH[1]}.old")
    saved.recover()
    assert names(saved) == BOTH
    assert_holds(saved.newest(), 2)


def test_orphans_are_removed_and_nothing_else(saved):
    (saved.folder / ".step-0000000007.partial").mkdir()
    (saved.folder / ".step-0000000007.partial" / "model.json").write_text("{")
    shutil.copytree(saved.folder / BOTH[0], saved.folder / f".{BOTH[0]}.old")
    (saved.folder / ".step-notes").write_text("mine")
    (saved.folder / "best.safetensors").write_text("mine")
    before = names(saved)
    assert saved.newest().step == 2
    assert names(saved) == before  # reading removes nothing: a run may be going on
    saved.begin(3)
    assert names(saved) == [".step-0000000003.partial", ".step-notes", "best.safetensors", *BOTH]


def test_a_checkpoint_that_cannot_be_removed_does_not_stop_training(saved, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="cannot remove .*Operation not permitted"):
        patch.setattr(shutil, "rmtree", refuse)
        saved.save(3, states(3))
    assert saved.newest().step == 3
    saved.recover()
    assert names(saved) == [BOTH[1], "step-0000000003"]


# Damage


def flip(path, at, bit=0):
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1 << bit]))


DAMAGE = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "first bit": lambda path: flip(path, 0),
    "middle bit": lambda path: flip(path, path.stat().st_size // 2, 5),
    "last bit": lambda path: flip(path, -1, 7),
    "missing": lambda path: path.unlink(),
    "directory": lambda path: (path.unlink(), path.mkdir()),
    "pipe": lambda path: (path.unlink(), os.mkfifo(path)) if path.name != "manifest.json" else path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_damage_is_seen_and_the_previous_one_is_used(saved, file, damage):
    DAMAGE[damage](saved.folder / BOTH[1] / file)
    named = rf"{BOTH[1]}/{file}" if file != "manifest.json" else BOTH[1]  # a wrong digest may be either's fault
    with pytest.warns(UserWarning, match=rf"damaged: .*{named}.*Using .*{BOTH[0]}"):
        checkpoint = saved.newest()
    assert_holds(checkpoint, 1)
    assert [(finding.path.name, finding.ok) for finding in saved.verify()] == [(BOTH[1], False), (BOTH[0], True)]
    assert named in saved.verify()[0].reason and not saved.verify()[1].reason


def test_every_bit_counts(tmp_path):
    found = Checkpoints(tmp_path)
    folder = found.save(1, {"a": {"x": torch.ones(1), "y": 0.5}}).path
    for path in folder.iterdir():
        for at in range(path.stat().st_size):
            flip(path, at, at % 8)
            assert not found.verify()[0].ok, f"byte {at} of {path.name}"
            flip(path, at, at % 8)
    assert found.verify()[0].ok


def test_all_damaged(saved):
    for name in BOTH:
        flip(saved.folder / name / "model.safetensors", -1)
    with pytest.raises(RunError, match=rf"every checkpoint is damaged.*{BOTH[1]}.*{BOTH[0]}.*Restore a copy"):
        saved.newest()


def test_damage_after_verification_is_seen(saved):
    checkpoint = saved.newest()
    flip(checkpoint.path / "model.safetensors", -1)
    with pytest.raises(RunError, match="SHA-256"):
        checkpoint.part("model")


def test_going_on_from_before_the_damage(tmp_path):
    """Two whole ones stay, although the damaged ones are newer; those go once they are replaced or left behind."""
    found = Checkpoints(tmp_path, keep=4)
    for step in (10, 20, 30):
        found.save(step, states(step))
    for step in (20, 30):
        flip(tmp_path / f"step-{step:010d}" / "model.json", 0)
    with pytest.warns(UserWarning, match="damaged"):
        assert found.newest().step == 10
    resumed = Checkpoints(tmp_path)  # it finds out by itself what is damaged
    expected = {12: (10, 12, 20, 30), 15: (12, 15, 20, 30), 20: (15, 20, 30), 31: (20, 30, 31), 32: (31, 32)}
    for step, left in expected.items():
        resumed.save(step, states(step))
        assert names(found) == [f"step-{each:010d}" for each in left]
        assert {step, left[0]} <= {
            int(finding.path.name[5:]) for finding in Checkpoints(tmp_path).verify() if finding.ok
        }


def test_pruned_while_it_is_read(saved, monkeypatch):
    """What a run that is going on removes is not reported as damaged."""
    read, whole = Checkpoint.read, saved.folder.with_name("whole")
    shutil.copytree(saved.folder, whole)

    def vanish(checkpoint, name):
        if checkpoint.step == 2:
            shutil.rmtree(checkpoint.path)
        return read(checkpoint, name)

    monkeypatch.setattr(Checkpoint, "read", vanish)
    assert [finding.ok for finding in saved.verify()] == [True]
    assert Checkpoints(whole).newest().step == 1


# Hostile files


def resign(folder, change=lambda manifest: None):
    """Write the manifest that fits the files, as an attacker would."""
    files = {
        path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    manifest = {"format": 1, "checkpoint": folder.name, "files": files}
    changed = change(manifest)
    text = json.dumps(manifest if changed is None else changed, indent=2, sort_keys=True)
    (folder / "manifest.json").write_text(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"$tensor": "nowhere"}',
        '{"$tensor": ["weight"]}',
        '{"$tensor": "weight", "more": 1}',
        '{"$call": "os.system"}',
        '{"$tuple": 5}',
        '{"$dict": [[1.5, 2]]}',
        '{"$dict": [[[], 2]]}',
        '{"$dict": [7]}',
        '{"$dict": [[1, 2, 3]]}',
        '{"$dict": {"a": 1}}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 5000,
        "{",
        "",
        "\xff",
        "__import__('os')",
    ],
)
def test_hostile_json_is_refused(saved, text):
    folder = saved.folder / BOTH[1]
    (folder / "model.json").write_bytes(text.encode("latin-1"))
    resign(folder)
    checkpoint = saved.newest()  # the digests fit
    assert checkpoint.step == 2
    with pytest.raises(RunError, match="cannot read part 'model'"):
        checkpoint.part("model")


@pytest.mark.parametrize(
    "header",
    [
        {"weight": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 0]}},
        {"weight": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}},
        {"weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        {"weight": {"dtype": "X9", "shape": [0], "data_offsets": [0, 0]}},
        {"weight": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}},
        [],
    ],
)
def test_hostile_tensors_are_refused(saved, header):
    folder, text = saved.folder / BOTH[1], json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    resign(folder)
    with pytest.raises(RunError, match="cannot read part 'model'"):
        saved.newest().part("model")


def set_file(name):
    return lambda manifest: manifest["files"].update({name: {"sha256": "0" * 64, "bytes": 0}})


@pytest.mark.parametrize(
    "change",
    [
        set_file("../../../escape.json"),
        set_file("/etc/passwd"),
        set_file("model/../x.json"),
        set_file("manifest.json"),
        set_file("alone.json"),
        set_file("alone.safetensors"),
        set_file("model.pkl"),
        lambda manifest: manifest["files"].pop("model.json") and None,
        lambda manifest: manifest.update(format=2),
        lambda manifest: manifest.update(format=True),
        lambda manifest: manifest.update(checkpoint=BOTH[0]),
        lambda manifest: manifest.update(extra=1),
        lambda manifest: manifest.update(files=[]),
        lambda manifest: manifest.update(files=None),
        lambda manifest: manifest["files"].update({"model.json": 5}),
        lambda manifest: manifest["files"]["model.json"].update(bytes="12"),
        lambda manifest: manifest["files"]["model.json"].update(bytes=float("inf")),
        lambda manifest: manifest["files"]["model.json"].update(bytes=None),
        lambda manifest: manifest["files"]["model.json"].update(sha256=[1]),
        lambda manifest: [],
        lambda manifest: "manifest",
        lambda manifest: 5,
    ],
)
def test_hostile_manifests_are_refused(saved, change):
    resign(saved.folder / BOTH[1], change)
    with pytest.warns(UserWarning, match=f"{BOTH[1]}"):
        assert saved.newest().step == 1


def test_a_deep_manifest_is_refused(saved):
    (saved.folder / BOTH[1] / "manifest.json").write_text("[" * 100_000)
    with pytest.warns(UserWarning, match="cannot read"):
        assert saved.newest().step == 1


class Bomb:
    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return (Path.touch, (self.flag,))


@pytest.mark.parametrize("file", FILES)
def test_a_pickle_is_never_run(saved, tmp_path, file):
    flag, folder = tmp_path / "executed", saved.folder / BOTH[1]
    for save in (lambda bomb, path: path.write_bytes(pickle.dumps(bomb)), torch.save):
        save(Bomb(flag), folder / file)
        if file != "manifest.json":
            resign(folder)
            with pytest.raises(RunError, match="cannot read part"):
                [saved.newest().part(name) for name in ("model", "labels")]
        else:
            with pytest.warns(UserWarning, match="damaged"):
                saved.newest()
    assert not flag.exists()
    pickle.loads(pickle.dumps(Bomb(flag)))
    assert flag.exists()  # the bomb works


# A disk that is full, and processes that are killed


def test_all_is_flushed_in_order(saved, monkeypatch):
    """A power cut cannot be tried here, but what it would find follows from the order of the calls."""
    done, fsync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_ino), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (done.append(to.name), replace(path, to)))
    path = saved.save(3, states(3)).path
    written = [(path / name).stat().st_ino for name in FILES]
    assert set(done[:4]) == set(written[1:])
    assert done[4:9] == [
        written[0],  # the manifest
        path.stat().st_ino,
        "step-0000000003",
        saved.folder.stat().st_ino,
        saved.folder.parent.stat().st_ino,
    ]
    assert done[9:] == [".step-0000000001.partial"]  # only now is the oldest removed


@pytest.mark.parametrize("step", [2, 3], ids=["replacing", "new"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=str)
def test_failure_at_every_call_to_the_system(saved, monkeypatch, failure, step):
    """The n-th time that anything is opened, flushed or renamed it fails, for every n until the save succeeds."""
    for number in range(100):
        calls = iter(range(100))

        def failing(real, number=number, calls=calls):
            def call(*arguments, **options):
                if next(calls) == number:
                    raise failure
                return real(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(os.fsync))
            patch.setattr(Path, "replace", failing(Path.replace))
            patch.setattr(Path, "open", failing(Path.open))
            patch.setattr(Path, "mkdir", failing(Path.mkdir))
            try:
                saved.save(step, {name: {**tree, "new": True} for name, tree in states(step).items()})
                break
            except RunError as error:
                assert "No space left on device; the earlier checkpoints are intact; free space" in str(error)
            except KeyboardInterrupt:
                pass
        newest = Checkpoints(saved.folder).newest()
        if "new" in newest.part("model"):
            break  # it failed after the checkpoint was in place, when all that is left is to remove the old
        assert names(saved) == BOTH, number
        assert_holds(newest, 2)
    assert number > 12
    saved.recover()
    assert "new" in saved.newest().part("model")


def test_a_file_that_may_not_grow(saved):
    """A real refusal of the system in the middle of a write."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(RunError, match="File too large; the earlier checkpoints are intact"):
            saved.save(3, {**states(3), "big": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(saved) == BOTH
    assert_holds(saved.newest(), 2)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(small_disk):
    found = Checkpoints(small_disk / "run")
    for step in (1, 2):
        found.save(step, {**states(step), "big": torch.full((75_000,), float(step))})  # 300 kB each
    with pytest.raises(RunError, match=r"step-0000000003.*No space left on device; the earlier checkpoints are intact"):
        found.save(3, {**states(3), "big": torch.zeros(200_000)})
    assert names(found) == BOTH
    assert found.newest().part("big").unique().tolist() == [2.0]
    found.save(3, {**states(3), "big": torch.full((75_000,), 3.0)})  # and on, once there is room
    assert found.newest().step == 3


KILLS = """
import os, random, signal, sys, time, warnings
from pathlib import Path
import torch
from pencil.runs.checkpoints import Checkpoints

warnings.simplefilter("error")  # also that of a damaged checkpoint
folder, kills = Path(sys.argv[1]), int(sys.argv[2])
rng, last, during = random.Random(int(sys.argv[3])), 0, 0


def states(step):
    return {"model": {"weight": torch.full((3000,), float(step)), "step": step}, "labels": {0: torch.full((50,), step)}}


def train(writer, step):
    found = Checkpoints(folder)
    while True:
        step += 1
        found.save(step, states(step))
        if step % 3 == 0:
            found.save(step, states(step))  # the same again takes the place of the first
        os.write(writer, step.to_bytes(8, "little"))


for _ in range(kills):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        train(writer, last)
    os.close(writer)
    reported = os.read(reader, 8)
    time.sleep(rng.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while chunk := os.read(reader, 8):
        reported = chunk
    os.close(reader)
    finished = int.from_bytes(reported, "little")
    during += any(folder.glob(".*"))
    found = Checkpoints(folder)
    found.recover()
    left = sorted(path.name for path in folder.iterdir())
    assert min(finished, 2) <= len(left) <= 3 and all(name.startswith("step-") for name in left), left
    assert all(finding.ok for finding in found.verify()), found.verify()
    newest = found.newest()
    assert newest.step in (finished, finished + 1), (newest.step, finished)  # killed before it could report
    part = newest.part("model")
    assert part["step"] == newest.step and part["weight"].unique().tolist() == [newest.step]
    last = newest.step
print(during)
"""


def kill_often(tmp_path, kills, seed):
    command = [sys.executable, "-c", KILLS, str(tmp_path / "checkpoints"), str(kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)  # how many were killed in the middle of a save


def test_killed_while_saving(tmp_path):
    kill_often(tmp_path, 8, seed=0)


@pytest.mark.slow
def test_killed_while_saving_many_times(tmp_path):
    assert kill_often(tmp_path, 300, seed=1) > 100


@pytest.mark.slow
def test_saving_is_quick(tmp_path):
    """CIFAR-10's labels and a PreAct ResNet-32 with its momentum, flushed to disk."""
    net = preact_resnet32(3, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.zeros(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    labels = {"label_logits": torch.randn(45_000, 10), "given_labels": torch.zeros(45_000, dtype=torch.int64)}
    parts = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "labels": labels}
    found, seconds = Checkpoints(tmp_path), []
    for step in range(5):
        start = time.perf_counter()
        found.save(step, parts)
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[2] < 0.5, seconds
