"""The inputs of the rows, from the data that the run was trained on: pictures encoded again, or a few numbers.

The data is loaded in a thread, as it needs torch and may take a while; the page works meanwhile, and without it.
"""

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pencil.decisions import Where
from pencil.errors import PencilError
from pencil.runs.directory import RunReader

if TYPE_CHECKING:
    from pencil.data.examples import Examples, Splits

MAX_SIDE = 512
"""No side of a picture is longer than this on the page."""
SMALL_SIDE = 128
MAX_NUMBERS = 64
"""This many numbers of a vector are shown."""


class NotShown(Exception):  # noqa: N818 - not an error: the page shows it in place of a picture
    """Why a row has no picture."""


@dataclass(frozen=True)
class State:
    """``loading``, ``pictures``, ``numbers`` or ``none``; ``reason`` explains the last."""

    kind: str
    reason: str = ""


class Pictures:
    """The inputs of a run by key and split; ``start`` loads them once, in a thread."""

    def __init__(self, load: "Callable[[], Splits]"):
        self.state = State("loading")
        self._load = load
        self._parts: dict[str, tuple[Examples, dict[str, int]]] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pencil-pictures", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until the data is loaded or has failed to load."""
        self.start()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        try:
            splits = self._load()
            for name in ("train", "validation"):
                part = getattr(splits, name)
                if part is not None:
                    self._parts[name] = part, {str(key): place for place, key in enumerate(part.keys)}
            self.state = State("pictures" if _are_pictures(splits.train) else "numbers")
        except (PencilError, OSError, ValueError, ImportError, MemoryError, RuntimeError) as error:
            self.state = State("none", f"no pictures: {error}")
        finally:
            if self.state.kind == "loading":  # an unforeseen error, whose traceback is in the terminal
                self.state = State("none", "no pictures: the data cannot be loaded; see the terminal")

    def picture(self, where: Where) -> tuple[bytes, str]:
        """Return the picture of a row and its media type, encoded from its pixels: nothing else of a file is sent."""
        from pencil.data.images import DECODE_FAULTS, ImageInputs, decode, describe_fault

        part, place = self._find(where)
        row = int(part.rows[place])
        if not isinstance(part.inputs, ImageInputs):
            return _encoded(_pixels(self._values(part, row)))
        try:
            return _encoded(decode(part.inputs.encoded.read(row), None, part.inputs.max_pixels))
        except DECODE_FAULTS as error:
            raise NotShown(f"the image cannot be read: {describe_fault(error)}") from error

    def numbers(self, where: Where) -> dict[str, Any]:
        """Return the first numbers of a row, and how many there are."""
        part, place = self._find(where)
        values = self._values(part, int(part.rows[place])).astype(np.float64).ravel()
        shown = [float(f"{value:.4g}") if np.isfinite(value) else None for value in values[:MAX_NUMBERS]]
        return {"values": shown, "count": values.size}

    def _find(self, where: Where) -> "tuple[Examples, int]":
        key, split = where
        if self.state.kind not in ("pictures", "numbers"):
            raise NotShown(self.state.reason or "the data is still loading")
        part, places = self._parts.get(split) or self._parts["train"]  # held out of it, mostly
        if key not in places:
            raise NotShown("the data no longer has this row")
        return part, places[key]

    def _values(self, part: "Examples", row: int) -> np.ndarray:
        import torch

        from pencil.data.inputs import TensorInputs

        if isinstance(part.inputs, TensorInputs):
            values = part.inputs.values[row]
        else:
            try:
                values = next(part.inputs.batches([torch.tensor([row])])).values[0]
            except PencilError as error:
                raise NotShown(str(error)) from error
        array: np.ndarray = values.numpy()
        return array


def pictures_of(run: Path) -> Pictures:
    """Return the pictures of a run, from the data that its recipe names."""

    def load() -> "Splits":
        from pencil.data import sources

        return sources.load(RunReader(run).recipe().data)

    return Pictures(load)


def _are_pictures(examples: "Examples") -> bool:
    from pencil.data.images import ImageInputs
    from pencil.data.inputs import TensorInputs

    if isinstance(examples.inputs, TensorInputs):
        return examples.inputs.values.ndim == 4
    return isinstance(examples.inputs, ImageInputs) or len(examples.input_shape) == 3


def _pixels(values: np.ndarray) -> np.ndarray:
    """Return (channels, height, width) as 8-bit grey or RGB; floats are scaled from the darkest to the brightest."""
    values = values[:3] if len(values) >= 3 else values[:1]
    if values.dtype != np.uint8:
        values = np.nan_to_num(values.astype(np.float64))
        low, high = values.min(), values.max()
        values = ((values - low) * (255 / (high - low if high > low else 1))).round().astype(np.uint8)
    return values.transpose(1, 2, 0).squeeze(axis=2) if len(values) == 1 else values.transpose(1, 2, 0)


def _encoded(pixels: np.ndarray) -> tuple[bytes, str]:
    """Encode small pictures as PNG, large ones as JPEG."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    if max(image.size) > MAX_SIDE:
        image.thumbnail((MAX_SIDE, MAX_SIDE))
    target, small = io.BytesIO(), max(image.size) <= SMALL_SIDE
    image.save(target, "PNG" if small else "JPEG")
    return target.getvalue(), "image/png" if small else "image/jpeg"
