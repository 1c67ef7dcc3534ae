"""``pencil review``: a local page where a person accepts or rejects the corrections of a run."""

import ipaddress
import socket
import webbrowser
from typing import Annotated

import typer

from pencil.cli.options import RunPath
from pencil.cli.output import echo
from pencil.errors import RunError


def review(
    run: RunPath,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Listen here; 0 is any free port.")] = 0,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Let other machines in (plain HTTP: whoever has the address).")
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Look at corrections in the browser, the most useful first, and accept or reject them.

    Every decision is appended to RUN/reviews.jsonl at once; come back at any time. Then `pencil labels RUN --reviewed`.
    """
    from pencil.review.guard import Access
    from pencil.review.server import serve
    from pencil.review.session import Review

    remote = not _is_loopback(host)
    if remote and not allow_remote:
        raise RunError(
            f"--host {host} can be reached from other machines; expected 127.0.0.1 or localhost; "
            "if you mean it, add --allow-remote."
        )
    with Review(run) as opened, _listen(host, port) as listening:
        access = Access(listening.getsockname()[1], host, remote)
        echo(f"{len(opened.queue):,} labels, {int(opened.queue.changed.sum()):,} of them changed", err=True)
        echo(access.address)
        echo("stop with Ctrl-C; every decision is saved as it is made", err=True)
        if not no_browser:
            webbrowser.open(access.one_time_address)
        serve(opened, access, listening)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
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
