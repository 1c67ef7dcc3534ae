"""The memory of this machine, and numbers of bytes as text."""

import os
from pathlib import Path


def memory_limit() -> int:
    """Return the memory of this machine, or of this process's container, in bytes."""
    try:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        limit = 2**63
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return limit
    return min(limit, int(allowed)) if allowed.isdigit() else limit


def as_size(count: int) -> str:
    """Return a number of bytes as readable text."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
