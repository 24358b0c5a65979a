"""A mistake of ours ends the stream that it shows in, and no other. It does not know what was done to it."""

from __future__ import annotations

import logging
from types import TracebackType

from engine import api
from realtime.hub.long_texts import told
from realtime.hub.registry import LiveStream

log = logging.getLogger(__name__)


class MistakesEnd:
    """Around what is done to a stream. `to`: what the server has failed to do then."""

    def __init__(self, entry: LiveStream, to: str, now: float) -> None:
        self._entry, self._to, self._now = entry, to, now

    def __enter__(self) -> None: ...

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """What the error says may quote the text: only its kind is logged."""
        if not isinstance(error, Exception):
            return False
        number = self._entry.stream.number
        log.error("stream %d failed in the gateway: %s in %s", number, *told(error))
        self._entry.stream.fail(f"the server failed to {self._to}", self._now)
        if self._entry.engine is not None:
            self._entry.engine.say(api.Cancel(number))
        return True
