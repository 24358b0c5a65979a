"""An engine that is played: it knows of each stream how much stands, how far it may be written and what was
asked of it, writes what it is told to, and answers as an engine does. What engines that listen keep it keeps
as well, and hands it over to whichever gateway asks. It computes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from engine import api, toy_model
from engine.listening.kept_streams import KeptStream
from realtime.fleet.engine_reads import READ_BYTES
from realtime.hub.hub import Hub
from tests.fakes.keeping_engine import Keeping

_encode = msgspec.msgpack.Encoder().encode
TOP = [(token, -1.0) for token in range(20)]


@dataclass
class Known:
    """What stands of a stream, and is allowed and asked of it."""

    number: int
    index: int  # output tokens
    credit: int
    holds_at_eos: bool
    paused: bool
    injections: list[tuple[int, int]]  # output tokens before each, and how many it has
    asked: list[api.AnyCommand] = field(default_factory=list)

    def answer(self, command: api.AnyCommand) -> api.AnyChange:
        match command:
            case api.Append(tokens=tokens, behind=behind):
                if behind is not None:
                    self._keep(behind)
                if tokens:
                    self.injections.append((self.index, len(tokens)))
                return api.Appended(self.index, len(tokens))
            case api.Truncate(index=index):
                self.index = min(self.index, index)
                while self.injections and self.injections[-1][0] > self.index:
                    self.injections.pop()
                return api.Truncated(self.index)
            case api.Pause():
                self.paused = True
                return api.Paused(self.index)
            case api.Resume():
                self.paused = False
                return api.Resumed(self.index)
        return api.Adjusted(self.index)

    def _keep(self, behind: int) -> None:
        """So many of the tokens behind the prompt."""
        injected = sum(count for _, count in self.injections)
        while self.injections and behind < self.injections[-1][0] + injected:
            index, count = self.injections.pop()
            injected -= count
            self.index = index
            if (stays := behind - index - injected) > 0:
                self.injections.append((index, stays))
                return
        self.index = min(self.index, behind - injected)


class PlayedEngine:
    def __init__(self) -> None:
        self.lives = True
        self.keeping = Keeping()
        self._dead: list[Keeping] = []
        self._known: dict[int, Known] = {}
        self._questions = deque[tuple[Hub, api.Adopt]]()

    # -- what it is told -----------------------------------------------------------------------------

    def be_asked(self, gateway: Hub, commands: list[api.AnyCommand]) -> None:
        """For streams that it keeps."""
        self._questions += ((gateway, one) for one in commands if isinstance(one, api.Adopt))

    def hear(self, commands: list[api.AnyCommand]) -> None:
        """Of streams, as they are written to it."""
        _encode(commands)
        for command in self.keeping.take(commands):
            match command:
                case api.Submit(stream=number):
                    self._known[number] = _submitted(command)
                case api.Grant(stream=number, credit=credit) if number in self._known:
                    self._known[number].credit = credit
                case api.TellBlocks() | api.Announce() | api.Adopt() | api.Settle():
                    pass
                case api.Command(stream=number) if number in self._known:
                    self._known[number].asked.append(command)

    def die(self) -> None:
        """What it has kept goes with its process, and takes no time of the gateway's."""
        self._dead.append(self.keeping)
        self.lives, self.keeping = False, Keeping()
        self._known.clear()

    def forget(self) -> None:
        """As if it had never been."""
        self.die()
        self._dead.clear()
        self._questions.clear()

    # -- what it says --------------------------------------------------------------------------------

    @property
    def is_asked(self) -> bool:
        return bool(self._questions) or any(known.asked for known in self._known.values())

    def answers(self) -> list[api.News]:
        """What it does in one step. Of what it was asked, it answers what is read in one go."""
        answered, kept = 0, self._kept if self._questions else {}
        while self._questions and answered < READ_BYTES:
            gateway, question = self._questions.popleft()
            answer = api.Adopted(question.stream, _journal(kept.get(question.key)))
            answered += len(_encode(answer))
            gateway.receive_answer(0, answer)
        return [self._done_to(known) for known in list(self._known.values()) if known.asked]

    def _done_to(self, known: Known) -> api.News:
        asked, known.asked = known.asked, []
        changes = list[api.AnyChange]()
        for command in asked:
            if isinstance(command, api.Cancel):
                del self._known[known.number]
                return api.News(known.number, changes=changes, finish=api.Finish("cancelled"))
            changes.append(known.answer(command))
        return api.News(known.number, changes=changes)

    @property
    def _kept(self) -> dict[bytes, KeptStream[str]]:
        return {kept.journal.keep.key: kept for kept in self.keeping.kept.values()}

    def write(self, number: int, tokens: list[int], logprobs: int | None = None) -> Iterator[api.News]:
        """A token a step, as far as it may."""
        known = self._known.get(number)
        for token in tokens:
            if known is None or known.paused or known.index >= known.credit:
                return
            told = None if logprobs is None else [api.Logprob(-1.0, TOP[:logprobs])]
            yield api.News(number, index=known.index, tokens=[token], logprobs=told)
            known.index += 1

    def end(self, number: int) -> api.News:
        """By a token of the model's; nothing, where it may write none."""
        known = self._known.get(number)
        if known is None or known.paused or known.index >= known.credit:
            return api.News(number)
        if known.holds_at_eos:
            known.paused = True
        else:
            del self._known[number]
        finish = api.Finish("eos", held=known.holds_at_eos)
        return api.News(number, index=known.index, tokens=[toy_model.EOS], finish=finish)

    def run_out(self, number: int) -> api.News:
        """It has as many tokens as it may."""
        self._known.pop(number, None)
        return api.News(number, finish=api.Finish("length"))


def _journal(kept: KeptStream[str] | None) -> api.Journal | None:
    return kept.journal.told() if kept is not None and kept.journal.whole else None


def _submitted(submit: api.Submit) -> Known:
    injected = sum(count for _, count in submit.injections)
    prompt = len(submit.tokens) if submit.prompt is None else submit.prompt
    return Known(
        submit.stream,
        len(submit.tokens) - prompt - injected,
        submit.credit,
        submit.sampling.hold_at_eos,
        submit.paused,
        list(submit.injections),
    )
