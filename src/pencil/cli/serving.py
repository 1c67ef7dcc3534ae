"""What the commands with a local page share: their options, the listening socket, and who may reach it."""

import ipaddress
import socket
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from pencil.cli.output import echo
from pencil.errors import RunError

if TYPE_CHECKING:
    from pencil.review.guard import Access

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Listen here; 0 is any free port.")]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
AllowRemote = Annotated[
    bool, typer.Option("--allow-remote", help="Let other machines in (plain HTTP: whoever has the address).")
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]


def is_remote(host: str, allow_remote: bool) -> bool:
    """Return whether other machines can reach an address; without ``allow_remote`` such an address is refused."""
    remote = not _is_loopback(host)
    if remote and not allow_remote:
        raise RunError(
            f"--host {host} can be reached from other machines; expected 127.0.0.1 or localhost; "
            "if you mean it, add --allow-remote."
        )
    return remote


def announce(access: "Access", saved: str, *, no_browser: bool) -> None:
    """Print the address and open it in the browser."""
    echo(access.address)
    echo(f"stop with Ctrl-C; every {saved} is saved as it is made", err=True)
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
