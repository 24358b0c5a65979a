"""The doors: which path leads where. Wiring happens in `__main__`; this only names the routes."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from realtime.connection import Connection, Limits, serve
from realtime.hub import Hub
from realtime.metrics import Metrics
from realtime.origin import allowed
from realtime.pages import routes as pages
from realtime.supervisor import Supervisor

LOCAL_TENANT = "local"  # everybody, while the server has no keys


class Doors:
    """The HTTP and WebSocket endpoints, over one hub."""

    def __init__(
        self,
        hub: Hub,
        supervisor: Supervisor,
        metrics: Metrics,
        limits: Limits,
        *,
        connections: int,
        origins: tuple[str, ...] = (),
    ) -> None:
        self._hub = hub
        self._supervisor = supervisor
        self._metrics = metrics
        self._limits = limits
        self._most = connections
        self._origins = origins
        self.open: dict[str, Connection] = {}  # by session_id

    async def realtime(self, websocket: WebSocket) -> None:
        if not allowed(websocket.headers, self._origins):
            body = {"error": "Pages of this origin may not connect here; see --allowed-origins."}
            await websocket.send_denial_response(JSONResponse(body, 403))
            return
        if len(self.open) >= self._most:
            body = {"error": f"The server has its most of {self._most} connections; try again later."}
            await websocket.send_denial_response(JSONResponse(body, 503, headers={"Retry-After": "1"}))
            return
        await serve(websocket, self._hub, LOCAL_TENANT, self._limits, self.open)

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

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def application(doors: Doors) -> Starlette:
    return Starlette(
        routes=[
            WebSocketRoute("/v1/realtime", doors.realtime),
            Route("/healthz", doors.healthz),
            Route("/readyz", doors.readyz),
            Route("/metrics", doors.metrics),
            *pages(),
        ]
    )
