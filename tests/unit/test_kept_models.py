"""Models whose engines are kept elsewhere: what streams are told while there is none, and what those who keep
engines are told of streams."""

from __future__ import annotations

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.fleet.demands import Demands
from realtime.fleet.kept_models import KeptModels
from realtime.fleet.served_models import ServedModels
from realtime.hub import submission
from realtime.hub.demand import NOWHERE, Demand, Wait
from realtime.hub.models import KnownModel, Models
from realtime.hub.placement import EngineState, PlacedEngine, PlacedModel, Placement
from realtime.hub.router import FIRST_TOKEN_S
from realtime.pieces import at_once
from realtime.refusal import Refusal
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import start
from tests.fakes.simulated_server import Clock, EngineSize, SimulatedServer

SIZE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=70, batch_rows=70)
SHORT = Params(max_tokens=40, ignore_eos=True, temperature=0)
PLENTY = Credit(limit=1000)


def placement(engines: int, *, may_sleep: bool = True, name: str = "toy") -> Placement:
    return Placement([], [], [PlacedModel(name, engines, 1, 4, may_sleep)])


def placed(*states: EngineState) -> Placement:
    """An engine in each of them."""
    engines = [PlacedEngine(f"toy#{at}", "toy", state, "gpu1", "", "") for at, state in enumerate(states)]
    return Placement([], engines, placement(len(states)).models)


class Kept:
    """A server whose one model is kept elsewhere, and a listener."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.known = KnownModel("toy")
        self.server = SimulatedServer(SIZE, known=Models([self.known]), clock=self.clock)
        self.listener = RecordingListener(self.server)
        self.models = KeptModels(self.server.hub, ServedModels(), self.clock)
        self.demands = Demands(self.server.hub, self.models.asked_for, self.clock)
        self.models.receive(placement(1))

    def look(self) -> Demand:
        return at_once(self.demands.look())["toy"]

    def start(self, name: str) -> None:
        self.listener.send(start(name, params=SHORT, credit=PLENTY))

    def ticks(self, count: int = 60) -> None:
        for _ in range(count):
            self.server.tick()
            self.clock.advance(0)

    def sleeps(self) -> None:
        self.server.engines[0].die()
        self.server.hub.engine_lost(0, blameless=True)
        self.models.receive(placement(0))

    @property
    def told(self) -> list[str]:
        """Why streams pause, and how they end."""
        heard = [one for one in self.listener.heard if isinstance(one, protocol.Paused | protocol.Final)]
        return [one.reason if isinstance(one, protocol.Paused) else one.finish_reason for one in heard]


def test_what_streams_wait_for_is_told_by_engine_and_for_how_long() -> None:
    kept = Kept()
    assert kept.look() == Demand()
    kept.start("a")
    tokens = len(kept.server.hub.streams[0].context)
    where = next(iter(kept.server.hub.serving.engines.values())).keeper.hex()
    assert kept.look() == Demand(1, tokens * FIRST_TOKEN_S, {where: Wait(tokens * FIRST_TOKEN_S, 0.0)})
    kept.clock.advance(2.0)
    assert kept.look().waits[where].waited_s == 2.0
    kept.ticks(3)
    demand = kept.look()
    assert (demand.streams, demand.waits) == (1, {})
    assert demand.work_s > 0, "it would have to be computed again elsewhere"
    kept.ticks()
    assert kept.look() == Demand()


def test_those_that_a_new_engine_is_given_in_later_turns_wait_for_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "SUBMIT_TOKENS", 1)
    kept = Kept()
    for name in "abc":
        kept.start(name)
    kept.server.kill_engine()
    (before,) = kept.look().waits.values()
    kept.clock.advance(2.0)
    kept.server.revive_engine()
    (now,) = kept.look().waits.values()
    assert now == Wait(before.work_s, 2.0)


def test_who_is_paused_needs_no_engine_and_waits_for_nothing() -> None:
    kept = Kept()
    kept.start("a")
    kept.listener.send(protocol.Pause(request_id="a"))
    kept.ticks(5)
    assert kept.look() == Demand()


def test_a_start_for_a_model_that_sleeps_is_taken_and_waits_and_is_told_to_those_who_have_engines() -> None:
    kept = Kept()
    assert kept.known.keeper is not None
    kept.sleeps()
    assert kept.known.keeper.state == "cold"
    kept.start("a")
    assert (kept.told, kept.known.keeper.state) == (["loading"], "loading")
    assert (kept.look().streams, list(kept.look().waits)) == (2, [NOWHERE]), "it was asked for, and is needed"
    kept.clock.advance(3.0)
    kept.server.revive_engine()
    kept.ticks()
    assert (kept.told, kept.known.keeper.state) == (["loading", "length"], "ready")
    assert kept.look() == Demand(), "it came, and nobody needs it"
    kept.sleeps()
    kept.start("b")
    kept.clock.advance(1.0)
    assert kept.known.keeper.eta_ms == 2000, "it took three seconds the last time"


def test_a_stream_whose_engine_goes_to_sleep_under_it_goes_on_when_it_wakes() -> None:
    kept = Kept()
    kept.start("a")
    kept.ticks(5)
    kept.sleeps()
    kept.start("late")
    assert kept.told == ["engine", "loading"]
    assert kept.look().streams == 3
    kept.server.revive_engine()
    kept.ticks()
    assert kept.told == ["engine", "loading", "length", "length"]


def test_whoever_will_not_wait_has_it_loaded_all_the_same() -> None:
    kept = Kept()
    kept.sleeps()
    kept.listener.send(protocol.Start(request_id="a", prompt="Hello", on_cold="refuse"))
    assert kept.listener.error().code == "model_loading"
    assert kept.look().streams == 1
    kept.server.revive_engine()
    assert kept.look().streams == 0


@pytest.mark.parametrize("what", ["unload", "pin"])
def test_what_other_servers_use_is_not_one_servers_to_unload(what: str) -> None:
    kept = Kept()
    keeper = kept.known.keeper
    assert keeper is not None
    with pytest.raises(Refusal, match="serve other servers, too: `midstream fleet scale` has more or fewer"):
        keeper.unload() if what == "unload" else keeper.pin(pinned=True)


def test_a_model_that_does_not_sleep_or_is_not_known_has_no_keeper_here() -> None:
    kept = Kept()
    kept.known.keeper = None
    models = KeptModels(kept.server.hub, ServedModels())
    models.receive(placement(1, may_sleep=False))
    models.receive(placement(1, name="other"))
    assert kept.known.keeper is None


def test_why_an_engine_does_not_start_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    failed = Placement([], [PlacedEngine("toy#1", "toy", "failed", "gpu1", "", "no memory")], [])
    for placed in (failed, failed, placement(1), failed):
        kept.models.receive(placed)
    assert caplog.messages == ["toy#1 does not start: no memory; its machine tries again"] * 2


def test_nobody_waits_for_a_model_whose_engines_cannot_start() -> None:
    kept = Kept()
    kept.sleeps()
    kept.start("a")
    failed, loading = placed("failed"), placed("loading")
    kept.models.receive(placed("failed", "loading"))
    assert kept.told == ["loading"], "one may come yet"
    kept.models.receive(failed)
    assert kept.told == ["loading", "error"]
    kept.start("b")
    assert kept.look().streams == 0, "it is soon told, too"
    assert kept.told == ["loading", "error"] * 2
    kept.models.receive(loading)
    kept.start("c")
    kept.server.revive_engine()
    kept.ticks()
    assert kept.told == [*["loading", "error"] * 2, "loading", "length"]


async def test_what_sleeps_is_known_by_its_files() -> None:
    kept = Kept()
    models = KeptModels(kept.server.hub, ServedModels({"b": api.EngineOptions(model="toy", name="b")}))
    await models.open(["b"])
    known = kept.server.hub.models.find("b")
    assert known.served is not None
    assert known.keeper is not None
    assert known.keeper.state == "cold"
    assert kept.server.hub.serving.of_model_takes_starts(known)
