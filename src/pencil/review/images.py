"""What the rows look like: pictures encoded anew, or a few numbers, from the data that the run was trained on.

Data is loaded beside the server, as it needs torch and may take a while; the page works meanwhile, and without it.
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
from pencil.review.queue import RECIPE

if TYPE_CHECKING:
    from pencil.data.examples import Examples, Splits

MAX_SIDE = 512
"""No side of a picture is longer than this on the page."""
SMALL_SIDE = 128
MAX_NUMBERS = 64
"""So many numbers of a vector are shown."""


class NotShown(Exception):  # noqa: N818 - no error of the program, but what the page says in place of a picture
    """Why there is nothing to see of a row."""


@dataclass(frozen=True)
class State:
    """``loading``, ``pictures``, ``numbers`` or ``none``; ``reason`` says why there are none."""

    kind: str
    reason: str = ""


class Pictures:
    """The inputs of a run by key and split; ``start`` loads them, once, in a thread of its own."""

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
        """Until the data is loaded, or known to be out of reach."""
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
            if self.state.kind == "loading":  # what nobody thought of: the terminal has the traceback
                self.state = State("none", "no pictures: the data cannot be loaded; the terminal says why")

    def picture(self, where: Where) -> tuple[bytes, str]:
        """The picture of a row and its media type, made anew from its pixels: nothing else of a file gets out."""
        part, place = self._find(where)
        try:
            pixels = part.inputs.picture(int(part.rows[place]))
        except PencilError as error:
            raise NotShown(str(error)) from error
        if pixels is None:
            raise NotShown("this row is no image")
        return _encoded(pixels)

    def numbers(self, where: Where) -> dict[str, Any]:
        """The first numbers of a row, and how many there are."""
        part, place = self._find(where)
        values = self._values(part, int(part.rows[place])).astype(np.float64).ravel()
        shown = [float(f"{value:.4g}") if np.isfinite(value) else None for value in values[:MAX_NUMBERS]]
        return {"values": shown, "count": values.size}

    def _find(self, where: Where) -> "tuple[Examples, int]":
        key, split = where
        if self.state.kind not in ("pictures", "numbers"):
            raise NotShown(self.state.reason or "the data is still being loaded")
        part, places = self._parts.get(split) or self._parts["train"]  # validation rows are mostly held out of those
        if key not in places:
            raise NotShown("the data does not have this row any more")
        return part, places[key]

    def _values(self, part: "Examples", row: int) -> np.ndarray:
        import torch

        try:
            array: np.ndarray = part.inputs.raw(torch.tensor([row])).values[0].numpy()
        except PencilError as error:
            raise NotShown(str(error)) from error
        return array


def pictures_of(run: Path) -> Pictures:
    """The pictures of a run, from the data that its recipe names."""

    def load() -> "Splits":
        from pencil.data import sources
        from pencil.recipe import parse, read

        return sources.load(parse(read(run / RECIPE), str(run / RECIPE), with_method=False).data)

    return Pictures(load)


def _are_pictures(examples: "Examples") -> bool:
    return examples.inputs.resizable or len(examples.input_shape) == 3


def _encoded(pixels: np.ndarray) -> tuple[bytes, str]:
    """Small pictures to the pixel, large ones as JPEG."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    if max(image.size) > MAX_SIDE:
        image.thumbnail((MAX_SIDE, MAX_SIDE))
    target, small = io.BytesIO(), max(image.size) <= SMALL_SIDE
    image.save(target, "PNG" if small else "JPEG")
    return target.getvalue(), "image/png" if small else "image/jpeg"
