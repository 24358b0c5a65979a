"""Where the doors of OpenAI's API are."""

from __future__ import annotations

from starlette.routing import Route

from realtime.http.openai import chat, text
from realtime.http.openai.endpoints import completions, models
from realtime.http.sse import Patience
from realtime.hub.hub import Hub


def routes(hub: Hub, most_bytes: int, patience: Patience) -> list[Route]:
    listed, one = models(hub)
    chats = completions(chat, hub, most_bytes, patience)
    texts = completions(text, hub, most_bytes, patience)
    return [
        Route("/v1/chat/completions", chats, methods=["POST"]),
        Route("/v1/completions", texts, methods=["POST"]),
        Route("/v1/models", listed),
        Route("/v1/models/{model:name}", one),
    ]
