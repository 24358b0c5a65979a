"""Where the doors of OpenAI's API are, and of what this server adds to it for streams over HTTP."""

from __future__ import annotations

from starlette.routing import Route

from realtime.hub import Hub
from realtime.openai import chat, text
from realtime.openai.doors import completions, models
from realtime.sse import Patience
from realtime.stream_door import StreamDoor


def routes(hub: Hub, most_bytes: int, patience: Patience) -> list[Route]:
    listed, one = models(hub)
    streams = StreamDoor(hub, most_bytes, patience)
    chats = completions(chat, hub, most_bytes, patience)
    texts = completions(text, hub, most_bytes, patience)
    return [
        Route("/v1/chat/completions", chats, methods=["POST"]),
        Route("/v1/completions", texts, methods=["POST"]),
        Route("/v1/models", listed),
        Route("/v1/models/{model:path}", one),
        Route("/v1/streams/{request_id:path}/control", streams.control, methods=["POST"]),
        Route("/v1/streams/{request_id:path}", streams.follow),
    ]
