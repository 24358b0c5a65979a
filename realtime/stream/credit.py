"""The credit of one stream: how many output tokens may be sent to its reader, how many decoded, and how many
the engine has been granted of those.

Explicit credit is what the client grants, frame by frame; `prefetch` more may be decoded ahead of it.
Automatic credit is a window ahead of what the reader is known to have taken. Pure: numbers alone, and they
never shrink while anybody may still read.
"""

from __future__ import annotations

from midstream import protocol


class Credit:
    def __init__(self, asked: protocol.Credit | None, *, window: int) -> None:
        """`asked` is the start's own; without it credit is automatic."""
        self._automatic = asked is None
        self._window = window
        self._prefetch = 0 if asked is None else asked.prefetch
        self.limit = window if asked is None else asked.limit  # output tokens that may be sent
        self.decode_limit = self.limit + self._prefetch  # output tokens that may be decoded
        self.granted = (
            self.decode_limit
        )  # output tokens that the engine may decode: no more than somebody takes

    def grant(self, limit: int) -> None:
        """The client is ready for output up to `limit`."""
        self.limit = max(self.limit, limit)
        self.decode_limit = max(self.decode_limit, limit + self._prefetch)

    def acknowledge(self, index: int) -> None:
        """The reader has taken output up to `index`."""
        if self._automatic:
            self.grant(index + self._window)

    def withdraw(self, sent: int) -> None:
        """Nobody will read on: no more is sent than was."""
        self.limit = sent
