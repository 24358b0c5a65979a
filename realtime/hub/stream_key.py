"""The name of a stream on this server: a request_id, which each tenant chooses for its own streams."""

from __future__ import annotations

from typing import NamedTuple


class StreamKey(NamedTuple):
    tenant: str
    request_id: str
