"""What becomes of a `start`: a refusal, as early as there is a reason for one, or a stream.

It knows the server's own bounds and asks the gate about the tenant's. It knows neither the streams that live
nor whoever listens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from engine import api
from midstream import protocol
from realtime.hub.registry import Entry
from realtime.hub.stream_key import StreamKey
from realtime.hub.tokenizing import checked_params, digest, tokenize
from realtime.refusal import Refusal
from realtime.stream.stream import Stream
from realtime.tenants.quota import Gate
from realtime.text.served_model import ServedModel


class Starter:
    def __init__(
        self, gate: Gate, send: Callable[[api.AnyCommand], None], *, window: int, max_streams: int
    ) -> None:
        self._gate = gate
        self._send = send
        self._window = window
        self._max_streams = max_streams
        self._numbers = itertools.count()
        self._tenants: dict[str, int] = {}

    def check(self, tenant: str, frame: protocol.Start, model: ServedModel, *, others: int) -> None:
        """Refuse what can be refused before anything is tokenized; `others` are streams that there are."""
        if frame.model not in (None, model.name):
            raise Refusal(
                "unknown_model", f'There is no model "{frame.model}"; this server has "{model.name}".'
            )
        if (frame.messages is None) == (frame.prompt is None):
            raise Refusal(
                "invalid_frame", "A start has either `messages` or `prompt`, not both and not neither."
            )
        if others >= self._max_streams:
            raise Refusal(
                "overloaded", f"The server has its most of {self._max_streams} streams.", retry_after_ms=1000
            )
        self._gate.check(tenant, frame)

    def make(
        self, key: StreamKey, frame: protocol.Start, tokens: list[int] | None, model: ServedModel, now: float
    ) -> Entry:
        """`tokens` are the prompt, where that was tokenized before."""
        prompt = tokens if tokens is not None else tokenize(frame, model) or []
        params = checked_params(frame, prompt, model)
        share = self._gate.admit(key.tenant, frame, len(prompt))
        stream = Stream(
            next(self._numbers),
            frame,
            prompt,
            params,
            model=model,
            tenant=self._tenants.setdefault(key.tenant, len(self._tenants)),
            window=self._window,
            send=self._send,
            now=now,
        )
        return Entry(key, stream, digest(frame), share)
