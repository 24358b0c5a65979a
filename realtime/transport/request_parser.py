"""The parser of HTTP/1.1 requests: h11's, but that it refuses whatever two readers could read differently.

h11 bounds a head only while it waits for the rest of it, and of two lengths it takes one. What is in front of
this server may take the other (RFC 9112, 6.3 and 11.2). Nor does it bound the lines of a head, each of which
costs the same however short it is, nor those behind a body in chunks: they are counted before any is parsed.
It knows bytes and heads, and neither sockets nor how an answer travels.
"""

from __future__ import annotations

import re

import h11
from h11._receivebuffer import ReceiveBuffer

MOST_HEADERS = 128
_SENTENCES = {
    431: "The head of this request, or of a chunk in it, is longer than the {limit} bytes that it may have.",
    501: "Of transfer codings this server knows `chunked` alone.",
}
_NO_REQUEST = "This is not a valid HTTP request: {why}."
_SENT = re.compile(r":? (?:bytearray\()?b['\"]")  # so begins what was sent where h11 says it again
_END = re.compile(rb"\n\r?\n")  # of such lines, as h11 finds it


class RequestProblem(h11.RemoteProtocolError):
    """A request that may not be as it is; the message is a sentence for its sender."""


class FewLines(ReceiveBuffer):
    """What has come and is not parsed yet. Of what h11 takes as lines, and parses in one go, it has few."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        data = bytes(self)
        end = _END.search(data)
        lines = data.count(b"\n", 0, end.start() + 1 if end else len(data))
        if lines > 1 + MOST_HEADERS:  # the first of a head is the request's own
            raise RequestProblem(
                f"This request has more than {MOST_HEADERS} headers, in its head or behind its body.",
                error_status_hint=431,
            )
        return super().maybe_extract_lines()


class RequestParser(h11.Connection):
    def __init__(self, limit_bytes: int) -> None:
        super().__init__(h11.SERVER, limit_bytes)
        self._receive_buffer = FewLines()
        self.problem: RequestProblem | None = None  # why it reads no further
        self._limit_bytes = limit_bytes

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        unread = self._unread() if self.their_state is h11.IDLE else 0
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check(event, unread - self._unread())
        except h11.RemoteProtocolError as error:
            self.problem = self._explained(error)
            raise error.with_traceback(None) from None  # h11's knows itself, and what was read
        return event

    def _unread(self) -> int:
        return len(self.trailing_data[0])

    def _check(self, request: h11.Request, head_bytes: int) -> None:
        if head_bytes > self._limit_bytes:
            raise h11.RemoteProtocolError("", error_status_hint=431)
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
            raise RequestProblem("A request has `Content-Length` or `Transfer-Encoding`, not both.")

    def _explained(self, error: h11.RemoteProtocolError) -> RequestProblem:
        """One that was not raised, and so does not know where: here."""
        status = error.error_status_hint
        if isinstance(error, RequestProblem):
            return RequestProblem(str(error), error_status_hint=status)
        said = _SENTENCES.get(status, _NO_REQUEST).format(limit=self._limit_bytes, why=_why(error))
        return RequestProblem(said, error_status_hint=status)


def _why(error: h11.RemoteProtocolError) -> str:
    """As h11 says it, but for what was sent: a key may stand there."""
    why = _SENT.split(str(error))[0]
    return why[:1].lower() + why[1:]
