"""Files that are whole or not there: written beside their target, flushed, renamed."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pencil.errors import RunError


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    write(path, lambda target: target.write_text(text, encoding="utf-8"))


def write(path: Path, save: Callable[[Path], Any]) -> None:
    """Write beside the target, flush to disk, then rename: a reader sees the old file or the new one, never a half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save(temporary)
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}; what was there before is unharmed.") from error
    finally:
        temporary.unlink(missing_ok=True)
