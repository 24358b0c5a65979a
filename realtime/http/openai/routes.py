"""The routes of OpenAI's API."""

from __future__ import annotations

from starlette.routing import Route, WebSocketRoute

from realtime.access.authentication import Credentials
from realtime.access.connection_limits import OpenConnections
from realtime.http.held_bodies import holding_bodies
from realtime.http.long_lived_routes import lasting
from realtime.http.openai import chat_dialect, text_dialect
from realtime.http.openai.endpoints import completions, models
from realtime.http.request_work import RequestWork
from realtime.http.sse import SseTimeouts
from realtime.hub.hub import Hub

MANY_ASKED = 32  # bodies of the largest size, of one tenant, until what they ask for is started


def routes(
    hub: Hub,
    credentials: Credentials,
    connections: OpenConnections,
    work: RequestWork,
    most_bytes: int,
    timeouts: SseTimeouts,
) -> list[Route | WebSocketRoute]:
    listed, one = models(hub)
    chats = completions(chat_dialect, hub, credentials, work, most_bytes, timeouts)
    texts = completions(text_dialect, hub, credentials, work, most_bytes, timeouts)
    asking = [
        Route("/v1/chat/completions", chats, methods=["POST"]),
        Route("/v1/completions", texts, methods=["POST"]),
    ]
    return [
        *lasting(connections, *(holding_bodies(most_bytes, route, many=MANY_ASKED) for route in asking)),
        Route("/v1/models", listed),
        Route("/v1/models/{model:name}", one),
    ]
