"""The server of the review page: pages of rows, images, and decisions that are saved before the response."""

import json
import socket
import traceback
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pencil.errors import PencilWarning, RunError, warn
from pencil.review.guard import Access, Guard
from pencil.review.inputs import MAX_SIDE, SMALL_SIDE, Background, NotShown
from pencil.review.queue import SHOWN, TO_LOOK_AT, Filter
from pencil.review.session import RefusedError, Review

MAX_ROWS, MAX_BODY, MAX_KEY = 200, 65536, 500
SCRIPTS = ("common.js", "draw.js", "details.js", "lot.js", "app.js")
"""The parts of the page's script, which is sent as one file to save requests."""
PAGE_ROWS = 48
"""Number of rows per page; the first rows are embedded in the page to save a request."""
PLACE = b"{{first}}"
DECIDED = {"any": None, "yes": True, "no": False}
MEDIA = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def serve(review: Review, access: Access, listening: socket.socket) -> None:
    """Serve the page of a review until Ctrl-C or SIGTERM."""
    serve_app(build_app(review, access), listening, review.pictures, review.details.neighbours)


def serve_app(app: ASGIApp, listening: socket.socket, *background: Background) -> None:
    """Serve a page until Ctrl-C or SIGTERM, then stop its background work."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        for work in background:
            work.stop()


def build_app(review: Review, access: Access) -> ASGIApp:
    """Return the page of a review behind its guard."""
    answers = _Answers(review, access)
    routes = [
        Route("/", answers.first),
        Route("/static/review.js", static(*SCRIPTS)),
        Route("/static/style.css", static("style.css")),
        Route("/favicon.ico", nothing),
        Route("/api/begin", answers.begin),
        Route("/api/page", answers.page),
        Route("/api/pictures", answers.pictures),
        Route("/api/decide", answers.decide, methods=["POST"]),
        Route("/api/lot", answers.lot),
        Route("/api/accept", answers.accept, methods=["POST"]),
        Route("/api/details/{row:int}", answers.details),
        Route("/picture/{row:int}", answers.picture),
        Route("/numbers/{row:int}", answers.numbers),
    ]
    return guarded(routes, access)


def guarded(routes: list[Route], access: Access) -> ASGIApp:
    """Return a page with these addresses behind its guard; refusals and missing inputs have their own status."""
    faults: Any = {RefusedError: _respond(400), NotShown: _respond(404), RunError: _respond(507)}
    return Guard(_reporting(Starlette(routes=routes, exception_handlers=faults)), access)


def _reporting(app: ASGIApp) -> ASGIApp:
    """Return a page that reports an unexpected exception in one line; the browser gets status 500."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - any fault of a handler, which starlette raises again
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = " ".join(f"{type(error).__name__}: {error}".split())
            warn(
                f"the page's request {scope['method']} {scope['path']} failed: {words} ({Path(place.filename).name}, "
                f"line {place.lineno}); decisions made before are saved; reload the page.",
                PencilWarning,
            )

    return call


class _Answers:
    """The response of each address; rows are named by number, never by path."""

    def __init__(self, review: Review, access: Access):
        self.review = review
        self.access = access
        self._index = read_static("index.html")

    async def first(self, _request: Request) -> Response:
        """The page, with the data of its first request embedded."""
        first = json.dumps(
            {
                "begin": await self._begin(),
                "page": await run_in_threadpool(self.review.page, Filter(TO_LOOK_AT), PAGE_ROWS),
            }
        )
        content = self._index.replace(PLACE, first.replace("<", "\\u003c").encode())
        return Response(content, media_type=MEDIA[".html"])

    async def begin(self, _request: Request) -> Response:
        return JSONResponse(await self._begin())

    async def _begin(self) -> dict[str, Any]:
        return await run_in_threadpool(self.review.begin) | {"csrf": self.access.csrf, "page_rows": PAGE_ROWS}

    async def page(self, request: Request) -> Response:
        asked = request.query_params
        count = min(max(whole(asked.get("count", str(PAGE_ROWS))), 1), MAX_ROWS)
        start, row, after = (None if name not in asked else whole(asked[name]) for name in ("start", "row", "after"))
        return JSONResponse(await run_in_threadpool(self.review.page, _filter(request), count, start, row, after))

    async def pictures(self, _request: Request) -> Response:
        self.review.pictures.start()  # not before the page is shown, because the data needs torch
        state = self.review.pictures.state
        return JSONResponse({"kind": state.kind, "reason": state.reason})

    async def picture(self, request: Request) -> Response:
        side = SMALL_SIDE if "small" in request.query_params else MAX_SIDE
        content, media = await run_in_threadpool(self.review.pictures.picture, self._where(request), side)
        return Response(content, media_type=media)

    async def numbers(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.review.pictures.numbers, self._where(request)))

    async def details(self, request: Request) -> Response:
        row = self._row(request.path_params["row"])
        return JSONResponse(await run_in_threadpool(self.review.details.of, row))

    async def decide(self, request: Request) -> Response:
        asked, chosen = await body(request), _filter(request)
        row, kind = asked.get("row"), asked.get("decision")
        codes = _numbers(asked, "label")
        count = 1
        if kind == "undo":
            made, count = await run_in_threadpool(self.review.undo, None if row is None else self._row(row))
        else:
            made = await run_in_threadpool(self.review.decide, self._row(row), str(kind), codes)
        return JSONResponse({"made": made, "count": count} | self.review.progress(chosen))

    async def lot(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.review.lot, _filter(request)))

    async def accept(self, request: Request) -> Response:
        asked, chosen = await body(request), _filter(request)
        count, seen, without = asked.get("count"), _numbers(asked, "seen"), _numbers(asked, "without")
        if type(count) is not int:
            raise RefusedError("count is not a number of rows")
        accepted = await run_in_threadpool(self.review.accept_lot, chosen, count, seen, without)
        return JSONResponse({"count": accepted} | self.review.progress(chosen))

    def _where(self, request: Request) -> tuple[str, str]:
        return self.review.queue.where(self._row(request.path_params["row"]))

    def _row(self, value: Any) -> int:
        if type(value) is not int or not 0 <= value < len(self.review.queue):
            raise HTTPException(404, "there is no such row")
        return value


def static(*names: str, package: str = "pencil.review") -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that serves files of the folder ``static`` of a package as one."""
    content = b"".join(read_static(name, package) for name in names)

    async def serve(_request: Request) -> Response:
        return Response(content, media_type=MEDIA[Path(names[0]).suffix])

    return serve


def read_static(name: str, package: str = "pencil.review") -> bytes:
    """Return a file of the folder ``static`` of a package."""
    return (resources.files(package) / "static" / name).read_bytes()


async def nothing(_request: Request) -> Response:
    """Return an empty response."""
    return Response(status_code=204)


def _respond(status: int) -> Callable[[Request, Exception], Response]:
    """Return a handler that responds with the text of an error."""
    return lambda _request, error: PlainTextResponse(str(error), status)


async def body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY:
            raise HTTPException(413, "the request is too long")
    try:
        asked = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RefusedError("the request is not JSON") from error
    if not isinstance(asked, dict):
        raise RefusedError("the request is not a JSON object")
    return asked


def _filter(request: Request) -> Filter:
    asked = request.query_params
    show, pair = asked.get("show", "all"), None
    if show not in SHOWN:
        raise RefusedError(f"show is {show!r}; expected {', '.join(SHOWN)}")
    if "pair" in asked:
        given, _, corrected = asked["pair"].partition("-")
        pair = whole(given), whole(corrected)
    try:
        low, high = (float(asked.get(name, default)) for name, default in (("low", 0.0), ("high", 1.0)))
    except ValueError as error:
        raise RefusedError("low and high are not numbers") from error
    key, decided = asked.get("key", ""), asked.get("decided", "any")
    if decided not in DECIDED or len(key) > MAX_KEY:
        raise RefusedError(f"decided is {decided[:20]!r}, and the key has {len(key)} characters")
    return Filter(show, pair, low, high, key, DECIDED[decided])


def _numbers(asked: dict[str, Any], name: str) -> list[int]:
    found = asked.get(name, [])
    if not isinstance(found, list) or not all(type(number) is int for number in found):
        raise RefusedError(f"{name} is not a list of numbers")
    return found


def whole(text: str) -> int:
    """Return the row number that a request names."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise RefusedError(f"{text[:20]!r} is not a row number")
    return int(text)
