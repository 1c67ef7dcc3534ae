"""Arrays of any type, order and size, and npz files that others made: they work, or one line says why not."""

import io
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from readers import from_npz, read_arrays
from scipy import sparse

from pencil import DataError
from pencil.data import from_arrays
from pencil.data.sources.arrays import as_input_tensor
from pencil.data.sources.torch_dataset import from_dataset
from pencil.memory import as_size, memory_limit

VALUES = np.arange(12.0).reshape(4, 3)
Y = [0, 1, 0, 1]


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    "values",
    [
        VALUES.astype(">f8"),
        VALUES.astype(">f4"),
        VALUES.astype(">i2"),
        VALUES.astype(">u2"),
        VALUES.astype(np.longdouble),
        VALUES.astype(np.float16),
        VALUES.astype(np.uint64),
        VALUES.astype(np.int8),
        np.asfortranarray(VALUES),
        VALUES[::-1][::-1],
        np.repeat(VALUES, 2, axis=1)[:, ::2],
        read_only(VALUES.astype(np.float32)),
        VALUES.tolist(),
        np.ma.masked_array(VALUES),
        torch.tensor(VALUES, dtype=torch.bfloat16),
        torch.tensor(VALUES, dtype=torch.float16, requires_grad=True),
    ],
)
def test_numbers_of_any_type_and_order_are_the_same_inputs(values):
    made = as_input_tensor(values)
    assert made.dtype == torch.float32 and made.tolist() == VALUES.tolist()


def test_booleans_are_numbers_and_big_endian_images_are_images():
    assert as_input_tensor(VALUES > 3).dtype == torch.float32
    images = (np.arange(2 * 8 * 8).reshape(2, 8, 8) * 256).astype(">u2")
    assert torch.equal(as_input_tensor(images), as_input_tensor(images.astype(np.uint16)))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (VALUES * 1j, r"x is of type complex128; expected numbers; pass the real and the imaginary part"),
        (torch.tensor(VALUES) * 1j, r"x is of type torch.complex128; expected real numbers"),
        (VALUES.astype("M8[D]"), r"x is of type datetime64\[D\]; expected numbers; convert dates to numbers"),
        (VALUES.astype("m8[s]"), r"x is of type timedelta64\[s\]; expected numbers; convert durations"),
        (np.array([[1, "a"]] * 4, dtype=object), r"x is of type object; .* then use x.astype\(float\)"),
        (np.zeros(4, dtype=[("a", "f4")]), r"expected numbers; convert it to a numeric array"),
        (VALUES.astype(str), r"expected numbers; convert it"),
        (np.zeros((4, 0)), r"x has shape \(4, 0\), so its rows are empty"),
        (np.zeros((4, 3, 0, 8), np.uint8), r"its rows are empty"),
        (torch.zeros(4, 0), r"its rows are empty"),
        (np.zeros((0, 3)), r"the dataset is empty"),
        (np.array(3.0), r"the dataset is empty"),
        (np.zeros(4), r"pass x\[None\] if x is one example, or x\[:, None\]"),
        ([[1, 2], [3], [4], [5]], r"x is not an array .*; expected rows of equal length"),
        (torch.eye(4).to_sparse(), r"expected a dense tensor; pass x.to_dense\(\)"),
        (np.ma.masked_array(VALUES, mask=VALUES > 8), r"x is a masked array; .* x.filled\(\)"),
        (VALUES * 1e300, r"input at row 0 is 1e\+300; expected numbers up to 3.4e\+38.*scale the inputs"),
        (VALUES.astype(np.longdouble) * np.longdouble("1e4000"), r"input at row 0 is 1e\+4000"),
        (np.where(VALUES == 7, np.inf, VALUES), r"input at row 2 holds NaN or infinity"),
    ],
)
def test_what_is_no_input_is_named(x, message):
    with pytest.raises(DataError, match=message):
        from_arrays(x, Y)


@pytest.mark.parametrize("form", ["csr_matrix", "csc_array", "coo_matrix", "lil_array"])
def test_sparse_matrices_become_dense(form):
    values = np.where(np.median(VALUES) < VALUES, VALUES, 0)
    found = from_arrays(getattr(sparse, form)(values), Y)
    assert np.array_equal(found.inputs.values.numpy(), values.astype(np.float32))


def test_sparse_matrices_that_do_not_fit_or_hold():
    wide = sparse.csr_matrix((len(Y), 10**15))
    with pytest.raises(DataError, match=r"x is a sparse matrix of shape .* takes .* TB when dense; .*TruncatedSVD"):
        from_arrays(wide, Y)
    with pytest.raises(DataError, match=r"x is of type complex128; expected numbers"):
        from_arrays(sparse.csr_matrix(VALUES.astype(complex)), Y)
    huge = sparse.csr_matrix(VALUES.astype(np.float64))
    huge[1, 0] = 1e300
    with pytest.raises(DataError, match=r"input at row 1 holds NaN or infinity"):
        from_arrays(huge, Y)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (np.array(["a"]), r"row 0: x is of type <U1"),
        (np.ones(2) * 1j, r"row 0: x is of type complex128"),
        (torch.ones(2) * 1j, r"input at row 0 is torch.complex64 of shape \(2,\)"),
        (torch.ones(0), r"input at row 0 is torch.float32 of shape \(0,\); expected at least one real number"),
    ],
)
def test_items_of_a_dataset_are_checked(item, message):
    with pytest.raises(DataError, match=message):
        from_dataset([(item, 0), (item, 1)]).some_inputs(2)


@pytest.mark.parametrize("kind", [">f4", np.longdouble, np.float32])
def test_items_of_other_types_work(kind):
    values = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=kind)
    found = from_dataset([(values[0][::-1], 0), (read_only(values[1]), 1)]).some_inputs(2)
    assert found.tolist() == [[2.0, 1.0], [3.0, 4.0]]


def npy(values, **options) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.asarray(values), **options)
    return content.getvalue()


def header(shape: str, descr="'<f8'") -> bytes:
    """The header of an npy file that claims this shape."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members.items():
            made.writestr(f"{name}.npy", content if isinstance(content, bytes) else npy(content))
    return path


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"classes": np.array("ab")}, r"the array classes is <U2 of shape \(\); expected a list of names"),
        ({"classes": [["a", "b"]]}, r"the array classes is <U1 of shape \(1, 2\)"),
        ({"classes": [0.5, 1.5]}, r"the array classes is float64"),
        ({"classes": ["a", "a"]}, r"the array classes: classes 0 and 1 have the same name 'a'"),
        ({"classes": ["a", ""]}, r"the array classes: .*1 is missing"),
        ({"classes": ["a", "b"], "y": [0, 1, 2, 0]}, r"label 2 at row 2 is not one of the 2 classes \('a', 'b'\)"),
        ({"keys": np.array(3)}, r"the keys have shape \(\)"),
        ({"keys": [["a"]] * 4}, r"the keys have shape \(4, 1\)"),
        ({"keys": ["a", "b"]}, r"there are 4 inputs but 2 keys"),
        ({"keys": np.array([1j] * 4)}, r"the keys are of type complex128"),
        ({"x": header("(1000000000000, 3)")}, r"'x' in .* which takes 24.0 TB, but the file has only 0 bytes of it"),
        ({"x": header("(4, -3)")}, r"array 'x' in .* has shape \(4, -3\)"),
        ({"x": header("(4, 0)")}, r"its rows are empty"),
        ({"x": header("(10**12,)", "'<U0'")}, r"cannot read"),
        ({"x": header("(999999999999,)", "'<U0'")}, r"has shape \(999999999999,\) and type <U0"),
        ({"x": header("(4,)", "('<f4', (99, 99))")}, r"cannot read|expected numbers or text"),
        ({"x": header("(4,)", "[('a', '<f4')]") + bytes(16)}, r"expected numbers or text"),
        ({"x": header("(4,)", "'|O'")}, r"has Python objects, which could run code"),
        ({"x": b"hello"}, r"cannot read"),
        ({"x": b""}, r"cannot read"),
        ({"x": npy(VALUES)[:-8]}, r"but the file has"),
    ],
)
def test_odd_members_of_an_npz_file_are_named(tmp_path, members, message):
    with pytest.raises(DataError, match=message):
        from_npz(archive(tmp_path / "d.npz", **{"x": VALUES, "y": Y, **members}))


def test_members_that_are_not_asked_for_are_never_read(tmp_path):
    junk = {"other": b"no array", "x_test": header("(1000000000000, 3)"), "pickle": header("(1,)", "'|O'")}
    path = archive(tmp_path / "d.npz", x=VALUES, y=Y, **junk)
    assert from_npz(path).sizes() == {"train": 4}
    assert read_arrays(path)[0].shape == (4, 3)


def test_an_array_twice_or_encrypted_or_of_another_compression_is_refused(tmp_path):
    path = archive(tmp_path / "d.npz", x=VALUES, y=Y)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as more:
        more.writestr("x.npy", npy(VALUES * 0))
    with pytest.raises(DataError, match="contains the array 'x' more than once"):
        from_npz(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as made:
        made.writestr("x.npy", npy(VALUES))
        made.writestr("y.npy", npy(Y))
    with pytest.raises(DataError, match="encrypted or uses a compression"):
        from_npz(path)


def test_what_is_no_regular_file_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(DataError, match="is not a regular file"):
        read_arrays(tmp_path / "x.npy")
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is not a regular file"):
        read_arrays(tmp_path / "zero.npy")


BOMB = """
import sys
from pathlib import Path
import numpy, torch, pyarrow
from pencil.data.settings import DataSettings
from pencil.data.sources.arrays import read
from pencil.errors import DataError
def peak():  # of this program alone; ru_maxrss would begin with that of the one that started it
    return next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
for new in (False, True):
    try:
        print("read", read(Path(sys.argv[1]), DataSettings(), new=new) and "")
    except DataError as error:
        print("refused", error)
print(before, peak())
"""


def bomb(path, name: str, gigabytes: int):
    """Small honest data, and a member of this many gigabytes of zeros: one compressed block, many times."""
    packer = zlib.compressobj(wbits=-15)
    start = packer.compress(header(f"({gigabytes * 125_000}, 1000)")) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(10**8)) + packer.flush(zlib.Z_FULL_FLUSH)
    content = start + block * (10 * gigabytes) + packer.flush()
    with zipfile.ZipFile(path, "w") as made:
        for other, values in {"x": VALUES, "y": np.array(Y)}.items():
            if other != name:
                made.writestr(f"{other}.npy", npy(values))
        made.writestr(f"{name}.npy", content)
        member = made.filelist[-1]
        member.compress_type, member.file_size = zipfile.ZIP_DEFLATED, len(header("()")) + gigabytes * 10**9
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux")
@pytest.mark.parametrize("name", ["x", "unused"])
def test_a_zip_bomb_is_refused_or_ignored_in_little_memory(tmp_path, name):
    path = bomb(tmp_path / "bomb.npz", name, 10)
    assert path.stat().st_size < 60 * 2**20
    done = subprocess.run([sys.executable, "-c", BOMB, str(path)], capture_output=True, text=True, check=True)
    *lines, peaks = done.stdout.splitlines()
    if name == "x":
        assert all(line.startswith("refused array 'x' in") and "would take 10.0 GB in memory" in line for line in lines)
    else:
        assert [line.split()[0] for line in lines] == ["read", "read"]
    before, peak = map(int, peaks.split())  # KiB
    assert peak < 10**6 and peak - before < 10**5, f"{peak} KiB, {before} before"


def test_arrays_larger_than_memory_are_refused(tmp_path, monkeypatch):
    assert memory_limit() > 2**27
    np.savez(tmp_path / "d.npz", x=np.ones((1000, 100)), y=np.arange(1000) % 2)
    monkeypatch.setattr("pencil.data.sources.npz.memory_limit", lambda: 500_000)
    with pytest.raises(DataError, match=r"'x' in .* takes 800.0 kB, but only 500.0 kB"):
        from_npz(tmp_path / "d.npz")
    assert [as_size(count) for count in (7, 2_000, 3 * 10**12)] == ["7 bytes", "2.0 kB", "3.0 TB"]
