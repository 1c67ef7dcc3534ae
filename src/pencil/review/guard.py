"""Access to the review page: only this machine's browser, with the token, from the page itself.

Another page in the same browser cannot read or write: the Host header must be ours (against DNS rebinding), writes need
our Origin and a header that only our page knows, and no page may frame or embed ours.
"""

import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HTTP_PORT = "80"
LONGEST_SHOWN = 100
"""Maximum characters of a foreign Host header that an error message repeats."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


REFUSAL = (
    "open the address that pencil printed: it contains the token\n"
    "(the address opened automatically works only once; if another user opened it first, stop and start again)"
)


def _secret() -> str:
    return secrets.token_urlsafe(32)


class OneTimeCode:
    """A code that is accepted once, within a short time after its creation.

    All users of the machine can see the command that starts a browser, including the address. The address therefore
    contains this code, which is worthless after the browser has used it.
    """

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic):
        self.value = _secret()
        self._clock, self._until = clock, clock() + seconds
        self._used = False
        self._lock = threading.Lock()

    def use(self, given: str) -> bool:
        """Return whether this is the code, in time and unused."""
        with self._lock:
            if self._used or self._clock() > self._until or not _same(given, self.value):
                return False
            self._used = True
            return True


@dataclass(frozen=True)
class Access:
    """Where the server listens, and the secrets of this session.

    ``address`` is for the person at the terminal and keeps working; ``one_time_address`` is for the command line of a
    browser.
    """

    port: int
    host: str = "127.0.0.1"
    remote: bool = False
    token: str = field(default_factory=_secret)
    session: str = field(default_factory=_secret)
    csrf: str = field(default_factory=_secret)
    once: OneTimeCode = field(default_factory=OneTimeCode)

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"{self._home}?token={self.token}"

    @property
    def one_time_address(self) -> str:
        """The address of the page with a code that works once, within a minute."""
        return f"{self._home}?once={self.once.value}"

    @property
    def _home(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/"

    def admits(self, query: str) -> bool:
        """Return whether the query of an address has the token, or the one-time code, which is then used up."""
        given = parse_qs(query)
        return _same(given.get("token", [""])[0], self.token) or self.once.use(given.get("once", [""])[0])

    @property
    def cookie(self) -> str:
        """The name of the cookie. Browsers share cookies among all ports of a host, so it contains the port."""
        return f"pencil_review_{self.port}"

    def knows(self, host: str) -> bool:
        """Return whether a Host header is ours. Unlike a name, an IP address cannot be rebound."""
        name, _, port = host.rpartition(":")
        if not port.isdecimal():  # "localhost" or "[::1]": browsers omit the default port of HTTP
            name, port = host, HTTP_PORT
        if port != str(self.port):
            return False
        return name in LOOPBACK or (self.remote and (name == self.host or _is_address(name.strip("[]"))))

    def describe_refusal(self, hosts: Sequence[str]) -> str:
        """Return the error message for a request with foreign Host headers, which may be hostile."""
        seen = " and ".join(ascii(host[:LONGEST_SHOWN]) for host in hosts) or "no host"
        own = f" (or this machine's address, port {self.port})" if self.remote else ""
        return (
            f"the request is for {seen}; expected localhost:{self.port} or 127.0.0.1:{self.port}{own}\n"
            "open the address that pencil printed; through a tunnel, use the same local port:\n"
            f"ssh -L {self.port}:127.0.0.1:{self.port} MACHINE"
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Wraps the app: refuses foreign requests, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, access: Access):
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request: refuse it, let it in, or pass it on to the app."""
        if scope["type"] != "http":  # no websockets, no lifespan
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        respond = self._response(scope) or self.app
        await respond(scope, receive, send_with_headers)

    def _response(self, scope: Scope) -> Response | None:
        """Return a refusal, or the redirect that sets the cookie; None if the request may pass."""
        headers, access = Headers(scope=scope), self.access
        host, method = headers.get("host", ""), scope["method"]
        if len(headers.getlist("host")) != 1 or not access.knows(host):
            return PlainTextResponse(access.describe_refusal(headers.getlist("host")), 421)
        if method not in ("GET", "POST"):
            return PlainTextResponse("only GET and POST", 405)
        if method == "GET" and scope["path"] == "/" and access.admits(scope["query_string"].decode("latin-1")):
            enter = RedirectResponse("/", 303)
            enter.set_cookie(access.cookie, access.session, httponly=True, samesite="strict", path="/")
            return enter
        if not _same(cookie_parser(headers.get("cookie", "")).get(access.cookie, ""), access.session):
            return PlainTextResponse(REFUSAL, 403)
        return self._refuse_foreign(headers, host) if method == "POST" else None

    def _refuse_foreign(self, headers: Headers, host: str) -> Response | None:
        """Refuse writes that do not come from our page: the Origin header and the page's token must match."""
        ours = headers.get("origin") == f"http://{host}"
        if not ours or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return PlainTextResponse("decisions are only accepted from the review page", 403)
        if not _same(headers.get("x-csrf-token", ""), self.access.csrf):
            return PlainTextResponse("the request lacks the page's token; reload the page", 403)
        return None


def _same(seen: str, expected: str) -> bool:
    return hmac.compare_digest(seen.encode(), expected.encode())
