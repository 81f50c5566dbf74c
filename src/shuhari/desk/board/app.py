"""The routes of the board, as an ASGI application.

`/` and `/static/` serve the page, `/api/NAME` the views, which run in threads or, if coroutines, in the server's loop,
and `/metrics` Prometheus. Nothing is loaded from or embedded in other sites (the headers below), and text of models
reaches the page only as JSON.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Mapping
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shuhari.config.overlay import RecipeError
from shuhari.data import nearest
from shuhari.desk.board.asking import read_query
from shuhari.desk.board.catalogue import Catalogue, name_doctor
from shuhari.desk.board.views import CHANGES, COSTLY, VIEWS
from shuhari.desk.board.views.metrics import describe_metrics
from shuhari.desk.board.views.picture import Flow, Picture
from shuhari.desk.plain import to_json
from shuhari.desk.serving.bodies import Bodies, read_object
from shuhari.desk.serving.guard import Guard
from shuhari.desk.serving.refusals import Refused, show
from shuhari.store import LockedError, NoRunError, StoreError
from shuhari.store.files import CheckpointError, DamageError, NewerError
from shuhari.store.listing import STATUSES, summarise

STATIC = Path(__file__).parent / "static"
FIELDS = 1100  # of a query: all runs that a list shows, and more
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
log = logging.getLogger("shuhari")


def make_app(root: str | Path, key: str, *, local: bool = True) -> ASGIApp:
    """Return the board of the runs below `root`. `key`: required as `Authorization: Bearer KEY` for each change and
    each request that loads a model; if the board does not listen on loopback (`local`), for every request."""

    closed = {f"/api/{name}" for name in COSTLY}

    def is_open(scope: Scope) -> bool:
        page = scope["path"] == "/" or scope["path"].startswith("/static/")
        return page or (local and scope["method"] in ("GET", "HEAD") and scope["path"] not in closed)

    return Headed(Guard(make_pages(Catalogue(root, local=local)), local, key, is_open))


def make_pages(runs: Catalogue) -> ASGIApp:
    """Return the routes, without a guard."""
    bodies = Bodies()

    async def view(request: Request) -> Response:
        found = _find(VIEWS, request.path_params["name"])
        return await _answer(found, runs, read_query(found, _parse(request.url.query)), request)

    async def change(request: Request) -> Response:
        found = _find(CHANGES, request.path_params["name"])
        given = await bodies.read(request, read_object)
        query = {
            k: [str(x) for x in v] if isinstance(v, list) else [str(v)]
            for k, v in given.items()
        }
        return await _answer(found, runs, read_query(found, query), request)

    async def metrics(request: Request) -> Response:
        return await _answer(describe_metrics, runs, {}, request)

    return Starlette(
        routes=[
            Route("/", lambda request: FileResponse(STATIC / "index.html")),
            Route("/static/plotly.min.js", lambda request: FileResponse(find_plotly())),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/metrics", metrics),
            Route("/api/{name}", view),
            Route("/api/{name}", change, methods=["POST"]),
        ],
        exception_handlers={Refused: _refuse, HTTPException: _miss, Exception: _fail},
    )


def find_plotly() -> Path:
    """Return the path of plotly.js in the Python package. Raises ModuleNotFoundError if it is not installed."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError('shuhari board needs plotly: pip install "shuhari[board]"')
    return Path(next(iter(found.submodule_search_locations))) / "package_data" / "plotly.min.js"


class Headed:
    """Adds `HEADERS` to every response, and forbids caching of anything but the page."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cache = "no-cache" if scope.get("path", "").startswith("/static/") else "no-store"
        more = [(k.encode(), v.encode()) for k, v in {**HEADERS, "cache-control": cache}.items()]

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self.app(scope, receive, headed)


def _parse(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=FIELDS)
    except ValueError:
        raise Refused(f"the query has more than {FIELDS} fields") from None


def _find(views: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    if name not in views:
        raise Refused(f"no address /api/{show(name)[1:-1]}; {nearest(name[:60], views)}", status=404)
    return views[name]


async def _answer(view: Callable[..., Any], runs: Catalogue, asked: Mapping[str, Any], request: Request) -> Response:
    try:
        if iscoroutinefunction(view):
            found = await _cancel_if_gone(view(runs, **asked), request)
        else:
            found = await run_in_threadpool(view, runs, **asked)
    except NoRunError as error:
        raise Refused(str(error), status=404) from None
    except LockedError as error:
        raise Refused(str(error), status=409) from None
    except (StoreError, RecipeError, sqlite3.Error) as error:  # a damaged run does not affect others
        raise Refused(await run_in_threadpool(_explain, error, runs, asked), status=422) from None
    if isinstance(found, Picture):
        return Response(found.data, media_type=found.kind)
    if isinstance(found, Flow):
        return StreamingResponse(found.chunks, media_type=found.kind)
    return Response(await run_in_threadpool(to_json, found), media_type="application/json")


def _explain(error: Exception, runs: Catalogue, asked: Mapping[str, Any]) -> str:
    """Return why a request failed; for a damaged run, with a pointer to `shuhari doctor`."""
    name = asked.get("run")
    if isinstance(error, RecipeError) or not isinstance(name, str):
        return str(error)
    path = runs.find(name)
    unreadable = summarise(path, name).status == STATUSES[-1]
    damaged = unreadable or isinstance(error, DamageError | CheckpointError | sqlite3.Error)
    return name_doctor(str(error), path) if damaged and not isinstance(error, NewerError) else str(error)


async def _cancel_if_gone(work: Coroutine[Any, Any, Any], request: Request) -> Any:
    """Await `work`, and cancel it if the client disconnects. The request's body has been read."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait((doing, gone), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,))
            raise Refused("who asked has gone", status=499)
        return doing.result()
    except asyncio.CancelledError:
        raise Refused("the board ends", status=503) from None
    finally:
        doing.cancel()
        gone.cancel()


async def _refuse(request: Request, error: Exception) -> Response:  # all three are coroutines: none waits for a thread
    assert isinstance(error, Refused)
    return JSONResponse(error.body, error.status, dict(error.headers))


async def _miss(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = f"{request.method} is not answered here: {error.detail}"
    return await _refuse(request, Refused(why, status=error.status_code))


async def _fail(request: Request, error: Exception) -> Response:
    """Log an error in the terminal; the page learns only that there was one."""
    log.error("the board could not answer %s", show(request.url.path), exc_info=error)
    why = f"the board failed ({type(error).__name__}): its terminal says more"
    return await _refuse(request, Refused(why, status=500))
