"""A whole server in one thread and outside of time: hub, streams, engine, toy model, and the pipes between.

Commands and step outputs wait in two queues until somebody delivers them, in order, as a pipe would; the
clock moves when it is told to. So a test decides what crosses what. It knows no reader and none of the
rules: `reader.py` does.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from engine import api, toy_model
from engine.engine import Engine
from engine.forward.toy_runner import ToyRunner
from engine.sampling.sampler import Sampler
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler
from engine.step.matcher_threads import MatcherThreads
from midstream.protocol import StreamFrame
from realtime.hub.hub import Hub
from realtime.hub.models import Models
from realtime.hub.observers import Observer, Observers
from realtime.stream.states import TRANSITIONS, State
from realtime.stream.stream import Stream
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from tests.fakes.at_once_threads import AtOnceThreads
from tests.fakes.keeping_engine import Keeping
from tests.fakes.small_tokenizers import toy_vocabulary
from tests.fakes.untimed_commands import UntimedCommands
from tests.fakes.weighed import check_weights


@dataclass(frozen=True, kw_only=True)
class EngineSize:
    """What an engine may use."""

    kv_tokens: int
    block: int
    step_tokens: int
    batch_rows: int = 16
    tenant_prefill: int = 1000
    slots: int = 8
    overlap: bool = False
    at_once: bool = False  # grammars are followed in no thread: nothing hangs on how quick that is


def toy_engine(size: EngineSize) -> Engine:
    sampler = Sampler(size.slots, toy_model.VOCAB, eos=[toy_model.EOS])
    runner = ToyRunner(
        tokens=size.kv_tokens,
        block_size=size.block,
        context=size.kv_tokens,
        latest_tokens=sampler.latest_tokens,
    )
    cache = BlockCache(size.kv_tokens // size.block, size.block)
    scheduler = Scheduler(
        cache,
        step_tokens=size.step_tokens,
        batch_rows=size.batch_rows,
        tenant_prefill=size.tenant_prefill,
    )
    return Engine(
        runner,
        sampler,
        cache,
        scheduler,
        slots=size.slots,
        overlap=size.overlap,
        commands=UntimedCommands(),
        make_lookout=AtOnceThreads if size.at_once else MatcherThreads,
        vocabulary=toy_vocabulary(),
    )


class Timer:
    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call: Callable[[], None] | None = call  # none once it is cancelled, as an event loop's
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled, self.call = True, None


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self._alarms: list[Timer] = []

    def __call__(self) -> float:
        return self.now

    @property
    def waiting(self) -> int:
        return sum(not alarm.cancelled for alarm in self._alarms)

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self._alarms.append(Timer(self.now + delay, call))
        return self._alarms[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for alarm in sorted(self._alarms, key=lambda alarm: alarm.due):
            if alarm.due <= self.now and (call := alarm.call) is not None:
                alarm.cancel()
                call()
        self._alarms = [alarm for alarm in self._alarms if not alarm.cancelled]


class CountingObserver(Observer):
    """What the hub counts, and of how many tokens it was told: by the engine's number of the stream, and of
    those that ended, until then."""

    def __init__(self) -> None:
        self.acts: Counter[str] = Counter()
        self.decoded: Counter[int] = Counter()
        self.decoded_when_ended: dict[int, int] = {}
        self.tokens_discarded = 0
        self.steps = 0

    def stepped(self, engine: int, output: api.StepOutput, now: float) -> None:
        self.steps += 1

    def steered(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        assert steps >= 0
        assert seconds >= 0
        self.acts[kind] += 1

    def finished(self, stream: Stream, now: float) -> None:
        assert stream.number not in self.decoded_when_ended, "a stream ends once"
        self.decoded_when_ended[stream.number] = self.decoded[stream.number]

    def discarded(self, tokens: int) -> None:
        self.tokens_discarded += tokens


ALLOWED = {(transition.before, transition.after) for transition in TRANSITIONS}


@functools.cache
def toy_tokenizer() -> Tokenizer:
    return Tokenizer.load(toy_model.FOLDER)


STEP_S = 0.01


class SimulatedEngine:
    """One, with what is under way to it and from it."""

    def __init__(self, size: EngineSize) -> None:
        self.engine = toy_engine(size)
        self.keeping = Keeping()
        self.alive = True
        self.down: deque[list[api.AnyCommand]] = deque()
        self.up: deque[api.StepOutput] = deque()
        self._size = size
        self._undrained = False

    def die(self) -> None:
        """With everything that was under way."""
        self.alive = self._undrained = False
        self.down.clear()
        self.up.clear()

    def revive(self) -> None:
        self.engine, self.alive = toy_engine(self._size), True
        self.keeping = Keeping()

    def deliver_down(self) -> None:
        if self.down:
            self.engine.send(self.keeping.take(self.down.popleft()))
            self._undrained = True

    def step(self) -> None:
        if self.alive:
            output = self.engine.step()
            output.stats.step_s = STEP_S  # outside of time, as all else
            self.keeping.tell(output)
            self.up.append(output)
            self._undrained = False
            self.engine.audit()

    @property
    def heard_all(self) -> bool:
        """Nothing is under way to it and from it."""
        return self.alive and not (self.down or self.up or self._undrained)

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, and the engine would wait for a command."""
        return self.heard_all and self.engine.idle


class SimulatedServer:
    def __init__(
        self,
        size: EngineSize,
        *,
        engines: int = 1,
        models: Sequence[str] = ("toy",),
        known: Models | None = None,
        window: int = 8,
        clock: Clock | None = None,
        observer: Observer | None = None,
        tokenizer: Tokenizer | None = None,
        keeps: bool = False,
        **limits: Any,
    ) -> None:
        """`keeps`: as listening engines do, though there is no other gateway to ask for them. `limits` are
        the hub's. Where no engine is named, the first is meant. Engines have these `models`, in turn, which
        differ in nothing but their names; `known` says more of them."""
        self.size = size
        self._tokenizer = tokenizer or toy_tokenizer()
        self.clock = clock or Clock()
        self.engines = [SimulatedEngine(size) for _ in range(engines)]
        self.models = [models[number % len(models)] for number in range(engines)]
        self.counts = CountingObserver()
        self.keeps = keeps
        self.adoptions = 0  # that were tried, and compared
        self.window = window
        self.refs = map(str, itertools.count())
        self.hub = Hub(
            self._send,
            Observers(self.counts, observer or Observer()),
            models=known,
            window=window,
            clock=self.clock,
            call_later=self.clock.call_later,
            **({"max_streams": size.slots} | limits),
        )
        if keeps:
            self.hub._adoptions.may_be_found = lambda *asked: False  # type: ignore[method-assign]
        self.frames: dict[str, StreamFrame] = {}  # all that were ever sent, by ref
        self.foreign: set[str | None] = set()  # refs of frames about a stream that another listens to
        self.refused: set[str | None] = set()  # refs of frames that some listener was told no about
        self.transitions: set[tuple[State, State]] = set()  # that were seen
        self.in_turns = False  # whether news that are for the event loop's next turn wait until time goes on
        self._states: dict[Stream, State] = {}
        for number in range(engines):
            self._introduce(number)

    @property
    def engine(self) -> Engine:
        return self.engines[0].engine

    @property
    def alive(self) -> bool:
        return self.engines[0].alive

    @property
    def down(self) -> deque[list[api.AnyCommand]]:
        return self.engines[0].down

    @property
    def up(self) -> deque[api.StepOutput]:
        return self.engines[0].up

    def _send(self, number: int, commands: list[api.AnyCommand]) -> None:
        """Never to an engine of another model."""
        live = {stream.number: stream for stream in self.hub.streams}
        for command in commands:
            if isinstance(command, api.Submit) and command.stream in live:
                assert live[command.stream].model.name == self.models[number]
        self.engines[number].down.append(commands)

    def _introduce(self, number: int, fingerprint: str = "fp") -> None:
        context = self.engines[number].engine.runner.context
        model = ServedModel(self.models[number], self._tokenizer, toy_model.VOCAB, context, fingerprint)
        block = self.engines[number].engine.cache.block_size
        self.hub.engine_ready(number, model, block, keeper=b"engine" if self.keeps else b"")

    def kill_engine(self, number: int = 0) -> None:
        """With everything that was under way from it and to it."""
        self.engines[number].die()
        self.hub.engine_lost(number)
        assert not self.engines[number].down, "there is nobody to send it to"
        self.look()

    def revive_engine(self, fingerprint: str = "fp", number: int = 0) -> None:
        self.engines[number].revive()
        self._introduce(number, fingerprint)

    def look(self) -> None:
        """Hold every stream's life against the table, and its weights against what it has."""
        live = set(self.hub.streams)
        for stream in live | self._states.keys():
            before, after = self._states.get(stream, "queued"), stream.state
            if before != after:
                assert (before, after) in ALLOWED, f"{before} was followed by {after}"
                self.transitions.add((before, after))
            self._states[stream] = after
            check_weights(stream)
        for stream in self._states.keys() - live:
            if self._states[stream] == "finished":
                del self._states[stream]

    def check_kept(self) -> None:
        """What another gateway would build of what engines keep: the very streams that are here, where
        nothing is under way."""
        for entry in self.hub._registry.entries:
            stream = entry.stream
            if entry.engine is None or not stream.is_kept:
                continue
            engine = self.engines[entry.engine.number]
            if stream.number not in engine.keeping.kept:
                continue  # its start is under way
            other = engine.keeping.rebuilt(stream.number, stream.model, self.window, stream.owner)
            if other is not None and engine.heard_all:
                self.adoptions += 1
                assert seen_of(other) == seen_of(stream)
                if entry.key not in self.hub._long_texts.keys:  # else what is left is on its way
                    assert other._tools.left == stream._tools.left

    def deliver_down(self, number: int = 0) -> None:
        """The oldest commands under way reach an engine's inbox, and it says at once what it keeps."""
        self.engines[number].deliver_down()
        for answer in self.engines[number].keeping.answers():
            self.hub.receive_answer(number, answer)

    def step(self, number: int = 0) -> None:
        self.engines[number].step()

    def deliver_up(self, number: int = 0, *, together: int = 1) -> None:
        """The oldest step outputs under way reach the hub, so many in one go."""
        up = self.engines[number].up
        outputs = [up.popleft() for _ in range(min(together, len(up)))]
        if outputs:
            for news in (news for output in outputs for news in output.news):
                self.counts.decoded[news.stream] += len(news.tokens)
            self.hub.receive_steps(number, outputs)
            while not (self.in_turns or self.hub._incoming._lines.empty):
                self.clock.advance(0)
            self.look()

    def tick(self) -> None:
        """Everything under way arrives, and each engine makes a step of it that arrives too."""
        for number, engine in enumerate(self.engines):
            while engine.down:
                self.deliver_down(number)
            self.step(number)
            while engine.up:
                self.deliver_up(number)

    def check_empty(self) -> None:
        """All streams have ended, and nothing is left of them."""
        assert self.hub.streams == []
        self.clock.advance(0)  # what still comes of streams that have ended is taken in, in turns
        assert not self.clock.waiting
        for one in self.engines:
            assert not one.engine.scheduler.sequences
            assert one.engine.cache.used == 0

    @property
    def at_rest(self) -> bool:
        """Nothing is under way, and the engines that live would wait for a command."""
        alive = [engine for engine in self.engines if engine.alive]
        return bool(alive) and all(engine.at_rest for engine in alive)


def seen_of(stream: Stream) -> dict[str, Any]:
    """Of a stream, that is the same at whatever gateway."""
    tools, pausing = stream._tools, stream._pausing
    due = tools._due
    return {
        "calls": [(replace(call, arguments=[]), "".join(call.arguments)) for call in stream.output.calls],
        "reasoning": stream.output.reasoning(),
        "results": {call_id: (one.content, one.error) for call_id, one in tools._results.items()},
        "due": due and ([message.tool_call_id for message in due.messages or ()], due.tokens, due.resume),
        "turn has ended": tools.turn_has_ended,
        "held by": (pausing.grounds, pausing.rests, pausing.left),
        "usage": stream.counts.usage(),
        "tokens": list(stream.output.tokens),
        "text": stream.output.text(len(stream.output), flushed=stream.concluded),
        "injections": stream.output.injections,
        "params": stream.context.params,
        "acts": stream.context.acts.bans,
        "paused": stream.paused,
        "released": stream.released,
        "concluded": stream.concluded,
        "decoded": stream.counts.decoded,
        "waits for": [(pending.command, pending.ref) for pending in stream._commands],
    }
