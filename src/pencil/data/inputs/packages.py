"""Data files of installed packages, such as pretrained weights: checked, and read without running the package."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from pencil.errors import PencilError
from pencil.files import digest


def checked_folder(package: str, sha256: Mapping[str, str], missing: PencilError) -> Path:
    """Return the folder of a package whose files have the expected SHA-256.

    Parameters
    ----------
    package
        The import name of the package; its code is not run.
    sha256
        The expected SHA-256 of each file, by its path in the package.
    missing
        Raised if the package is not installed. Files that differ raise an error of the same type.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise missing
    folder = Path(spec.submodule_search_locations[0])
    for name, expected in sha256.items():
        path = folder / name
        seen = digest(path) if path.is_file() else "no such file"
        if seen != expected:
            raise type(missing)(f"{path} has the SHA-256 {seen}; expected {expected}; reinstall {package}.")
    return folder
