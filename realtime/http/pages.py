"""The static files of the web page and the JavaScript SDK. It knows folders and headers, nothing of streams.

In a checkout the files lie beside the packages, in `web/` and `clients/js/src/`. A wheel brings them as data
(`tool.setuptools.data-files` in pyproject.toml), which pip lays under `share/midstream/` of the environment.
A server that has neither has no page, and is complete without it.
"""

from __future__ import annotations

import os
import stat
import sys
from functools import partial
from pathlib import Path

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Message, Receive, Scope, Send

from realtime.http.guard import caller_from
from realtime.http.request_work import RequestWork
from realtime.refusal import Refusal

# Named here, since the answer of `mimetypes` depends on the machine; a file of another kind is not there.
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; worker-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, and asked for again by its ETag
}

KEPT_HEADERS = ("ETag", "Last-Modified")

# Of any file here. To look for one of a whole head, folder by folder, would take tens of milliseconds.
LONGEST_PATH = 64  # characters

# Requests for a file that wait for their turn, of all addresses: each has a connection, and needs no key.
MOST_WAITING = 128


class PageConvertor(PathConvertor):
    """A path that may be a page's: below /v1 there are none, and what is missing there is no page."""

    regex = r"(?!v1(?:/|$)).*"


register_url_convertor("page", PageConvertor())


def routes(work: RequestWork) -> list[Route]:
    """To stand behind all others: the last one matches every path but the API's."""
    checkout = Path(__file__).parents[2]
    installed = Path(sys.prefix) / "share" / "midstream"
    places = [(checkout / "web", checkout / "clients" / "js" / "src"), (installed / "web", installed / "sdk")]
    for web, sdk in places:
        if (web / "index.html").is_file():
            return [
                Route("/sdk/{path:path}", Folder(sdk, work), methods=["GET"]),
                Route("/{path:page}", Folder(web, work), methods=["GET"]),
            ]
    return []


class Folder(StaticFiles):
    """The files of a folder that are of a kind we serve: no listings, and no other file that lies there. What
    is not there is for whoever answers for unknown paths to say."""

    def __init__(self, folder: Path, work: RequestWork) -> None:
        super().__init__(directory=folder, check_dir=False)
        self._work = work
        self._contents: dict[PathLike, tuple[int, bytes]] = {}  # when it was written, and what it held then
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await super().__call__(scope, receive, send_with_headers)

    def get_path(self, scope: Scope) -> str:
        path = str(scope["path_params"]["path"])
        if len(path) > LONGEST_PATH:
            raise _not_there()
        return os.path.normpath(path)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Paid for by whoever asks, beside the answer. Whoever owes nothing is let in all the same."""
        payer = self._work.of(caller_from(scope, scope["path"]))
        if self._waiting >= MOST_WAITING and not payer.is_free:
            raise Refusal(
                "rate_limited",
                "Your address asks for more than its share of this server's time: send this again later.",
                retry_after_ms=1000,
            )
        self._waiting += 1
        try:
            return await payer.do(partial(self._response, path, scope))
        finally:
            self._waiting -= 1

    def _response(self, path: str, scope: Scope) -> Response:
        """At once: starlette looks for each file in threads, which costs several times what a look does."""
        try:
            found, stat_result = self.lookup_path(path)
            if stat_result is not None and stat.S_ISDIR(stat_result.st_mode):
                found, stat_result = self.lookup_path(f"{path}/index.html")
        except (OSError, ValueError):  # no file has such a name
            stat_result = None
        if stat_result is None or not stat.S_ISREG(stat_result.st_mode):
            raise _not_there()
        return self.file_response(found, stat_result, scope)

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        kind = KINDS.get(Path(full_path).suffix)
        if kind is None:
            raise _not_there()
        response = super().file_response(full_path, stat_result, scope, status_code)
        if isinstance(response, FileResponse):  # it would stay open for as long as its reader likes
            headers = {name: response.headers[name] for name in KEPT_HEADERS}
            return Response(self._content(full_path, stat_result), status_code, headers, kind)
        return response

    def _content(self, path: PathLike, stat_result: os.stat_result) -> bytes:
        if path not in self._contents or self._contents[path][0] != stat_result.st_mtime_ns:
            self._contents[path] = stat_result.st_mtime_ns, Path(path).read_bytes()
        return self._contents[path][1]


def _not_there() -> HTTPException:
    return HTTPException(404, headers=HEADERS)
