"""The ASGI application: which path leads to which endpoint, and for whom. `__main__` does the wiring."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from midstream.protocol import CloseCode
from realtime.access.authentication import Credentials
from realtime.access.connection_limits import OpenConnections
from realtime.background_tasks import BackgroundTasks
from realtime.http import asyncapi
from realtime.http.client_secret_endpoint import client_secret_endpoint
from realtime.http.cors import shared_with
from realtime.http.document_endpoint import document_endpoint
from realtime.http.follow_and_steer_endpoint import routes as streams
from realtime.http.guard import Access, caller_of, guarded
from realtime.http.listing_endpoint import listing_endpoint
from realtime.http.long_lived_routes import lasting, open_connection
from realtime.http.model_endpoint import model_endpoint
from realtime.http.openai.errors import error_response
from realtime.http.openai.routes import routes as openai
from realtime.http.openapi import document as openapi
from realtime.http.pages import routes as pages
from realtime.http.request_work import RequestWork
from realtime.http.sse import SseTimeouts
from realtime.http.unknown_routes import no_endpoint, no_websocket, websocket_alone
from realtime.hub.hub import Hub
from realtime.hub.observers import Observer
from realtime.observability.listing import ListingObserver
from realtime.observability.metrics import Metrics
from realtime.pieces import Pieces
from realtime.websocket.connection import Connection, ConnectionLimits, serve
from realtime.work_ledger import WorkLedger


class Endpoints:
    """The HTTP and WebSocket endpoints, over one hub."""

    def __init__(
        self,
        hub: Hub,
        metrics: Metrics | None,
        limits: ConnectionLimits,
        *,
        credentials: Credentials,
        connections: OpenConnections,
        listings: ListingObserver,
        background: BackgroundTasks,
        observer: Observer,
        timeouts: SseTimeouts | None = None,
        ledger: WorkLedger | None = None,
    ) -> None:
        self._hub = hub
        self._metrics = metrics
        self._limits = limits
        self._background = background
        self.observer = observer
        self.connections = connections
        self.credentials = credentials
        timeouts = timeouts or SseTimeouts()
        self.work = work = RequestWork(ledger)
        self.openai = openai(hub, credentials, connections, work, limits.max_message_bytes, timeouts)
        self.streams = streams(hub, credentials, connections, work, limits.max_message_bytes, timeouts)
        self.open: dict[str, Connection] = {}  # by session_id
        self.change_model = model_endpoint(hub, credentials)
        self.list_streams = listing_endpoint(listings, credentials, work, lambda: len(self.open))

    async def realtime(self, websocket: WebSocket) -> None:
        open_connection(websocket.scope).revoke = partial(
            websocket.close, CloseCode.NOT_AUTHENTICATED, "your key was revoked"
        )
        caller = caller_of(websocket)
        work = self.work.of(caller)
        await serve(websocket, self._hub, caller, work, self._limits, self.open, self.observer)

    async def healthz(self, request: Request) -> Response:
        """This process answers, and each of its tasks lives."""
        if dead := self._background.dead:
            return JSONResponse({"status": f"{', '.join(dead)} has died and is being started anew"}, 503)
        return JSONResponse({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """A stream that somebody started now would run."""
        if self._hub.draining:
            return JSONResponse({"status": "draining"}, 503)
        if not self._hub.serving.takes_starts:
            return JSONResponse({"status": "engine not ready"}, 503)
        if self._hub.full:
            return JSONResponse({"status": "at its limit of streams"}, 503)
        if self.connections.full:
            return JSONResponse({"status": "at its limit of connections"}, 503)
        return JSONResponse({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        if self._metrics is None:
            return JSONResponse({"status": "this server counts nothing: see --metrics"}, 404)
        return await self.work.brief_response(request, self._scraped(self._metrics))

    def _scraped(self, metrics: Metrics) -> Pieces[Response]:
        """Of thousands of streams: it takes its time, and is paid for."""
        metrics.tasks, metrics.connections = len(asyncio.all_tasks()), len(self.open)
        metrics.starts_taken = self._hub.serving.starts_taken
        text = yield from metrics.text()
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def application(endpoints: Endpoints) -> ASGIApp:
    app = Starlette(
        routes=guarded_routes(endpoints), exception_handlers={HTTPException: no_endpoint(endpoints.observer)}
    )
    app.router.redirect_slashes = False  # a redirect would pass no guard
    return shared_with(endpoints.credentials.origins, app, endpoints.observer)


def guarded_routes(endpoints: Endpoints) -> list[Route | WebSocketRoute]:
    credentials, observer = endpoints.credentials, endpoints.observer
    return [
        *guarded(
            Access.HOLDERS,
            credentials,
            *lasting(endpoints.connections, WebSocketRoute("/v1/realtime", endpoints.realtime)),
            Route("/v1/realtime", websocket_alone),
            Route("/v1/realtime/client_secrets", client_secret_endpoint(credentials), methods=["POST"]),
            Route("/v1/streams", endpoints.list_streams),
            Route("/v1/models/{model:name}", endpoints.change_model, methods=["POST"]),
            *endpoints.streams,
            observer=observer,
        ),
        *guarded(
            Access.HOLDERS,
            credentials,
            *endpoints.openai,
            observer=observer,
            error_response=error_response,
        ),
        *guarded(Access.METRICS, credentials, Route("/metrics", endpoints.metrics), observer=observer),
        *guarded(
            Access.EVERYBODY,
            credentials,
            Route("/healthz", endpoints.healthz),
            Route("/readyz", endpoints.readyz),
            Route("/asyncapi.json", document_endpoint(asyncapi.document)),
            Route("/openapi.json", document_endpoint(openapi.document)),
            WebSocketRoute("/{path:name}", no_websocket),
            *pages(endpoints.work),  # they hold no secret
            observer=observer,
        ),
    ]
