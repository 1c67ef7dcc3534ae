"""The tables of a benchmark as LaTeX, for the package booktabs."""

from collections.abc import Mapping, Sequence
from typing import Any

from pencil.bench.spec import Spec
from pencil.bench.tables import Entry, all_grids, describe

ESCAPED = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "*": "{*}",  # after the end of a row, a star or a bracket would be read as its argument
        "[": "{[}",
    }
)


def escape(text: str) -> str:
    """Return text escaped for LaTeX, on one line."""
    return _one_line(text).translate(ESCAPED)


def _one_line(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def as_latex(spec: Spec, entries: Sequence[Entry], by_budget: Mapping[str, Sequence[Entry]] | None = None) -> str:
    """Return all tables as LaTeX, one ``table`` each, in the order of :func:`pencil.bench.tables.as_markdown`."""
    lines = [r"% \usepackage{booktabs}", f"% {_one_line(spec.name)}: {_one_line(describe(spec))}"]
    for number, grid in enumerate(all_grids(spec, entries, by_budget or {}), 1):
        lines += ["", *_table(grid, f"tab:{_label(spec.name)}-{number}")]
    return "\n".join(lines) + "\n"


def _table(grid: Mapping[str, Any], label: str) -> list[str]:
    rows = [[escape(row["name"]), *map(_cell, row["cells"])] for row in grid["rows"]]
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(grid['dataset'])}: {escape(grid['title'])}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{l{'r' * len(grid['noises'])}}}",
        r"\toprule",
        _row(["method", *map(escape, grid["noises"])]),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Mapping[str, Any]) -> str:
    text = escape(cell["text"])
    return rf"\textbf{{{text}}}" if cell["leads"] else text


def _label(name: str) -> str:
    """The name reduced to the characters that a label may contain."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
