"""The name of a stream on this server: a request_id, which each tenant chooses for its own streams."""

from __future__ import annotations

from typing import NamedTuple

from midstream.protocol import Start, StreamFrame


class StreamKey(NamedTuple):
    tenant: str
    request_id: str


def forked_by(key: StreamKey, frame: StreamFrame) -> StreamKey | None:
    """The stream that a start forks."""
    fork = frame.fork if isinstance(frame, Start) else None
    return None if fork is None else StreamKey(key.tenant, fork.request_id)
