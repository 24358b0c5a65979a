"""The refusal: an exception raised where a peer's mistake is found, and sent as an `error` event."""

from __future__ import annotations

from midstream.protocol import ERRORS, Error

# What is refused by HTTP alone, where there is no frame yet: (status, whether the same may succeed later).
HTTP_ERRORS = {
    "bad_request": (400, False),
    "not_found": (404, False),
    "method_not_allowed": (405, False),
    "request_timeout": (408, True),
    "upgrade_required": (426, False),
    "head_too_large": (431, False),
    "not_implemented": (501, False),
}
_ERRORS = ERRORS | HTTP_ERRORS

_LONGEST_SAID = 128  # characters: as many as the longest name of anything has


def shortened(said: str) -> str:
    """What a peer said, as a sentence says it again: whole, unless it is too long to be anything's name."""
    return said if len(said) <= _LONGEST_SAID else said[:_LONGEST_SAID] + "…"


class Refusal(Exception):
    """A peer's mistake, or a limit it met: `message` says what is wrong, where, and what would be right.

    Nothing has changed when it is raised.
    """

    def __init__(self, code: str, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms

    @property
    def status(self) -> int:
        return _ERRORS[self.code][0]

    def without_frames(self) -> Refusal:
        """To be kept: the frames that raised it hold whole texts, and perhaps whoever keeps it."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self

    def event(self, request_id: str | None = None, ref: str | None = None) -> Error:
        status, retryable = _ERRORS[self.code]
        return Error(
            status=status,
            code=self.code,
            message=self.message,
            retryable=retryable,
            retry_after_ms=self.retry_after_ms,
            request_id=request_id,
            ref=ref,
        )
