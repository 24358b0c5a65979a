"""Small writes: an answer's body goes out in pieces, each when those before have left, so that whoever reads
nothing has little kept for it, however long the answer is. Whoever is gone is heard of between them: each
write to nobody would be a line in the log.

It knows the pieces' size, and nothing of what they hold.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

WRITE_BYTES = 16 * 1024


def in_small_writes(app: ASGIApp) -> ASGIApp:
    async def cut(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_pieces(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) > WRITE_BYTES:
                at = 0
                while at + WRITE_BYTES < len(body):
                    piece = body[at : at + WRITE_BYTES]
                    await send({"type": message["type"], "body": piece, "more_body": True})
                    await asyncio.sleep(0)
                    at += WRITE_BYTES
                message = {**message, "body": body[at:]}
            await send(message)

        await app(scope, receive, send_pieces)

    return cut
