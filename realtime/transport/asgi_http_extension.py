"""The ASGI extension for HTTP: an end without ceremony, for which ASGI has no words. An app finds it in its
scope's extensions under CUT_OFF, as long as it answers. It knows no transport.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

CUT_OFF = "midstream.cut_off"


def with_cut_off(app: ASGIApp, cut_off: Callable[[], None]) -> ASGIApp:
    async def extended(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {CUT_OFF: cut_off}
        await app(scope, receive, send)

    return extended
