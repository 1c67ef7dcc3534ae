"""``pencil review``: a local page where a person accepts or rejects the corrections of a run."""

from pencil.cli.options import RunPath
from pencil.cli.output import echo
from pencil.cli.serving import AllowRemote, Host, NoBrowser, Port, announce, is_remote, listen


def review(
    run: RunPath,
    port: Port = 0,
    host: Host = "127.0.0.1",
    allow_remote: AllowRemote = False,
    no_browser: NoBrowser = False,
) -> None:
    """Look at corrections in the browser, the most useful first, and accept or reject them.

    Every decision is appended to RUN/reviews.jsonl at once; come back at any time. Then `pencil labels RUN --reviewed`.
    """
    from pencil.review.guard import Access
    from pencil.review.server import serve
    from pencil.review.session import Review

    remote = is_remote(host, allow_remote)
    with Review(run) as opened, listen(host, port) as listening:
        access = Access(listening.getsockname()[1], host, remote)
        echo(f"{len(opened.queue):,} labels, {int(opened.queue.changed.sum()):,} of them changed", err=True)
        announce(access, "decision", no_browser=no_browser)
        serve(opened, access, listening)
