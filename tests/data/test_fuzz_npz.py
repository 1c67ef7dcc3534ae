"""Some hundreds of damaged and odd npz files, drawn by a seed: each works or is one line, never a traceback."""

import contextlib
import io
import sys
import traceback
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from commands import pencil

from pencil.cli import main

SEED = 20261116
ROWS = 40
SMALL = ("--model", "mlp", "--method", "cross_entropy", "--epochs", "1")
DTYPES = (
    "bool", "i1", ">i2", "u2", ">u8", "i8", "f2", ">f4", "f8", "g", "c8", "c16", "S3", "U2", ">U3", "M8[D]", "m8[s]",
    "V4", "O",
)  # fmt: skip
SHAPES = ((), (0,), (1,), (ROWS,), (ROWS, 0), (0, 4), (ROWS, 1), (ROWS - 1, 4), (4, ROWS), (ROWS, 2, 2),
          (ROWS, 1, 2, 2), (ROWS, 3, 0, 2), (1, 1, 1, 1, 1))  # fmt: skip
TEXTS = ("", " ", "a", "A", "a ", "\0", "a\0b", "\n", "\t", "é", "e\u0301", "\u202e", "🙂", "=1+1", "\x1b[31m", "nan",
         "None", "0", "-1", "../x", "/etc/passwd", "x" * 3000, "\ud800", "[bold]", "{}")  # fmt: skip
DESCRS = ("'<f4'", "'>f4'", "'<U0'", "'|S0'", "'|V0'", "'|O'", "'<f16'", "'<U999999999'", "[('a', '<f4')]", "'junk'",
          "('<f4', (2, 2))", "3", "None", "'<M8[D]'", "'<f4" + ",<f4" * 30 + "'", "{}", "'<T'")  # fmt: skip
CLAIMS = ("(40, 4)", "(-40, -4)", "(1e3,)", "()", "(40,)", "(0,)", "(99999999999, 4)", "(True, 160)", "[40, 4]", "None",
          "(40, 4", "(" * 300, "(9223372036854775807, 9223372036854775807)", "(40, '4')", "(2**62, 0)")  # fmt: skip


def honest(rng) -> dict[str, np.ndarray]:
    """Two clouds of points, and every array that an npz file may hold."""
    y = np.arange(ROWS) % 2
    x = (rng.normal(size=(ROWS, 4)) + 3 * y[:, None]).astype(np.float32)
    return {
        "x": x, "y": y, "keys": np.array([f"row-{i}" for i in range(ROWS)]), "classes": np.array(["cat", "dog"]),
        "clean_labels": y, "x_test": x[:10], "y_test": y[:10],
    }  # fmt: skip


def npy(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, values)
    return content.getvalue()


def claimed(descr: str, shape: str, content: bytes, version=1) -> bytes:
    text = (f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n").encode()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + content


def archive(members: dict[str, bytes], compression=zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w", compression) as made:
        warnings.simplefilter("ignore")  # duplicate names are meant
        for name, member in members.items():
            made.writestr(f"{name}.npy", member)
    return content.getvalue()


def flip(content: bytes, rng, most=20) -> bytes:
    damaged = bytearray(content)
    for place in rng.integers(0, len(damaged), rng.integers(1, most)):
        damaged[place] ^= 1 << int(rng.integers(0, 8))
    return bytes(damaged)


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    try:
        return values.astype(dtype)
    except (TypeError, ValueError):
        return np.zeros(values.shape, dtype=dtype)


def odd_values(values: np.ndarray, rng) -> np.ndarray:
    """The same array with one wild number, or one odd text."""
    if values.dtype.kind in "US":
        changed = values.astype("U3000")
        changed[rng.integers(0, len(changed))] = rng.choice(np.array(TEXTS, dtype=object))
        return changed
    changed = values.astype(np.float64)
    wild = [np.nan, np.inf, -np.inf, 1e30, -1e39, 1e300, 0.5, -1, 2**31, 2**63, 1e-45]
    changed.reshape(-1)[rng.integers(0, changed.size)] = rng.choice(wild)
    return changed


def damaged_zip(rng, number: int) -> bytes:
    content = archive({name: npy(one) for name, one in honest(rng).items()}, (zipfile.ZIP_STORED, 8)[number % 2])
    if number % 3 == 0:
        return content[: rng.integers(0, len(content))]
    return flip(content, rng)


def damaged_member(rng, number: int) -> bytes:
    """A whole archive, so that its checksums hold, around a damaged array."""
    arrays = honest(rng)
    members = {name: npy(one) for name, one in arrays.items()}
    name = str(rng.choice(list(members)))
    head, body = members[name][:128], members[name][128:]
    if number % 4 == 0:
        members[name] = members[name][: rng.integers(0, len(members[name]))]
    elif number % 4 == 1:
        members[name] = flip(head, rng, 3) + body
    elif number % 4 == 2:
        members[name] = head + flip(body, rng, 3)
    else:
        descr, shape = (str(rng.choice(np.array(one, dtype=object))) for one in (DESCRS, CLAIMS))
        members[name] = claimed(descr, shape, arrays[name].tobytes(), int(rng.choice([1, 1, 2, 3])))
    return archive(members)


def odd_arrays(rng, number: int) -> bytes:
    arrays = honest(rng)
    for name in rng.choice(list(arrays), rng.integers(1, 3), replace=False):
        kind = (number + len(name)) % 5
        if kind == 0:
            arrays[name] = cast(arrays[name], str(rng.choice(DTYPES)))
        elif kind == 1:
            arrays[name] = np.resize(arrays[name], SHAPES[rng.integers(len(SHAPES))])
        elif kind == 2:
            arrays[name] = odd_values(arrays[name], rng)
        elif kind == 3:
            arrays[name] = np.array(TEXTS)[rng.integers(0, len(TEXTS), len(arrays[name]))]
        else:
            del arrays[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pickled objects
        return archive({name: npy(one) for name, one in arrays.items()})


KINDS = {"damaged zip": (damaged_zip, 150), "damaged member": (damaged_member, 150), "odd arrays": (odd_arrays, 200)}


@dataclass
class Outcome:
    code: object
    message: str


def run(*words, cwd) -> Outcome:
    """The outcome of a command in this process: its exit code and message, or the exception that came through."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    err.reconfigure(errors="backslashreplace")  # as Python's own
    before, sys.argv = sys.argv, ["pencil", *map(str, words)]
    code: object = 0
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:  # noqa: BLE001 - what the test looks for
        return Outcome("traceback", "".join(traceback.format_exc().splitlines(keepends=True)[-6:]))
    finally:
        sys.argv = before
    return Outcome(code, err.buffer.getvalue().decode())


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", KINDS)
def test_no_npz_file_ends_in_a_traceback(tmp_path, kind):
    make, count = KINDS[kind]
    np.savez(tmp_path / "good.npz", **honest(np.random.default_rng(0)))
    pencil("train", "good.npz", *SMALL, "--out", "good", cwd=tmp_path)
    outcomes: Counter[str] = Counter()
    failures = []
    for number in range(count):
        (tmp_path / "f.npz").write_bytes(make(np.random.default_rng([SEED, len(kind), number]), number))
        commands = {"check": ("check", "f.npz", *SMALL), "predict": ("predict", "good", "f.npz")}
        for name, words in commands.items():
            found = run(*words, cwd=tmp_path)
            outcomes[f"{name} {found.code}"] += 1
            if found.code not in (0, 2) or (found.code == 2 and "error: " not in found.message):
                failures.append(f"{kind} {number}, {name}: {found.code} {found.message}")
            if name == "check":
                found = run("train", "f.npz", *SMALL, "--out", f"run-{number}", cwd=tmp_path)
                outcomes[f"train {found.code}"] += 1
                if found.code not in (0, 2) or (found.code == 2 and "error: " not in found.message):
                    failures.append(f"{kind} {number}, train: {found.code} {found.message}")
    print(f"\n{kind}: {count} files, {dict(sorted(outcomes.items()))}")  # noqa: T201 - figures of the run
    assert not failures, f"{len(failures)} of {sum(outcomes.values())}:\n" + "\n".join(failures[:5])
