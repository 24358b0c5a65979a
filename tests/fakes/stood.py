"""What stands of a stream behind its prompt, and how it is to go on: all that another engine is told to go on
with the same. It follows from commands and their answers, by what the engine's API says of them alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine import api
from engine.step.constraining import same_grammar
from tests.fakes.engine_driver import Injections


@dataclass
class Stood:
    sampling: api.Sampling
    tokens: list[int] = field(default_factory=list)  # of the output
    injections: Injections = field(default_factory=list)
    bans: list[tuple[int, int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])  # of the grammar, in tokens behind the prompt

    def submit(self, number: int, prompt: list[int], credit: int) -> api.Submit:
        return api.Submit(
            number,
            [*prompt, *self._known()],
            self.sampling,
            credit,
            prompt=len(prompt),
            injections=[(index, len(put)) for index, put in self.injections],
            grammar_starts=tuple(self.starts),
            bans=self.bans,
        )

    def follow(self, command: api.StreamCommand, change: api.AnyChange) -> None:
        match command, change:
            case api.Adjust(sampling=sampling), _:
                if not same_grammar(sampling, self.sampling):
                    self.starts = [len(self._known())]
                self.sampling = sampling
            case api.Truncate(index=index, ban=ban), _:
                there = index <= len(self.tokens)
                put = sum(len(put) for before, put in self.injections if before <= index)
                self._cut(min(index, len(self.tokens)) + put)
                if ban is not None and there:
                    self.bans.append((index, ban))
            case api.Append(tokens=tokens, grammar_anew=anew, behind=behind), api.Appended():
                if behind is not None:
                    self._cut(behind)
                if tokens:
                    self.injections.append((len(self.tokens), tokens))
                    self.starts += [len(self._known())] if anew else []

    def _known(self) -> list[int]:
        known, at = list[int](), 0
        for index, put in self.injections:
            known += [*self.tokens[at:index], *put]
            at = index
        return known + self.tokens[at:]

    def _cut(self, left: int) -> None:
        """So many of its tokens stand."""
        self.starts = [min(self.starts[0], left), *(start for start in self.starts[1:] if start <= left)]
        injections, self.injections = self.injections, []
        for index, put in injections:
            stays = max(0, min(len(put), left - index))
            self.injections += [(index, put[:stays])] if stays else []
            left -= stays
        del self.tokens[left:]
        self.bans = [(index, token) for index, token in self.bans if index <= left]
