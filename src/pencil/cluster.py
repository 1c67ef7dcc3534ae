"""A Ray cluster: the one that ``RAY_ADDRESS`` names, or a local one for as long as it is needed."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pencil.errors import RecipeError

ENGINES = ("local", "ray")
"""Where work that can be spread is done: on this machine, or on those of a Ray cluster."""
RETRIES = 1
"""A task whose machine dies runs once more on another one."""
LOOK = 1.0
"""Seconds between two looks at whether a stop is asked for."""


def check_engine(engine: str) -> None:
    """Raise :class:`RecipeError` if there is no such engine, or if it is not installed."""
    if engine not in ENGINES:
        raise RecipeError(f"--engine is {engine!r}; expected {' or '.join(ENGINES)}.")
    if engine == "ray":
        import_ray()


def import_ray() -> Any:
    """Return the module ``ray``, which is an optional dependency and sends no usage statistics here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise RecipeError("--engine ray needs Ray; install it with pip install 'pencil-labels[ray]'.") from error
    return ray


@contextmanager
def joined_cluster() -> Iterator[Any]:
    """Join the cluster, unless this process has joined one; give the module ``ray``, and leave the cluster at the end.

    Without ``RAY_ADDRESS`` a local cluster is started, and stopped at the end. Leaving ends the tasks that still run.
    """
    ray = import_ray()
    joins = not ray.is_initialized()
    if joins:
        address = os.environ.get("RAY_ADDRESS", "local")
        try:
            with _sigterm_kept():
                ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RecipeError(
                f"cannot join the Ray cluster {address!r}: {reason_of(error)}; expected one that runs; check "
                "RAY_ADDRESS, or unset it for a local cluster."
            ) from error
    try:
        yield ray
    finally:
        if joins:
            ray.shutdown()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore what SIGTERM does: ``ray.init`` sets a handler that ends the process, and never takes it back."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and before is not None:  # only the main thread can, and only handlers that Python has set
            signal.signal(signal.SIGTERM, before)


def reason_of(error: BaseException) -> str:
    """Return in one line why something has failed: the error that a task raised, where it is known."""
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, BaseException) else error
    lines = [line.strip() for line in str(found).splitlines() if line.strip()]
    if not lines:
        return type(found).__name__
    is_trace = found is error and "(pid=" in lines[0]  # the text of a task's error ends in what was raised
    return lines[-1] if is_trace else f"{type(found).__name__}: {lines[0]}"


def has_gpus(ray: Any) -> bool:
    """Return whether a machine of the cluster has a GPU."""
    return bool(ray.cluster_resources().get("GPU", 0))


def as_task(ray: Any, function: Callable[..., Any], *, gpu: bool) -> Any:
    """Return a function as a task for a core, and with ``gpu`` for a GPU."""
    return ray.remote(num_cpus=1, num_gpus=int(gpu), max_retries=RETRIES)(function)


def finished_tasks(
    ray: Any,
    task: Any,
    arguments: Sequence[tuple[Any, ...]],
    at_a_time: int | None = None,
    idle: Callable[[], None] | None = None,
) -> Generator[tuple[int, Any], None, None]:
    """Submit a task for each tuple of arguments, and yield their numbers and references as they end.

    Closing the generator cancels the tasks that still run.

    Parameters
    ----------
    ray, task
        The module, and what :func:`as_task` returned.
    arguments
        Those of each task.
    at_a_time
        At most this many tasks are submitted and not ended; None submits all.
    idle
        Called every second while no task ends; it may raise.
    """
    waiting, running = list(reversed(range(len(arguments)))), dict[Any, int]()
    try:
        while waiting or running:
            while waiting and (at_a_time is None or len(running) < at_a_time):
                number = waiting.pop()
                running[task.remote(*arguments[number])] = number
            done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK)
            for reference in done:
                yield running.pop(reference), reference
            if not done and idle is not None:
                idle()
    finally:
        for reference in running:
            ray.cancel(reference)
