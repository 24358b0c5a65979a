"""The whole server, in every order of things: frames, steps, deliveries, readers that stall, hurry, vanish
and come back, and engines that die.

Whatever happens, each reader's own strict account of its streams holds (`tests/fakes/reader.py`), blocks
and slots are conserved after every step, and in the end, when all is read, granted and resumed, every
stream has had its final within a bounded number of steps, and its tokens are those of an engine that it had
for itself.

Examples are the same in every run; `MIDSTREAM_EXAMPLES=2000` looks further, at others each time.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from midstream import protocol
from midstream.protocol import Credit, Message, Params
from realtime.stream import params as stream_params
from tests.fakes.checking_client import Account, Reader
from tests.fakes.guards import OF_TEXT
from tests.fakes.replayed_stream import retold
from tests.fakes.simulated_server import EngineSize, SimulatedServer

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 30),
    stateful_step_count=50,
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SIZES = [
    EngineSize(kv_tokens=96, block=4, step_tokens=6, batch_rows=3),
    EngineSize(kv_tokens=160, block=8, step_tokens=16, batch_rows=4, tenant_prefill=60),
    EngineSize(kv_tokens=256, block=16, step_tokens=64, batch_rows=16),
]
PATIENCE = 3_000  # steps in which everybody must have come to an end
PICK = st.integers(0, 11)
STOPS = ["e t", "s ", "ing", " a", "d w", "th", "🙂", "n", "re the"]
PROMPTS: list[str | list[int]] = ["Once", "Once upon a time there was", [7], list(range(60, 100))]
# Byte tokens among the words, so that characters come in pieces and break: E2 82 AC is a euro sign, 41 an A.
BYTES = dict.fromkeys((0xE2, 0x82, 0xAC, 0x41), 37.0)


def params() -> st.SearchStrategy[Params]:
    choices: dict[str, st.SearchStrategy[Any]] = {
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "seed": st.integers(0, 3),
        "max_tokens": st.integers(1, 30),
        "stop": st.lists(st.sampled_from(STOPS), max_size=2) | st.sampled_from(STOPS),
        "repetition_penalty": st.just(1.3),
        "frequency_penalty": st.just(0.5),
        "top_k": st.just(5),
        "logit_bias": st.just(BYTES),
        "min_tokens": st.integers(0, 6),
        "ignore_eos": st.booleans(),
        "logprobs": st.sampled_from([None, 0, 2]),
        "guards": st.lists(st.sampled_from(OF_TEXT), max_size=3, unique_by=lambda guard: guard.name),
    }
    return st.fixed_dictionaries({}, optional=choices).map(lambda values: Params(**values))


def explicit_or_not() -> st.SearchStrategy[Credit | None]:
    return st.none() | st.builds(Credit, limit=st.integers(0, 12), prefetch=st.integers(0, 8))


def _steering(what: str, name: str) -> protocol.StreamFrame:
    frames: dict[str, protocol.StreamFrame] = {
        "pause": protocol.Pause(request_id=name),
        "resume": protocol.Resume(request_id=name),
        "rewind": protocol.Rewind(request_id=name, to=0),
        "adjust": protocol.Adjust(request_id=name, params=Params(temperature=1.2)),
        "inject": protocol.Inject(request_id=name, text=" so"),
        "cancel": protocol.Cancel(request_id=name),
    }
    return frames[what]


class Everything(RuleBasedStateMachine):
    overlap, engines = False, 1
    keeps = False
    models: tuple[str, ...] = ("toy",)
    asked: tuple[str | None, ...] = (None,)

    @initialize(
        size=st.sampled_from(SIZES),
        window=st.sampled_from([3, 8]),
        asked=st.lists(params(), min_size=3, max_size=3),
        credit=st.lists(explicit_or_not(), min_size=3, max_size=3),
    )
    def open(self, size: EngineSize, window: int, asked: list[Params], credit: list[Credit | None]) -> None:
        stream_params._seed = itertools.count().__next__  # those without one have the same in every run
        size = dataclasses.replace(size, overlap=self.overlap)
        self.server = SimulatedServer(
            size, engines=self.engines, models=self.models, window=window, keeps=self.keeps
        )
        self.readers = [Reader(self.server, tenant) for tenant in ("one", "one", "two")]
        self.left: list[Reader] = []
        self.names = itertools.count()
        self.forks = 0
        for who, reader in enumerate(self.readers):
            frame = protocol.Start(
                request_id=f"{next(self.names)}",
                prompt="Once",
                params=asked[who],
                credit=credit[who],
                on_disconnect="pause" if who else "continue",
                return_tokens=True,
            )
            reader.send(frame)

    # -- frames ----------------------------------------------------------------------------------

    @rule(
        reader=PICK,
        prompt=st.sampled_from(PROMPTS),
        chat=st.booleans(),
        asked=params(),
        credit=explicit_or_not(),
        interval=st.sampled_from([1, 1, 2, 5, 20]),
        priority=st.sampled_from([0, 0, 0, 1, -8]),
        timeout_ms=st.sampled_from([None, None, None, 500]),
        on_disconnect=st.sampled_from(["cancel", "pause", "continue"]),
    )
    def start(
        self,
        reader: int,
        prompt: str | list[int],
        chat: bool,
        asked: Params,
        credit: Credit | None,
        interval: int,
        priority: int,
        timeout_ms: int | None,
        on_disconnect: Any,
    ) -> None:
        who = reader % len(self.readers)
        said = [Message(role="user", content="Hi")] if chat else None
        name = next(self.names)
        frame = protocol.Start(
            request_id=f"{name}",
            model=self.asked[name % len(self.asked)],
            prompt=None if chat else prompt,
            messages=said,
            params=asked,
            credit=credit,
            stream_interval=interval,
            priority=priority,
            timeout_ms=timeout_ms,
            on_disconnect=on_disconnect,
            return_tokens=True,
        )
        self.readers[who].send(frame)

    @precondition(lambda self: self.forks < 3)
    @rule(
        at=PICK,
        asked=params(),
        credit=explicit_or_not(),
        back=st.none() | st.integers(-1, 6),
        on_disconnect=st.sampled_from(["cancel", "pause", "continue"]),
    )
    def fork(
        self, at: int, asked: Params, credit: Credit | None, back: int | None, on_disconnect: Any
    ) -> None:
        reader, account = self.pick(at)
        if account:
            self.forks += 1
            index = None if back is None else max(0, len(account.tokens) - back)
            reader.send(
                protocol.Start(
                    request_id=f"{next(self.names)}",
                    fork=protocol.Fork(request_id=account.request_id, at=index),
                    params=asked,
                    credit=credit,
                    on_disconnect=on_disconnect,
                    return_tokens=True,
                )
            )

    @rule(at=PICK)
    def start_again(self, at: int) -> None:
        reader, account = self.pick(at)
        if account:
            reader.send(replace(account.start))

    @rule(at=PICK)
    def start_otherwise(self, at: int) -> None:
        reader, account = self.pick(at)
        if account and account.started:
            reader.send(replace(account.start, stream_interval=77))
            assert not reader.ready or reader.errors[-1].code == "request_conflict", reader.errors

    @rule(at=PICK, more=st.integers(0, 9))
    def grant(self, at: int, more: int) -> None:
        reader, account = self.pick(at)
        if account:
            reader.send(protocol.Grant(request_id=account.request_id, limit=len(account.tokens) + more))

    @rule(at=PICK, release=st.booleans())
    def pause(self, at: int, release: bool) -> None:
        reader, account = self.pick(at)
        if account:
            reader.send(protocol.Pause(request_id=account.request_id, kv="release" if release else "hold"))

    @rule(at=PICK)
    def resume(self, at: int) -> None:
        reader, account = self.pick(at)
        if account:
            reader.send(protocol.Resume(request_id=account.request_id))

    @rule(at=PICK, asked=params(), back=st.none() | st.integers(-1, 6))
    def adjust(self, at: int, asked: Params, back: int | None) -> None:
        reader, account = self.pick(at)
        if account:
            index = None if back is None else max(0, len(account.tokens) - back)
            reader.send(protocol.Adjust(request_id=account.request_id, params=asked, at=index))

    @rule(
        at=PICK,
        seen=st.integers(1, 4),
        more=st.sampled_from(["", " th", "🙂", " zz"]),
        then=st.sampled_from(["nothing", "rewind", "cancel"]),
    )
    def stop_at_what_was_seen(self, at: int, seen: int, more: str, then: str) -> None:
        """A stop string whose beginning the client has already, and then something that looks at the text."""
        reader, account = self.pick(at)
        if account and account.text:
            name, read = account.request_id, len(account.tokens)
            back = read if then == "rewind" else None
            asked = Params(stop=account.text[-seen:] + more)
            reader.send(protocol.Adjust(request_id=name, params=asked, at=back))
            if then == "rewind":
                reader.send(protocol.Rewind(request_id=name, to=read))
            elif then == "cancel":
                reader.send(protocol.Cancel(request_id=name))

    @rule(
        at=PICK,
        what=st.sampled_from(["text", "tokens", "messages", "everything"]),
        back=st.none() | st.integers(-1, 6),
    )
    def inject(self, at: int, what: str, back: int | None) -> None:
        reader, account = self.pick(at)
        if account:
            index = None if back is None else max(0, len(account.tokens) - back)
            frame = protocol.Inject(request_id=account.request_id, at=index)
            if what == "text":
                frame.text = " and é🙂"
            elif what == "messages":
                frame.messages = [Message(role="user", content="No!")]
            else:
                frame.tokens = [0xF0, 0x9F] if what == "tokens" else list(range(100))
            reader.send(frame)

    @rule(at=PICK, back=st.integers(-1, 8))
    def rewind(self, at: int, back: int) -> None:
        reader, account = self.pick(at)
        if account:
            to = max(0, len(account.tokens) - back)
            reader.send(protocol.Rewind(request_id=account.request_id, to=to))

    @rule(at=PICK)
    def cancel(self, at: int) -> None:
        reader, account = self.pick(at)
        if account:
            reader.send(protocol.Cancel(request_id=account.request_id))

    @rule(reader=PICK)
    def steer_nothing(self, reader: int) -> None:
        who = self.readers[reader % len(self.readers)]
        who.send(protocol.Pause(request_id="never started"))

    # -- the world -------------------------------------------------------------------------------

    @rule(times=st.integers(1, 4))
    def tick(self, times: int) -> None:
        for _ in range(times):
            self.server.tick()

    @rule(engine=PICK)
    def step(self, engine: int) -> None:
        self.server.step(engine % self.engines)

    @rule(engine=PICK)
    def deliver_down(self, engine: int) -> None:
        self.server.deliver_down(engine % self.engines)

    @rule(engine=PICK, together=st.integers(1, 4))
    def deliver_up(self, engine: int, together: int) -> None:
        self.server.deliver_up(engine % self.engines, together=together)

    @rule(seconds=st.sampled_from([0.01, 0.3]))
    def wait(self, seconds: float) -> None:
        self.server.clock.advance(seconds)
        self.server.look()

    @rule(reader=PICK)
    def stall(self, reader: int) -> None:
        self.readers[reader % len(self.readers)].ready = False

    @rule(reader=PICK)
    def read(self, reader: int) -> None:
        self.readers[reader % len(self.readers)].read()

    @rule(reader=PICK, at_once=st.booleans())
    def acknowledge(self, reader: int, at_once: bool) -> None:
        who = self.readers[reader % len(self.readers)]
        who.prompt = at_once
        who.acknowledge()

    @rule(reader=PICK)
    def be_far(self, reader: int) -> None:
        """What is sent to it does not arrive, for now or for ever."""
        self.readers[reader % len(self.readers)].near = False

    @rule(
        reader=PICK, back=st.lists(st.sampled_from(["knowing", "knowing", "forgetful", "never"]), max_size=3)
    )
    def come_back(self, reader: int, back: list[str]) -> None:
        """A connection breaks, and another stands in for it."""
        at = reader % len(self.readers)
        gone, self.readers[at] = self.readers[at], Reader(self.server, self.readers[at].tenant)
        gone.leave()
        for account, how in zip(
            list(gone.accounts), itertools.chain(back, itertools.repeat("knowing")), strict=False
        ):
            if not account.refused and how != "never":
                self.readers[at].take_over(gone, account, forgotten=how == "forgetful")
        self.left.append(gone)

    @rule(at=PICK, to=PICK, forgotten=st.booleans())
    def take_over(self, at: int, to: int, forgotten: bool) -> None:
        """Another connection of the same tenant attaches, while the first still listens."""
        reader, account = self.pick(at)
        other = self.readers[to % len(self.readers)]
        if account and not account.refused and other is not reader and other.tenant == reader.tenant:
            other.take_over(reader, account, forgotten=forgotten)

    @rule(at=PICK, by=PICK, what=st.sampled_from(["pause", "resume", "rewind", "adjust", "inject", "cancel"]))
    def steer_elsewhere(self, at: int, by: int, what: str) -> None:
        """A stop button of its own connection."""
        reader, account = self.pick(at)
        other = self.readers[by % len(self.readers)]
        if account and other is not reader and other.tenant == reader.tenant:
            other.steer_elsewhere(_steering(what, account.request_id))

    @rule(engine=PICK)
    def kill_engine(self, engine: int) -> None:
        if self.server.engines[engine % self.engines].alive:
            self.server.kill_engine(engine % self.engines)

    @precondition(lambda self: self.dead_engines)
    @rule(which=PICK)
    def revive_engine(self, which: int) -> None:
        self.server.revive_engine(number=self.dead_engines[which % len(self.dead_engines)])

    @property
    def dead_engines(self) -> list[int]:
        return [number for number, engine in enumerate(self.server.engines) if not engine.alive]

    @precondition(lambda self: len(self.left) < 2)
    @rule(reader=PICK)
    def leave(self, reader: int) -> None:
        at = reader % len(self.readers)
        gone, self.readers[at] = self.readers[at], Reader(self.server, self.readers[at].tenant)
        gone.leave()
        self.left.append(gone)

    def pick(self, at: int) -> tuple[Reader, Account | None]:
        """A stream that was ever asked for, the latest first; it may have ended, or never begun."""
        reader = self.readers[at % len(self.readers)]
        accounts = reader.accounts[::-1]
        return reader, accounts[at // len(self.readers) % len(accounts)] if accounts else None

    # -- the end ---------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        for dead in self.dead_engines:
            self.server.revive_engine(number=dead)
        stalled = [reader for reader in self.readers if not reader.ready]
        self.finish([reader for reader in self.readers if reader.ready])  # whoever stalls delays nobody
        self.finish(stalled)
        self.server.clock.advance(60)  # nobody comes back any more
        while not self.server.at_rest:
            self.server.tick()
        self.server.check_empty()
        for reader in self.readers:
            reader.check_answers()
            for account in reader.accounts:
                if account.whole and account.final and account.final.finish_reason != "error":
                    assert retold(account) == account.tokens
            self.server.hub.detach(reader)
        total = self.server.hub.accounts.total
        assert (total.held, total.promised) == (0, 0), "nothing is held for streams of the past"

    def finish(self, readers: list[Reader]) -> None:
        """Read, resume, and grant by what was read, and see all of it end."""
        for reader in readers:
            reader.prompt = True
            reader.read()
            reader.acknowledge()
            for account in reader.accounts:
                if account.live:
                    reader.send(protocol.Resume(request_id=account.request_id))
        for _ in range(PATIENCE):
            if not any(account.live for reader in readers for account in reader.accounts):
                return
            for reader in readers:
                reader.grant_all()
                reader.let_through()
            self.server.tick()
        live = [account for reader in readers for account in reader.accounts if account.live]
        raise AssertionError(f"streams that lack nothing do not end: {live}")


TestEverything = Everything.TestCase
TestEverything.settings = SETTINGS


class Overlapped(Everything):
    """An engine that hears of its tokens one step later."""

    overlap = True


class Fleet(Everything):
    """Several engines: whoever loses one goes on at another, or waits to be tried apart."""

    engines = 3


class Kept(Everything):
    """An engine that keeps streams: whenever its gateway dies, another builds the same of them."""

    keeps = True

    @rule()
    def build_elsewhere(self) -> None:
        self.server.check_kept()

    @rule()
    def build_elsewhere_at_rest(self) -> None:
        for _ in range(20):
            self.server.tick()
        self.server.check_kept()


TestKept = Kept.TestCase
TestKept.settings = settings(SETTINGS, max_examples=int(EXAMPLES or 20))


class TwoModels(Fleet):
    """Engines of two models: no stream comes to one of the other's, whatever dies."""

    models = ("toy", "other")
    asked = (None, "toy", "other")


TestTwoModels = TwoModels.TestCase
TestTwoModels.settings = settings(SETTINGS, max_examples=int(EXAMPLES or 8))


TestFleet = Fleet.TestCase
TestFleet.settings = settings(SETTINGS, max_examples=int(EXAMPLES or 12))


TestOverlapped = Overlapped.TestCase
TestOverlapped.settings = settings(SETTINGS, max_examples=int(EXAMPLES or 12))
