"""The inputs of the rows, from the data that the run was trained on: re-encoded images, or a few numbers.

The data is loaded in a thread, because it needs torch and may take a while; the page works without it.
"""

import ctypes
import io
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pencil.decisions import Where
from pencil.errors import PencilError
from pencil.runs.directory import RunReader

if TYPE_CHECKING:
    from pencil.data.check.cells import Spread
    from pencil.data.examples import Examples, Splits

MAX_SIDE = 512
"""Maximum side of an image on the page."""
SMALL_SIDE = 128
"""Maximum side of a thumbnail; images up to this size are sent without loss."""
MAX_NUMBERS = 64
"""Maximum numbers of a vector to show."""
STOPS_WITHIN = 0.5
"""Seconds after which a thread is told again to stop: a destructor or other code may have caught the exception."""


class NotShown(Exception):  # noqa: N818 - not an error: the page shows it in place of a picture
    """Why a row has no picture."""


@dataclass(frozen=True)
class State:
    """``loading``, ``pictures``, ``numbers`` or ``none``; ``reason`` explains the last."""

    kind: str
    reason: str = ""


class Background(ABC):
    """Work that runs once in a thread, on first use: the method ``_run`` of a subclass."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the work, once."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"pencil-{type(self).__name__}", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        with suppress(SystemExit):  # of `stop`
            self._run()

    @abstractmethod
    def _run(self) -> None:
        """Do the work."""

    def wait(self) -> None:
        """Wait until the work is done."""
        self.start()
        assert self._thread is not None
        self._thread.join()

    def stop(self) -> None:
        """End the work at its next Python instruction, and wait: a thread in C++ code aborts a process that exits.

        This is for the end of a process: an import that was stopped may not be possible again.
        """
        thread, report = self._thread, sys.unraisablehook
        sys.unraisablehook = lambda lost: None if lost.exc_type is SystemExit else report(lost)
        try:
            while thread is not None and thread.is_alive():
                identity, stop = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, stop)
                thread.join(STOPS_WITHIN)
        finally:
            sys.unraisablehook = report


class Pictures(Background):
    """The inputs of a run by key and split; ``start`` loads them once, in a thread.

    With ``by_class``, the cells of a table that are unusual for the given class come first, which reveals something
    about that class.
    """

    def __init__(self, load: "Callable[[], Splits]", *, by_class: bool = True):
        super().__init__()
        self.by_class = by_class
        self._spreads: dict[str, Spread] = {}
        self.state = State("loading")
        self.splits: Splits | None = None
        self._load = load
        self._parts: dict[str, tuple[Examples, dict[str, int]]] = {}

    def _run(self) -> None:
        try:
            splits = self._load()
            for name in ("train", "validation", "unlabelled"):
                part = getattr(splits, name)
                if part is not None:
                    self._parts[name] = part, {str(key): place for place, key in enumerate(part.keys)}
            self.splits = splits
            are_pictures = splits.train.inputs.resizable or len(splits.train.input_shape) == 3
            self.state = State("pictures" if are_pictures else "numbers")
        except (PencilError, OSError, ValueError, ImportError, MemoryError, RuntimeError) as error:
            self.state = State("none", f"no pictures: {error}")
        finally:
            if self.state.kind == "loading":  # an unexpected error; see the traceback in the terminal
                self.state = State("none", "no pictures: the data cannot be loaded; see the terminal")

    def picture(self, where: Where, side: int = MAX_SIDE) -> tuple[bytes, str]:
        """Return the picture of a row and its media type, encoded from its pixels; nothing else of the file is sent.

        No side is longer than ``side``.
        """
        part, place = self.find(where)
        try:
            pixels = part.inputs.picture(int(part.rows[place]), side)
        except PencilError as error:
            raise NotShown(str(error)) from error
        if pixels is None:
            raise NotShown("this row is not an image")
        return _encoded(pixels, side)

    def numbers(self, where: Where) -> dict[str, Any]:
        """Return the first numbers of a row, or the cells of a table, and how many there are."""
        part, place = self.find(where)
        if part.inputs.records is not None:
            return self._cells(part, place)
        values = self._values(part, int(part.rows[place])).astype(np.float64).ravel()
        shown = [float(f"{value:.4g}") if np.isfinite(value) else None for value in values[:MAX_NUMBERS]]
        return {"values": shown, "count": values.size}

    def _cells(self, part: "Examples", place: int) -> dict[str, Any]:
        from pencil.data.check.cells import measure_spread, row_cells
        from pencil.data.given.given_labels import hard_labels

        records = part.inputs.records
        assert records is not None
        spread, code = None, -1
        if self.by_class:
            name = next(name for name, (one, _) in self._parts.items() if one is part)
            spread = self._spreads.get(name) or measure_spread(part, records)
            self._spreads[name] = spread
            code = -1 if part.multilabel else int(hard_labels(part.given_labels[place : place + 1])[0])
        cells = row_cells(records, int(part.rows[place]), spread, code)
        return {"cells": [cell._asdict() for cell in cells[:MAX_NUMBERS]], "count": len(cells)}

    def find(self, where: Where) -> "tuple[Examples, int]":
        """Return the examples that contain a row, and its position; raise :class:`NotShown` if there are none."""
        key, split = where
        if self.state.kind not in ("pictures", "numbers"):
            raise NotShown(self.state.reason or "the data is still loading")
        part, places = self._parts.get(split) or self._parts["train"]  # held-out rows usually come from train
        if key not in places:
            raise NotShown("the data no longer has this row")
        return part, places[key]

    def _values(self, part: "Examples", row: int) -> np.ndarray:
        import torch

        try:
            array: np.ndarray = part.inputs.raw(torch.tensor([row])).values[0].numpy()
        except PencilError as error:
            raise NotShown(str(error)) from error
        return array


def pictures_of(run: Path, *, by_class: bool = True) -> Pictures:
    """Return the pictures of a run, from the data of its recipe; see :class:`Pictures` for ``by_class``."""

    def load() -> "Splits":
        from pencil.data import read as sources

        return sources.load(RunReader(run).recipe().data, local=True)

    return Pictures(load, by_class=by_class)


def _encoded(pixels: np.ndarray, side: int) -> tuple[bytes, str]:
    """Encode small pictures as PNG, large ones as JPEG."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    if max(image.size) > side:
        image.thumbnail((side, side))
    target, small = io.BytesIO(), max(image.size) <= SMALL_SIDE
    image.save(target, "PNG" if small else "JPEG")
    return target.getvalue(), "image/png" if small else "image/jpeg"
