"""Run a function in several processes that form one world."""

import multiprocessing
import os
import socket
import traceback
import warnings
from collections.abc import Callable
from typing import Any

FORK = multiprocessing.get_context("fork")  # torch is imported already, which takes three seconds


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def in_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What ``function(*args)`` gives on each rank; it can be sent to another process."""
    port, pipes, processes = free_port(), [], []
    for rank in range(size):
        mine, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_work, args=(theirs, rank, size, port, function, args))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    try:
        results = [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.join(timeout=30)
            process.kill()
    for result in results:
        assert not (isinstance(result, tuple) and result[:1] == ("failed",)), result[1]
    return results


def _work(pipe: Any, rank: int, size: int, port: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        pipe.send(function(*args))
    except BaseException:  # noqa: BLE001 - told to the test, which fails with it
        pipe.send(("failed", traceback.format_exc()))
