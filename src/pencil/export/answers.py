"""Turns answers from other tools into decisions of a run: matches rows, checks them, appends to ``reviews.jsonl``."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pencil.decisions import REVIEWS, Decision, History, Journal, Label, Where, now, read_lines
from pencil.errors import RunError
from pencil.runs.label_table import LabelTable
from pencil.runs.lock import RunLock

Rows = Mapping[str, Sequence[Where]]
"""The rows of each image name."""


@dataclass(frozen=True)
class Answer:
    """An answer about a row, at a position in the file such as ``task 3``; if ``split`` is None, ``key`` is an image.

    ``classes`` are the person's, None if the row was skipped; ``kind`` is ``accept`` or ``reject``, if the person chose
    that instead of a class. An answer that the file does not mark as made by a person (``seen``) counts only if it
    differs from the exported label.
    """

    position: str
    key: str
    split: str | None
    classes: tuple[str, ...] | None
    time: str = ""
    seen: bool = True
    kind: str = ""


@dataclass(frozen=True)
class Imported:
    """The result of importing a file.

    Attributes
    ----------
    added : Counter
        Number of added decisions of each kind.
    known : int
        Number of answers that were already imported and still count.
    overruled : int
        Number of answers that were already imported and no longer count, because the decision was changed or withdrawn.
    older : int
        Number of answers that differ from the decision about their row but are older, and are ignored.
    untouched : int
        Number of rows without an answer.
    replaced : int
        Number of answers that differ from an earlier answer about the same row in the file.
    """

    added: Counter[str]
    known: int
    overruled: int
    older: int
    untouched: int
    replaced: int


def import_answers(
    run: Path,
    source: Path,
    answers: Iterable[Answer],
    labels: LabelTable,
    *,
    complete: bool = False,
    names: Callable[[], Rows] = dict,
    written: str = "",
) -> Imported:
    """Append the answers of a file to the decisions of a run, all of them or none.

    The newest decision about a row counts: an answer older than the current decision is ignored. An answer that was
    already imported is not added again, unless the file says that it is newer than the last decision about the row.
    Possibly untouched answers count only if the file is ``complete``. ``names`` returns the rows of each image
    name; ``written`` is when the file was written, and answers without a time are assumed to be earlier.
    """
    made: dict[Where, tuple[Answer, Decision]] = {}
    answers = list(answers)
    rows = _find_rows(source, answers, labels, names)
    untouched = replaced = 0
    for answer, (where, row) in zip(answers, rows, strict=True):
        decision = _decide(source, answer, where, row, labels)
        if decision is None or (not answer.seen and not complete and decision.decision == "accept"):
            untouched += 1
            continue
        _, earlier = made.pop(where, (None, None))
        replaced += earlier is not None and earlier.label != decision.label
        made[where] = answer, decision
    with RunLock(run, "import of answers"), Journal(run / REVIEWS) as journal:
        past = _Past(read_lines(run / REVIEWS), made)
        new, counts = past.sort(made.values(), written)
        if new:
            journal.append_all(new)
    return Imported(
        Counter(decision.decision for decision in new),
        counts["known"],
        counts["overruled"],
        counts["older"],
        untouched,
        replaced,
    )


class _Past:
    """All lines about some rows, including changed and withdrawn decisions."""

    def __init__(self, lines: Iterable[Decision], rows: Container[Where]):
        self.history = History()
        self.of_row: dict[Where, list[Decision]] = {}
        for line in lines:
            if line.where in rows and not line.entry:
                self.history.add(line)
                self.of_row.setdefault(line.where, []).append(line)

    def sort(self, made: Iterable[tuple[Answer, Decision]], written: str) -> tuple[list[Decision], Counter[str]]:
        """Return the decisions that are new, and how many are ``known``, ``overruled`` or ``older``, as `Imported`."""
        new, counts = [], Counter[str]()
        for answer, decision in made:
            standing, earlier = self.history.get(decision.where), self.of_row.get(decision.where, [])
            if standing is not None and _agree(standing, decision):
                counts["known"] += 1
            elif any(_agree(one, decision) for one in earlier) and not _is_later(answer.time, earlier[-1].time):
                counts["overruled"] += 1
            elif standing is not None and _is_later(standing.time, answer.time or written):
                counts["older"] += 1
            else:
                new.append(decision)
        return new, counts


def _agree(one: Decision, other: Decision) -> bool:
    return (one.decision, one.label) == (other.decision, other.label)


def _is_later(time: str, than: str) -> bool:
    """Return whether a time is after another; False if they cannot be compared."""
    try:
        moments = [datetime.fromisoformat(text) for text in (than, time)]
    except ValueError:
        return False
    before, after = (moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments)
    return before < after


def _find_rows(
    source: Path, answers: list[Answer], labels: LabelTable, names: Callable[[], Rows]
) -> list[tuple[Where, int]]:
    """Return the key, split and row of each answer."""
    by_name = _Names(names() if any(answer.split is None for answer in answers) else {})
    places = []
    for answer in answers:
        where = by_name.find(source, answer) if answer.split is None else (answer.key, answer.split)
        places.append(where)
    rows = labels.find_rows(places)
    for answer, where in zip(answers, places, strict=True):
        if where not in rows:
            raise RunError(
                f"{source}: {answer.position} names {where[0]!r} ({where[1]}), which is not a row of this run; "
                "expected the rows of a `pencil labels` export of this run; import the file into the run that it "
                "came from."
            )
    return [(where, rows[where]) for where in places]


class _Names:
    """Rows by image name; a tool may have added or removed leading folders."""

    def __init__(self, names: Rows):
        self.exact = names
        self.by_last: dict[str, list[str]] = {}
        for name in names:
            self.by_last.setdefault(name.rpartition("/")[2], []).append(name)

    def find(self, source: Path, answer: Answer) -> Where:
        name = answer.key.replace("\\", "/").lstrip("/")
        if name in self.exact:
            return self._only_row(source, answer, name)
        alike = [
            known
            for known in self.by_last.get(name.rpartition("/")[2], [])
            if f"/{known}".endswith(f"/{name}") or f"/{name}".endswith(f"/{known}")
        ]
        if len(alike) == 1:
            return self._only_row(source, answer, alike[0])
        seen = f"is the name of {len(alike)} images, such as {alike[0]!r}" if alike else "is not an image of this run"
        example = next(iter(self.exact), "")
        raise RunError(
            f"{source}: {answer.position} has the name {answer.key!r}, which {seen}; expected a name like {example!r}; "
            "keep the folders in the names of images."
        )

    def _only_row(self, source: Path, answer: Answer, name: str) -> Where:
        first, *others = self.exact[name]
        if others:
            raise RunError(
                f"{source}: {answer.position} has the name {answer.key!r}, which is the image of {len(others) + 1} "
                f"rows, such as {first[0]!r} and {others[0][0]!r}; expected one row, because the file identifies "
                "rows only by image; export with `pencil labels --format labelstudio`, which keeps keys."
            )
        return first


def _decide(source: Path, answer: Answer, where: Where, row: int, labels: LabelTable) -> Decision | None:
    """Return the decision for an answer; None for single-label data without a class."""
    given, corrected = labels.given_labels[row], labels.corrected_labels[row]
    if answer.kind:
        label, kind = (corrected if answer.kind == "accept" else given), answer.kind
        if label is None:
            raise RunError(
                f"{source}: {answer.position} ({where[0]!r}) is {kind!r}, but the row has no given label; expected a "
                "class; choose one."
            )
    elif answer.classes is None:
        label, kind = None, "skip"
    elif not answer.classes and not labels.multilabel:
        return None
    else:
        label = _as_label(source, answer, where, labels)
        kind = "accept" if label == corrected else "reject" if label == given else "other"
    return Decision(*where, kind, label, given, corrected, answer.time or now())


def _as_label(source: Path, answer: Answer, where: Where, labels: LabelTable) -> Label:
    classes = answer.classes or ()
    for name in classes:
        if name not in labels.classes:
            known = ", ".join(map(repr, labels.classes[:5])) + (", ..." if len(labels.classes) > 5 else "")
            raise RunError(
                f"{source}: {answer.position} ({where[0]!r}) names {name!r}; expected one of the {len(labels.classes)} "
                f"classes of this run ({known}); rename it in the tool, or remove the answer."
            )
    if labels.multilabel:
        return tuple(name for name in labels.classes if name in classes)
    if len(set(classes)) != 1:
        raise RunError(
            f"{source}: {answer.position} ({where[0]!r}) names {len(classes)} classes, {', '.join(classes)}; "
            "expected one, because the data is single-label; choose one in the tool."
        )
    return classes[0]
