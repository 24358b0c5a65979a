"""The stopwatch of one stream: queueing, first token and pauses, from moments that it is told. It has no
clock."""

from __future__ import annotations

from midstream.protocol import Timing


class Stopwatch:
    def __init__(self, now: float) -> None:
        self._started = now
        self._admitted: float | None = None
        self.first: float | None = None  # when its first token came
        self._paused_since: float | None = None
        self._paused_s = 0.0
        self._paused_at_first_s = 0.0

    @property
    def admitted(self) -> bool:
        return self._admitted is not None

    @property
    def paused(self) -> bool:
        return self._paused_since is not None

    def admit(self, now: float) -> None:
        self._admitted = self._admitted or now

    def pause(self, now: float) -> None:
        self._paused_since = self._paused_since or now

    def resume(self, now: float) -> None:
        if self._paused_since is not None:
            self._paused_s += now - self._paused_since
            self._paused_since = None

    def token(self, now: float) -> None:
        if self.first is None:
            self.first = now
            self._paused_at_first_s = self._paused_s

    def running_s(self, now: float) -> float:
        """Since the start, without pauses."""
        return (self._paused_since or now) - self._started - self._paused_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.first is None else self.first - self._started

    def timing(self, tokens: int, now: float) -> Timing:
        self.resume(now)
        return Timing(
            queue_ms=_ms((self._admitted or now) - self._started),
            ttft_ms=None if self.ttft_s is None else _ms(self.ttft_s),
            total_ms=_ms(now - self._started),
            paused_ms=_ms(self._paused_s),
            tokens_per_s=self._rate(tokens, now),
        )

    def _rate(self, tokens: int, now: float) -> float | None:
        """Tokens a second between the first and the last, pauses left out; None where there is no between."""
        if self.first is None or tokens < 2:
            return None
        decoding_s = now - self.first - (self._paused_s - self._paused_at_first_s)
        return round((tokens - 1) / decoding_s, 2) if decoding_s > 0 else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
