"""The routes of OpenAI's API."""

from __future__ import annotations

from starlette.routing import Route

from realtime.http.openai import chat, text
from realtime.http.openai.endpoints import completions, models
from realtime.http.sse import SseTimeouts
from realtime.hub.hub import Hub


def routes(hub: Hub, most_bytes: int, timeouts: SseTimeouts) -> list[Route]:
    listed, one = models(hub)
    chats = completions(chat, hub, most_bytes, timeouts)
    texts = completions(text, hub, most_bytes, timeouts)
    return [
        Route("/v1/chat/completions", chats, methods=["POST"]),
        Route("/v1/completions", texts, methods=["POST"]),
        Route("/v1/models", listed),
        Route("/v1/models/{model:name}", one),
    ]
