"""Details shown next to a row: the probabilities of its classes, and similar rows of the relevant classes."""

import threading
from typing import Any

from pencil.errors import RunError
from pencil.review.inputs import NotShown, Pictures
from pencil.review.neighbours import neighbours_of
from pencil.review.probabilities import Probability, TopClasses, read_top_classes
from pencil.review.queue import Queue


class Details:
    """The details of rows, loaded lazily."""

    def __init__(self, queue: Queue, pictures: Pictures):
        self.queue = queue
        self.neighbours = neighbours_of(queue, pictures)
        self._top: TopClasses | None = None
        self._reading = threading.Lock()

    def of(self, row: int) -> dict[str, Any]:
        """Return the details of a row."""
        self.neighbours.start()
        probable = self._probable(row)
        questions = self._questions(row, probable)
        near = self.neighbours.of(row, list(questions))
        groups = [
            {"why": why, "label": self.queue.given.names[code], "rows": self._named(near.get(code, []))}
            for code, why in questions.items()
        ]
        names = self.queue.classes
        return {
            "probabilities": [{"class": names[one.code], "probability": one.value} for one in probable],
            "neighbours": self.neighbours.state() | {"groups": groups if near else []},
            "twins": [
                {"label": self.queue.given[twin.row], "exact": twin.exact, **one}
                for twin in self.neighbours.twins(row)
                for one in self._named([twin.row])
            ],
        }

    def _probable(self, row: int) -> list[Probability]:
        with self._reading:
            if self._top is None:
                try:
                    self._top = read_top_classes(self.queue.table)
                except RunError as error:
                    raise NotShown(str(error)) from error
        found = {one.code: one for one in self._top.of(row)}
        if not self.queue.multilabel:  # an improbable given class is the most relevant one
            given, probability = int(self.queue.given.codes[row]), self.queue.given_probability(row)
            if given not in found and probability is not None:
                found[given] = Probability(given, probability)
        return sorted(found.values(), key=lambda one: -one.value)

    def _questions(self, row: int, probable: list[Probability]) -> dict[int, str]:
        """Return the codes of the labels to compare: given and corrected, or the most probable other class."""
        given, corrected = int(self.queue.given.codes[row]), int(self.queue.corrected.codes[row])
        found = ({given: "given"} if given >= 0 else {}) | ({corrected: "corrected"} if corrected != given else {})
        others = [one.code for one in probable if one.code not in found]
        if len(found) == 1 and others and not self.queue.multilabel:
            found[others[0]] = "next"
        return found

    def _named(self, rows: list[int]) -> list[dict[str, Any]]:
        return [{"row": row, "key": self.queue.where(row)[0]} for row in rows]
