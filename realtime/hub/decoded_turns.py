"""The turns with calls that streams have decoded, of each tenant and model, by the ids of their calls: a
conversation that comes again has the tokens that were decoded, however its client spells them.

Pure: it is told the time. Bounded in bytes and in time, and shared fairly among tenants.
"""

from __future__ import annotations

from typing import NamedTuple

from midstream import protocol
from midstream.protocol import StreamFrame
from realtime.hub.fair_cache import FairCache
from realtime.text.decoded_turn import DecodedTurn, Turns

KEPT_S = 3600.0
BYTE_LIMIT = 64 << 20
OLD_AT_ONCE = 100  # that are forgotten: very many may be old by now, and everybody waits meanwhile


class _Kept(NamedTuple):
    turn: DecodedTurn
    until: float


class DecodedTurns:
    def __init__(self, *, byte_limit: int = BYTE_LIMIT) -> None:
        self._kept = FairCache[str, tuple[str, str, str], _Kept](
            byte_limit
        )  # by tenant, model, and the first call's id

    def add(self, tenant: str, model: str, turn: DecodedTurn, now: float) -> None:
        self._expire(now)
        self._kept.put(tenant, (tenant, model, turn.calls[0].call_id), _Kept(turn, now + KEPT_S), turn.bytes)

    def told_in(self, tenant: str, model: str, frame: StreamFrame, now: float) -> Turns:
        """Those that the conversation of a start may have."""
        if not isinstance(frame, protocol.Start) or not frame.messages:
            return {}
        self._expire(now)
        ids = (message.tool_calls[0].id for message in frame.messages if message.tool_calls)
        found = ((call_id, self._kept.get((tenant, model, call_id))) for call_id in ids)
        return {call_id: kept.turn for call_id, kept in found if kept is not None and kept.until > now}

    def _expire(self, now: float) -> None:
        for _ in range(OLD_AT_ONCE):
            oldest = self._kept.oldest
            if oldest is None or oldest[1].until > now:
                return
            self._kept.pop(oldest[0])
