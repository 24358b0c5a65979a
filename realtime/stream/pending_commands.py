"""The commands that one stream has sent to its engine, in order, and those of them that wait for a reply.

Engines come and go. While there is none, commands are kept where they matter and dropped where they do not;
the next one is sent everything that had no reply. What a frame comes to may hang on those before it: it is
made a command when they have been replied to, and what came behind it waits till then. No more than a few are
on their way at once: all that an engine does to a stream in a step is taken in in one go. This knows commands
and their order, and nothing of what a reply means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import Params
from realtime.guards.guards import Verdict
from realtime.guards.pattern import Pattern
from realtime.stream.engine_commands import SteeringFrame
from realtime.stream.memory import ELSEWHERE_BYTES, params_bytes
from realtime.stream.weights import TOKEN_ID_BYTES, weight
from realtime.text.stop_strings import StopMatcher

Reply = protocol.StreamEvent | protocol.Error
SendReply = Callable[[Reply], None]
CallFrame = protocol.Approve | protocol.Amend  # of a call as it stands when they take effect
Owe = Callable[[float], object]  # told how many seconds of work a frame made once it took effect

COMMAND_BYTES, ADJUST_BYTES = 250, 250  # beside its frame; and what it has more that has parameters
NO_PARAMS = Params()
MOST_UNDER_WAY = 16  # commands of a stream: each may have all that stands of it looked at anew


class PendingCommand(Struct):
    """A command that waits for the engine's reply. Without a frame it is our own doing."""

    command: api.AnyCommand | None  # None until those before it have their replies
    frame: SteeringFrame | CallFrame | protocol.Cancel | None
    step: int  # the engine's last step when the frame came
    params: Params | None = None
    received_s: float = 0.0
    stop_matcher: StopMatcher | None = None  # of `params`: built when it is asked for, by whoever asks
    patterns: Sequence[Pattern] = ()  # of their guards, likewise
    # The rewind that `at`, or a guard's pause, asks for: what follows goes with it, and has a frame's reply.
    preliminary: bool = False
    send_reply: SendReply | None = None  # to whoever steers a stream that another listens to
    owe: Owe | None = None  # whoever steers, and pays for it
    verdict: Verdict | None = None  # of a guard, whose doing it is
    silent: bool = False  # nobody is told that it took effect
    bytes: int = 0  # as which it counts while it waits: a name takes more once it has been told

    @property
    def kind(self) -> str:
        return "inject" if isinstance(self.frame, protocol.Inject) else type(self.frame).__name__.lower()

    @property
    def ref(self) -> str | None:
        return None if self.preliminary or self.frame is None else self.frame.ref

    @property
    def wants_reply(self) -> bool:
        """Whether somebody waits for a reply to just this."""
        return self.frame is not None and not self.preliminary

    @property
    def resumes(self) -> bool:
        """Whether the stream is to go on, by this or behind it, if it is paused."""
        asks = isinstance(self.frame, protocol.Inject) and self.frame.resume
        return asks or isinstance(self.command, api.Resume)

    @property
    def goes_back(self) -> bool:
        match self.command:
            case api.Truncate():
                return True
            case api.Append(behind=behind):
                return behind is not None
        return False

    @property
    def goes_back_untold(self) -> bool:
        """Whether a guard does, or we do."""
        return self.verdict is not None or (self.silent and isinstance(self.command, api.Truncate))


class Computing(Protocol):
    """The engine that computes a stream, as far as that knows it."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def step(self) -> int:
        """Its last."""

    def say(self, command: api.AnyCommand) -> None: ...


class PendingCommands:
    def __init__(self) -> None:
        self.engine: Computing | None = None  # that knows the stream
        self.bytes = 0  # of those that wait
        # Of them: asked for with every token, or all news.
        self._going_back = self._going_back_untold = self._deciding = 0
        self.in_vain = 0  # tokens that were made of texts which are not put in
        self.waiting: list[PendingCommand] = []
        self.under_way = 0  # the first so many of them were sent

    def __iter__(self) -> Iterator[PendingCommand]:
        return iter(self.waiting)

    def submit(self, submit: api.Submit, engine: Computing) -> None:
        """To an engine that does not know the stream, and behind it all that had no reply."""
        self.engine = engine
        engine.say(submit)
        for pending in self.waiting:
            pending.step = engine.step  # each counts its own
        self.under_way = 0
        self.send_more()

    def adopt(self, engine: Computing, unsaid: Iterable[api.AnyCommand]) -> None:
        """By an engine that knows the stream, and all that was sent but these."""
        self.engine = engine
        for pending in self.waiting:
            pending.step = engine.step
        for command in unsaid:
            engine.say(command)

    def request(self, pending: PendingCommand) -> None:
        """Behind all others; what guards have asked for, before what is no command yet, which will be made of
        what stands then."""
        at = len(self.waiting)
        if pending.verdict is not None or pending.silent:
            at = next((at for at, before in enumerate(self.waiting) if before.command is None), at)
        self.waiting.insert(at, pending)
        self._count(pending)
        self.send_more()

    @property
    def to_make(self) -> PendingCommand | None:
        """The first, where it is no command yet."""
        pending = self.waiting
        return pending[0] if pending and pending[0].command is None else None

    def make(self, command: api.AnyCommand) -> None:
        """The first comes to this."""
        first = self.waiting[0]
        self._count(first, -1)
        first.command = command
        self._count(first)
        self.send_more()

    def refused(self, pending: PendingCommand) -> None:
        """It comes to nothing: what its text was made counts all the same."""
        self.in_vain += _tokens_of_text(pending)

    def drop_first(self) -> None:
        """It came to no command."""
        self.pop_replied()
        self.send_more()

    def send_more(self, least: int = 0) -> None:
        """Up to one that is no command yet, and no more than may be under way. `least`: as many as were where
        the stream comes from, which may have let more be."""
        most = max(MOST_UNDER_WAY, least)
        while self.engine is not None and self.under_way < len(self.waiting):
            pending = self.waiting[self.under_way]
            goes_with_the_last = self.under_way > 0 and self.waiting[self.under_way - 1].preliminary
            if self.under_way >= most and not goes_with_the_last:
                break
            if pending.command is None:
                break
            self.send(pending.command)
            self.under_way += 1

    def pop_replied(self) -> PendingCommand:
        """The command that the next reply is to: the engine replies in the order of the commands. Then more
        of them may be sent."""
        replied = self.waiting.pop(0)
        self.under_way = max(0, self.under_way - 1)
        self._count(replied, -1)
        return replied

    def _count(self, pending: PendingCommand, times: int = 1) -> None:
        """One that waits, or, -1 times, waits no more."""
        if times > 0:
            pending.bytes = _bytes(pending)
        self.bytes += times * pending.bytes
        self._going_back += times * pending.goes_back
        self._going_back_untold += times * pending.goes_back_untold
        self._deciding += times * (not isinstance(pending.command, api.Adjust))

    def send(self, command: api.AnyCommand) -> None:
        """A command that has no reply. Without an engine there is nobody who need hear it."""
        if self.engine is not None:
            self.engine.say(command)

    @property
    def goes_back(self) -> bool:
        """Whether what is decoded until all is replied will be void."""
        return self._going_back > 0

    @property
    def goes_back_untold(self) -> bool:
        """Whether a guard will go back, or we: of what is decoded until then nobody hears."""
        return self._going_back_untold > 0

    def stands_at(self, index: int) -> int:
        """Where what took effect there does, once we, or a guard, have gone back."""
        if not self.goes_back_untold:
            return index
        truncates = (one.command for one in self.waiting if one.goes_back_untold)
        return min((index, *(back.index for back in truncates if isinstance(back, api.Truncate))))

    def comes_again(self, index: int) -> bool:
        """Whether what was put in there is put in where we, or a guard, go back to: unless whoever asked for
        it goes back to before that."""
        if not self.goes_back_untold:
            return False
        at = index
        for pending in self.waiting:
            if isinstance(command := pending.command, api.Truncate) and command.index < at:
                if pending.verdict is None and not pending.silent:
                    return False
                at = command.index
        return at < index

    @property
    def resumes(self) -> bool:
        """Whether the stream is to go on, if it is paused."""
        return any(one.resumes for one in self.waiting)

    @property
    def settled(self) -> bool:
        """Whether all is answered that may pause it, have it go on, or change what stands: parameters do none
        of that, and somebody may say others all the time."""
        return self._deciding == 0

    @property
    def releases(self) -> bool:
        """Whether what was computed is to be given up."""
        return any(isinstance(one.command, api.Pause) and one.command.release for one in self.waiting)

    def clear(self) -> list[PendingCommand]:
        """The stream has ended: the commands that will have no reply any more."""
        left = list(self.waiting)
        self.waiting.clear()
        self.bytes = self.under_way = 0
        self._going_back = self._going_back_untold = self._deciding = 0
        return left


def _tokens_of_text(pending: PendingCommand) -> int:
    match pending:
        case (
            PendingCommand(frame=protocol.Inject(text=str(), tokens=list(tokens)))
            | PendingCommand(frame=protocol.Inject(messages=list(), tokens=list(tokens)))
            | PendingCommand(frame=protocol.Amend(), command=api.Append(tokens=tokens))
        ):
            return len(tokens)
    return 0


def _bytes(pending: PendingCommand) -> int:
    """Parameters have what those of their frame have, and a command the tokens of its frame."""
    command, frame, params = pending.command, pending.frame, pending.params
    size = COMMAND_BYTES + sum(one.bytes for one in pending.patterns)
    if params is not None:
        size += ADJUST_BYTES + params_bytes(params)
    if pending.send_reply is not None:
        size += ELSEWHERE_BYTES
    if frame is not None:
        size += weight(replace(frame, params=NO_PARAMS) if isinstance(frame, protocol.Adjust) else frame)
    if isinstance(command, api.Append) and command.tokens is not getattr(frame, "tokens", None):
        size += TOKEN_ID_BYTES * len(command.tokens)
    return size
