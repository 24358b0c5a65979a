"""The credit of one stream: how many output tokens may be sent to its reader, how many decoded, and how many
the engine has been granted of those.

Explicit credit is what the client grants, frame by frame; `prefetch` more may be decoded ahead of it.
Automatic credit is a window ahead of what the reader is known to have taken. Pure: numbers alone, and they
never shrink while anybody may still read.
"""

from __future__ import annotations

from midstream import protocol
from realtime.stream.memory import TOKEN_BYTES

AHEAD_BYTES = 256 << 10  # of tokens that may be decoded ahead of what was given out, whatever was granted
ROOM_SHARE = 16  # and no more than this part of the room that there is for more, for others come too
LEAST_AHEAD_BYTES = 4 << 10  # but so much in any case
MOST_AHEAD = AHEAD_BYTES // TOKEN_BYTES  # tokens


class Credit:
    def __init__(self, asked: protocol.Credit | None, *, window: int) -> None:
        """`asked` is the start's own; without it credit is automatic."""
        self.automatic = asked is None
        self._window = window
        self._prefetch = 0 if asked is None else asked.prefetch
        self.limit = window if asked is None else asked.limit  # output tokens that may be sent
        self.decode_limit = self.limit + self._prefetch  # output tokens that may be decoded
        self.granted = self.decode_limit  # output tokens that the engine may decode

    def grant(self, limit: int) -> None:
        """The client is ready for output up to `limit`."""
        self.limit = max(self.limit, limit)
        self.decode_limit = max(self.decode_limit, limit + self._prefetch)

    def acknowledge(self, index: int) -> None:
        """The reader has taken output up to `index`."""
        if self.automatic:
            self.grant(index + self._window)

    def grantable(self, sent: int, *, room: int, token_bytes: int) -> int:
        """Output tokens that the engine may decode: not all that the client has granted, where it does not
        take what was decoded. `room`: bytes that there are for more."""
        ahead = min(AHEAD_BYTES, max(LEAST_AHEAD_BYTES, room // ROOM_SHARE))
        return min(self.decode_limit, sent + max(1, ahead // token_bytes))

    def may_be_worth_granting(self, sent: int, taken: int) -> bool:
        """Whether any room for more would make it so: asked with every token."""
        return self.is_worth_granting(min(self.decode_limit, sent + MOST_AHEAD), taken)

    def is_worth_granting(self, limit: int, sent: int) -> bool:
        """While there is enough to decode, a grant for every token would be too many."""
        if limit <= self.granted:
            return False
        return limit == self.decode_limit or 2 * (self.granted - sent) <= limit - self.granted

    def withdraw(self, sent: int) -> None:
        """Nobody will read on: no more is sent than was."""
        self.limit = sent
