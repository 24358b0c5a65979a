"""What was done for one stream, in tokens, as its usage tells it."""

from __future__ import annotations

from midstream.protocol import Usage
from realtime.stream.context import Context


class Counts:
    def __init__(self, context: Context) -> None:
        self.decoded = 0  # output tokens that were made for it, whatever became of them
        self.cached = 0  # of its prompt, found computed when it was admitted
        self.forced = 0  # by a grammar that left no choice
        self._context = context

    @property
    def discarded(self) -> int:
        """Tokens that were made for it, or that it began with, and that do not stand."""
        return self.decoded + self._context.inherited - len(self._context.output)

    def usage(self) -> Usage:
        prompt, output = len(self._context.prompt), self._context.output
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=len(output),
            total_tokens=prompt + len(output),
            cached_tokens=self.cached,
            injected_tokens=output.injected(),
            discarded_tokens=self.discarded,
            forced_tokens=self.forced,
            inherited_tokens=self._context.inherited,
            reasoning_tokens=0 if output.spans is None else output.spans.reasoning_tokens,
        )
