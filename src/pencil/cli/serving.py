"""Shared by the commands with a local page: options, the listening socket, and access control."""

import ipaddress
import signal
import socket
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from pencil.cli.output import echo
from pencil.errors import RunError

if TYPE_CHECKING:
    from pencil.review.guard import Access

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free port.")]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
AllowRemote = Annotated[
    bool,
    typer.Option(
        "--allow-remote", help="Allow access from other machines (plain HTTP, to anyone who has the address)."
    ),
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]


class Ended(KeyboardInterrupt):
    """A signal other than SIGINT asked the command to end; ``number`` is the first one."""

    def __init__(self, number: int):
        self.number = number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP (a closed terminal) end a command as Ctrl-C does and release the run's lock.

    The exit code is 128 plus the signal number, as for a process killed by the signal. An ignored signal, such as
    SIGHUP under nohup, stays ignored. While a page is served, the server handles SIGTERM, shuts down, and raises it
    again; it does not handle SIGHUP, so SIGHUP is passed to it as SIGTERM.
    """
    seen: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        signal.raise_signal(signal.SIGTERM)

    def end(number: int, _frame: FrameType | None) -> None:
        raise Ended(seen[0] if seen else number)

    previous = {}
    try:
        if threading.current_thread() is threading.main_thread():  # other threads may not set handlers
            for name, handler in (("SIGTERM", end), ("SIGHUP", pass_on)):
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    previous[number] = signal.signal(number, handler)
        yield
    except Ended as ended:
        echo("stopped", err=True)
        raise typer.Exit(128 + ended.number) from None
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


def is_remote(host: str, allow_remote: bool) -> bool:
    """Return whether other machines can reach an address; without ``allow_remote``, raise for such an address."""
    remote = not _is_loopback(host)
    if remote and not allow_remote:
        raise RunError(
            f"--host {host} can be reached from other machines; expected 127.0.0.1 or localhost; "
            "add --allow-remote to permit this."
        )
    return remote


def announce(access: "Access", saved: str, *, no_browser: bool) -> None:
    """Print the address and open it in the browser."""
    echo(access.address)
    echo(f"stop with Ctrl-C; every {saved} is saved immediately", err=True)
    if not no_browser:
        webbrowser.open(access.one_time_address)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise RunError(f"cannot listen on {host}, port {port}: {error.strerror}; choose another --port.") from error
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
