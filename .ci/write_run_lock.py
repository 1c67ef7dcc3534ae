"""Write requirements-run.lock: the pins of requirements.lock that a run needs, and no others.

`make lock` calls it. What is needed follows from the dependencies in pyproject.toml and those of what is installed.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
ALL, RUN = ROOT / "requirements.lock", ROOT / "requirements-run.lock"
BUILD = "setuptools"
"""What `pip install --no-build-isolation .` needs besides."""


def canonical(name: str) -> str:
    """Return a name as packages are compared by."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all packages that these requirements need on this machine, themselves included."""
    found: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    visited: set[tuple[str, str]] = set()
    while waiting:
        one, extra = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        found.add(canonical(one.name))
        for wanted in {"", *one.extras} - {seen for name, seen in visited if name == canonical(one.name)}:
            visited.add((canonical(one.name), wanted))
            waiting += [(Requirement(text), wanted) for text in requires(one.name) or ()]
    return found


def run_pins() -> Iterator[str]:
    """Yield the lines of the full lock file that a run needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = closure([*project["dependencies"], BUILD])
    return (line for line in ALL.read_text().splitlines() if canonical(line.partition("==")[0]) in needed)


if __name__ == "__main__":
    RUN.write_text("".join(f"{line}\n" for line in run_pins()))
