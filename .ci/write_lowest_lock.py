"""Write requirements-lowest.lock: the oldest versions that pyproject.toml allows, and the locked ones of all the rest.

`make lowest-lock` calls it. The rest is what a run needs (requirements-run.lock) and the test runner. The lock is for a
CPU: NVIDIA's packages are left out.
"""

import re
import runpy
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
LOWEST = ROOT / "requirements-lowest.lock"
TESTS = ("hypothesis", "iniconfig", "pluggy", "pytest", "pytest-timeout", "sortedcontainers")
NEAREST = {"torch": "2.13.0", "torchvision": "0.28.0"}
"""Tested in place of the oldest: the oldest torch that was at hand as a CPU build, and its torchvision."""
COMPATIBLE = {
    "huggingface-hub": "0.36.2",  # tokenizers
    "pandas": "2.2.2",  # NumPy 2.0
    "polars": "1.0.0",  # scikit-learn 1.6 does not find the column names of polars 2
    "pydantic-core": "2.20.0",
    "pytz": "2025.2",
}
"""Packages that the oldest versions need, or can be tested with, in other versions than the locked ones."""
GPU = re.compile(r"nvidia-|cuda-|triton$")


def lowest_pins() -> list[str]:
    """Return the lines of the lock file."""
    canonical = runpy.run_path(str(ROOT / ".ci/write_run_lock.py"))["canonical"]
    locks = (ROOT / name for name in ("requirements.lock", "requirements-run.lock"))
    every, run = ({canonical(n): v for n, _, v in (x.partition("==") for x in p.read_text().split())} for p in locks)
    pins = {name: version for name, version in run.items() if not GPU.match(name)}
    pins |= {name: every[name] for name in TESTS} | COMPATIBLE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for one in map(Requirement, project["dependencies"]):
        (pins[canonical(one.name)],) = [part.version for part in one.specifier if part.operator in (">=", "==")]
    return [f"{name}=={version}" for name, version in sorted((pins | NEAREST).items())]


if __name__ == "__main__":
    LOWEST.write_text("".join(f"{line}\n" for line in lowest_pins()))
