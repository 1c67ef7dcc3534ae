"""A Ray cluster: the cluster at ``RAY_ADDRESS``, or a temporary local cluster."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pencil.errors import RecipeError

ENGINES = ("local", "ray")
"""Where parallel work runs: on this machine, or on the machines of a Ray cluster."""
RETRIES = 1
"""How often a task is retried on another machine if its machine dies."""
LOOK = 1.0
"""Seconds between checks for a stop request."""


def check_engine(engine: str) -> None:
    """Raise :class:`RecipeError` if the engine is unknown or not installed."""
    if engine not in ENGINES:
        raise RecipeError(f"--engine is {engine!r}; expected {' or '.join(ENGINES)}.")
    if engine == "ray":
        import_ray()


def import_ray() -> Any:
    """Return the optional module ``ray``, with its usage statistics disabled."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise RecipeError("--engine ray needs Ray; install it with pip install 'pencil-labels[ray]'.") from error
    return ray


@contextmanager
def joined_cluster() -> Iterator[Any]:
    """Join the cluster unless this process already has; yield the module ``ray``; leave the cluster at the end.

    Without ``RAY_ADDRESS`` a local cluster is started, and stopped at the end. Leaving ends any tasks that are still
    running.
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
                f"cannot join the Ray cluster {address!r}: {reason_of(error)}; expected a running cluster; check "
                "RAY_ADDRESS, or unset it for a local cluster."
            ) from error
    try:
        yield ray
    finally:
        if joins:
            ray.shutdown()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the SIGTERM handler: ``ray.init`` sets one that ends the process, and never restores the old one."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        in_main = threading.current_thread() is threading.main_thread()
        if (
            in_main and before is not None
        ):  # only the main thread can set handlers, and only those that Python installed
            signal.signal(signal.SIGTERM, before)


def reason_of(error: BaseException) -> str:
    """Return the reason for a failure in one line: the error that the task raised, if known."""
    cause = getattr(error, "cause", None)
    found = cause if isinstance(cause, BaseException) else error
    lines = [line.strip() for line in str(found).splitlines() if line.strip()]
    if not lines:
        return type(found).__name__
    is_trace = found is error and "(pid=" in lines[0]  # the last line of a task's traceback is the exception
    return lines[-1] if is_trace else f"{type(found).__name__}: {lines[0]}"


def has_gpus(ray: Any) -> bool:
    """Return whether a machine of the cluster has a GPU."""
    return bool(ray.cluster_resources().get("GPU", 0))


def as_task(ray: Any, function: Callable[..., Any], *, gpu: bool) -> Any:
    """Return a function as a Ray task on one core, and one GPU if ``gpu`` is set."""
    return ray.remote(num_cpus=1, num_gpus=int(gpu), max_retries=RETRIES)(function)


def finished_tasks(
    ray: Any,
    task: Any,
    arguments: Sequence[tuple[Any, ...]],
    at_a_time: int | None = None,
    idle: Callable[[], None] | None = None,
) -> Generator[tuple[int, Any], None, None]:
    """Submit a task for each tuple of arguments, and yield their indices and references as they finish.

    At most ``at_a_time`` tasks are unfinished; None submits all at once. ``idle`` is called every second while
    waiting, and may raise. Closing the generator cancels the running tasks.
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
