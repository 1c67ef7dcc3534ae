"""The server of the audit page: it is guarded like the review page, and no response reveals a label."""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pencil.auditing.blind import Blind
from pencil.errors import command
from pencil.review.guard import Access
from pencil.review.inputs import NotShown
from pencil.review.server import body, guarded, nothing, static, whole
from pencil.review.session import RefusedError

NO_DATA = (
    "The data of this run cannot be loaded here, so there is nothing to show. `pencil review` says why. Start the "
    "audit in the folder where you started training, or fill in a sheet: {sheet}."
)
NO_PICTURE = "This row cannot be shown. If you cannot tell its class, answer 'cannot tell'."


def build_app(blind: Blind, access: Access) -> ASGIApp:
    """Return the page of an audit behind the guard of the review."""
    answers = _Answers(blind, access)
    routes = [
        Route("/", static("audit.html", package="pencil.auditing")),
        Route("/static/common.js", static("common.js")),
        Route("/static/audit.js", static("audit.js", package="pencil.auditing")),
        Route("/static/audit.css", static("audit.css", package="pencil.auditing")),
        Route("/static/style.css", static("style.css")),
        Route("/favicon.ico", nothing),
        Route("/api/begin", answers.begin),
        Route("/api/row", answers.row),
        Route("/api/pictures", answers.pictures),
        Route("/api/answer", answers.answer, methods=["POST"]),
        Route("/picture/{at:int}", answers.picture),
        Route("/numbers/{at:int}", answers.numbers),
    ]
    return guarded(routes, access)


class _Answers:
    """The response of each address; rows are named by their place in the sample, never by key."""

    def __init__(self, blind: Blind, access: Access):
        self.blind = blind
        self.access = access

    async def begin(self, _request: Request) -> Response:
        return JSONResponse(self.blind.begin() | {"csrf": self.access.csrf})

    async def row(self, request: Request) -> Response:
        asked = request.query_params
        at = None if "at" not in asked else self._place(whole(asked["at"]))
        return JSONResponse(await run_in_threadpool(self.blind.row, at))

    async def pictures(self, _request: Request) -> Response:
        self.blind.pictures.start()
        state = self.blind.pictures.state
        sheet = command("audit", self.blind.run, "--sheet", "FILE")
        return JSONResponse({"kind": state.kind, "reason": NO_DATA.format(sheet=sheet) if state.kind == "none" else ""})

    async def picture(self, request: Request) -> Response:
        content, media = await self._shown(self.blind.pictures.picture, request)
        return Response(content, media_type=media)

    async def numbers(self, request: Request) -> Response:
        return JSONResponse(await self._shown(self.blind.pictures.numbers, request))

    async def _shown(self, show: Any, request: Request) -> Any:
        sample = self.blind.sample
        where = sample.questions.where(int(sample.units[self._place(request.path_params["at"])]))
        try:
            return await run_in_threadpool(show, where)
        except NotShown:  # the reason may contain the file name, and with it the class
            raise NotShown(NO_PICTURE) from None

    async def answer(self, request: Request) -> Response:
        asked = await body(request)
        at, kind, code = self._place(asked.get("at")), asked.get("kind"), asked.get("class")
        if kind == "undo":
            return JSONResponse(await run_in_threadpool(self.blind.undo, at))
        if code is not None and type(code) is not int:
            raise RefusedError("class is not the position of a class")
        return JSONResponse(await run_in_threadpool(self.blind.answer, at, str(kind), code))

    def _place(self, value: Any) -> int:
        if type(value) is not int or not 0 <= value < len(self.blind):
            raise HTTPException(404, "there is no such row")
        return value
