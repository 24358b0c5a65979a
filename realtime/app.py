"""The doors: which path leads where, and for whom. Wiring happens in `__main__`; this names the routes."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from midstream import protocol
from realtime.access.connection_limits import Crowd
from realtime.access.credentials import Credentials
from realtime.engines.supervisor import Supervisor
from realtime.http import asyncapi
from realtime.http.client_secret_endpoint import secret_door
from realtime.http.guard import For, answer, guarded, holder_of
from realtime.http.listing_endpoint import listing_door
from realtime.http.openai.errors import error_response
from realtime.http.openai.routes import routes as openai
from realtime.http.openapi import document as openapi
from realtime.http.pages import routes as pages
from realtime.http.sse import Patience
from realtime.http.stream_endpoint import routes as streams
from realtime.hub.hub import Hub
from realtime.observability.listing import Listings
from realtime.observability.metrics import Metrics
from realtime.refusal import Refusal
from realtime.websocket.connection import Connection, Limits, serve


class Doors:
    """The HTTP and WebSocket endpoints, over one hub."""

    def __init__(
        self,
        hub: Hub,
        supervisor: Supervisor,
        metrics: Metrics | None,
        limits: Limits,
        *,
        credentials: Credentials,
        crowd: Crowd,
        listings: Listings,
        patience: Patience | None = None,
    ) -> None:
        self._hub = hub
        self._supervisor = supervisor
        self._metrics = metrics
        self._limits = limits
        self._crowd = crowd
        self.credentials = credentials
        patience = patience or Patience()
        self.openai = openai(hub, limits.max_message_bytes, patience)
        self.streams = streams(hub, limits.max_message_bytes, patience)
        self.open: dict[str, Connection] = {}  # by session_id
        self.listed = listing_door(listings, credentials, lambda: len(self.open))

    async def realtime(self, websocket: WebSocket) -> None:
        holder = holder_of(websocket)
        try:
            visitor = self._crowd.join(websocket, holder)
        except Refusal as refusal:
            await websocket.send_denial_response(answer(refusal))
            return
        try:
            await serve(websocket, self._hub, holder.tenant, self._limits, self.open)
        finally:
            self._crowd.leave(visitor)

    async def healthz(self, request: Request) -> Response:
        """This process answers."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """A stream started now would run."""
        if self._hub.draining:
            return JSONResponse({"status": "draining"}, 503)
        if not self._supervisor.ready:
            return JSONResponse({"status": "engine not ready"}, 503)
        return JSONResponse({"status": "ready"})

    async def asyncapi(self, request: Request) -> Response:
        return JSONResponse(asyncapi.document(protocol.VERSION))

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document(protocol.VERSION))

    async def metrics(self, request: Request) -> Response:
        if self._metrics is None:
            return JSONResponse({"status": "this server counts nothing: see --metrics"}, 404)
        self._metrics.tasks, self._metrics.connections = len(asyncio.all_tasks()), len(self.open)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def application(doors: Doors) -> Starlette:
    credentials = doors.credentials
    return Starlette(
        routes=[
            *guarded(
                For.HOLDERS,
                credentials,
                WebSocketRoute("/v1/realtime", doors.realtime),
                Route("/v1/realtime/client_secrets", secret_door(credentials), methods=["POST"]),
                Route("/v1/streams", doors.listed),
                *doors.streams,
            ),
            *guarded(For.HOLDERS, credentials, *doors.openai, words=error_response),
            *guarded(For.ADMINS, credentials, Route("/metrics", doors.metrics)),
            *guarded(
                For.EVERYBODY,
                credentials,
                Route("/healthz", doors.healthz),
                Route("/readyz", doors.readyz),
                Route("/asyncapi.json", doors.asyncapi),
                Route("/openapi.json", doors.openapi),
                *pages(),  # they hold no secret
            ),
        ]
    )
