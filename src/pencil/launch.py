"""Several processes on one machine that train as one: ``pencil train --processes N``; torchrun does it across many."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from pencil.errors import RecipeError

GRACE = 25.0
"""Seconds that the others have to end by themselves once one has ended badly."""


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run ``python -m pencil ARGUMENTS`` in so many processes; the exit code is the worst of theirs, 0 at best.

    Signals go on to all of them. When one fails the others lose contact with it and end, or are made to.
    """
    if processes < 1:
        raise RecipeError(f"--processes is {processes}; expected at least 1.")
    environment = {**os.environ, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    environment["MASTER_PORT"] = str(_free_port())
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    command = [sys.executable, "-m", "pencil", *arguments]
    workers = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return _wait(workers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for worker in workers:
            worker.kill()
            worker.wait()


def _wait(workers: Sequence["subprocess.Popen[bytes]"]) -> int:
    failed_at = None
    while any(worker.poll() is None for worker in workers):
        if failed_at is None and any(worker.poll() not in (None, 0) for worker in workers):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE:
            for worker in workers:
                worker.kill()
        time.sleep(0.05)
    codes = [worker.wait() for worker in workers]
    first_bad = next((code for code in codes if code != 0), 0)
    return first_bad if len({code for code in codes if code != 0}) <= 1 else _worst(codes)


def _worst(codes: Sequence[int]) -> int:
    """A process that died tells more than those that lost contact with it; a signal is 128 and its number."""
    died = [128 - code for code in codes if code < 0]
    return died[0] if died else max(codes)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
