"""The body of an HTTP answer: so much of it as is taken, and no more. It blocks."""

from __future__ import annotations

import math
import time
from http.client import IncompleteRead
from typing import Any

PIECE_BYTES = 2**16


def read_body(response: Any, most: int, within_s: float = math.inf) -> bytes:
    """As much as an answer may have, and as comes in time: where there is more, it is none of Midstream's.
    Raises IncompleteRead where it breaks off before its end."""
    deadline, body = time.monotonic() + within_s, bytearray()
    while len(body) < most and time.monotonic() < deadline:
        piece = response.read1(PIECE_BYTES)
        if not piece and response.length:
            raise IncompleteRead(bytes(body), response.length)
        if not piece:
            break
        body += piece
    return bytes(body)
