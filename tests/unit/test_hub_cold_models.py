"""The hub and a model that comes and goes: whoever starts or goes on while it is not there is told so, has it
loaded, and has the text that it would have had."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from midstream import protocol
from midstream.protocol import Credit, Params, Past, ToolResult
from realtime.hub.models import KnownModel, LoadState, Models
from realtime.hub.serving import LOST_A_TURN, REFUSED
from realtime.tenants.allowance import EVERYTHING, Allowance
from realtime.tenants.quota import Quotas
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import settled, start
from tests.fakes.simulated_server import Clock, EngineSize, SimulatedServer
from tests.unit.test_hub_tools import knowing, waiting

SIZE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=70, batch_rows=70)
SHORT = Params(max_tokens=40, ignore_eos=True, temperature=0)
PLENTY = Credit(limit=1000)


class FakeKeeper:
    """Of the one model, whose engine comes and goes as the test says."""

    pinned = False

    def __init__(self, server: SimulatedServer, eta_ms: int | None) -> None:
        self.state: LoadState = "ready"
        self.eta_ms = eta_ms
        self.wanted = 0
        self.is_wanted = True
        self._server = server

    @property
    def awaited(self) -> bool:
        return self.state != "ready"

    def want(self) -> None:
        self.wanted += 1
        self.is_wanted = True

    def unload(self) -> None:
        self.state = "unloading"
        self._server.hub.serving.drain("toy", drains=True)

    def pin(self, *, pinned: bool) -> None:
        self.pinned = pinned

    def goes(self) -> None:
        self.state, self.is_wanted = "cold", False
        self._server.engines[0].die()
        self._server.hub.engine_lost(0, blameless=True)
        self._server.hub.serving.drain("toy", drains=False)
        ticks(self._server, 1)

    def comes(self) -> None:
        self.state = "ready"
        self._server.revive_engine()


class Cold:
    def __init__(self, eta_ms: int | None = 1500, allowance: Allowance = EVERYTHING, **fields: Any) -> None:
        known, clock = KnownModel("toy"), Clock()
        quotas = Quotas(lambda tenant: allowance, clock)
        self.server = SimulatedServer(SIZE, known=Models([known]), clock=clock, quotas=quotas, **fields)
        self.keeper = known.keeper = FakeKeeper(self.server, eta_ms)
        self.listener = RecordingListener(self.server)
        self.send = self.listener.send

    def told(self, *kinds: type[protocol.StreamEvent]) -> list[protocol.StreamEvent]:
        return [event for event in self.listener.heard if isinstance(event, kinds)]

    @property
    def pauses(self) -> list[tuple[str, int | None]]:
        return [(one.reason, one.eta_ms) for one in self.listener.heard if isinstance(one, protocol.Paused)]

    @property
    def text(self) -> str:
        return "".join(one.delta for one in self.listener.heard if isinstance(one, protocol.Token))

    @property
    def reasons(self) -> list[str]:
        return [one.finish_reason for one in self.listener.heard if isinstance(one, protocol.Final)]


def ticks(server: SimulatedServer, count: int = 60) -> None:
    for _ in range(count):
        server.tick()
        server.clock.advance(0)


@pytest.fixture(scope="module")
def whole() -> str:
    """The text of who is disturbed by nothing."""
    cold = Cold()
    cold.send(start("a", params=SHORT, credit=PLENTY))
    ticks(cold.server)
    assert cold.reasons == ["length"]
    return cold.text


@pytest.mark.parametrize("eta_ms", [1500, None])
def test_a_start_is_taken_told_that_it_waits_and_goes_on(whole: str, eta_ms: int | None) -> None:
    cold = Cold(eta_ms)
    cold.keeper.goes()
    assert cold.server.hub.serving.takes_starts, "or nobody would send one, and it would never be loaded"
    assert cold.server.hub.serving.starts_taken == {"toy": True}
    cold.send(start("a", params=SHORT, credit=PLENTY))
    assert cold.pauses == [("loading", eta_ms)]
    assert cold.keeper.wanted
    assert cold.server.hub.serving.wants("toy")
    assert not cold.server.hub.serving.computes("toy")
    cold.keeper.comes()
    ticks(cold.server)
    assert [type(event).__name__ for event in cold.told(protocol.StreamEvent)[:3]] == [
        "Started",
        "Paused",
        "Resumed",
    ]
    assert (cold.reasons, cold.text) == (["length"], whole)
    assert not cold.server.hub.serving.wants("toy")


def test_it_is_refused_where_it_asks_for_that_and_the_model_is_loaded() -> None:
    cold = Cold()
    frame = msgspec.structs.replace(start("a", params=SHORT), on_cold="refuse")
    cold.keeper.goes()
    cold.send(frame)
    error = cold.listener.error()
    assert (error.code, error.retryable, error.retry_after_ms) == ("model_loading", True, 1500)
    assert cold.keeper.wanted == 1
    cold.keeper.comes()
    cold.send(frame)
    assert cold.told(protocol.Started)


def test_what_is_refused_for_other_reasons_loads_nothing() -> None:
    cold = Cold()
    cold.keeper.goes()
    for asked in ("refuse", "wait"):
        cold.send(msgspec.structs.replace(start("a"), on_cold=asked, tool_choice="required"))
        assert cold.listener.error().code == "invalid_frame"
    assert cold.keeper.wanted == 0


@pytest.mark.parametrize("on_cold", ["wait", "refuse"])
def test_whoever_has_a_model_loaded_pays_for_it(on_cold: str) -> None:
    cold = Cold(allowance=Allowance(loads_per_hour=1))
    cold.keeper.goes()
    for name in "ab":  # the second finds it wanted
        cold.send(msgspec.structs.replace(start(name, params=SHORT, credit=PLENTY), on_cold=on_cold))
    assert cold.keeper.wanted == 2
    cold.keeper.comes()
    ticks(cold.server)
    cold.keeper.goes()
    cold.send(msgspec.structs.replace(start("c", params=SHORT, credit=PLENTY), on_cold=on_cold))
    error = cold.listener.error()
    assert (error.code, error.retry_after_ms) == ("rate_limited", 3_600_000)
    assert "1 loads of models an hour" in error.message
    assert cold.keeper.wanted == 2
    cold.server.clock.advance(3600)
    cold.send(msgspec.structs.replace(start("d", params=SHORT, credit=PLENTY), on_cold=on_cold))
    assert cold.keeper.wanted == 3


def test_who_goes_on_is_not_refused_and_pays() -> None:
    cold = Cold(allowance=Allowance(loads_per_hour=1))
    cold.send(start("a", params=SHORT, credit=PLENTY))
    ticks(cold.server, 3)
    cold.send(protocol.Pause(request_id="a"))
    ticks(cold.server, 3)
    cold.keeper.goes()
    cold.send(protocol.Resume(request_id="a"))
    assert cold.keeper.wanted == 1
    cold.keeper.comes()
    ticks(cold.server)
    assert cold.reasons == ["length"]
    cold.keeper.goes()
    cold.send(start("b"))
    assert cold.listener.error().code == "rate_limited"


def test_an_engine_that_has_died_is_no_cold_model() -> None:
    cold = Cold()
    cold.server.kill_engine()
    cold.send(start("a"))
    assert cold.listener.error().code == "overloaded"
    assert not cold.keeper.wanted


def test_a_paused_streams_model_may_go_and_come_back(whole: str) -> None:
    cold = Cold()
    cold.send(start("a", params=SHORT, credit=PLENTY))
    ticks(cold.server, 8)
    assert cold.server.hub.serving.wants("toy")
    cold.send(protocol.Pause(request_id="a"))
    ticks(cold.server, 2)
    assert not cold.server.hub.serving.wants("toy"), "who is paused needs none"
    cold.keeper.goes()
    assert cold.pauses == [("client", None)]
    assert cold.keeper.wanted == 0
    cold.send(protocol.Resume(request_id="a", ref="go on"))
    assert cold.keeper.wanted > 0
    assert cold.pauses == [("client", None), ("loading", 1500)]
    cold.keeper.comes()
    ticks(cold.server)
    assert [event.ref for event in cold.told(protocol.Resumed)] == ["go on"]
    assert (cold.reasons, cold.text) == (["length"], whole)


async def test_who_is_not_to_go_on_after_all_is_told_again_what_it_is_paused_for() -> None:
    """It was said to be loading for ever."""
    cold = Cold()
    cold.send(start("a", params=SHORT, credit=PLENTY))
    ticks(cold.server, 8)
    cold.send(protocol.Pause(request_id="a"))
    ticks(cold.server, 2)
    cold.keeper.goes()
    half = [5] * (SIZE.kv_tokens // 2)
    cold.send(protocol.Inject(request_id="a", ref="one", tokens=half))
    cold.send(protocol.Inject(request_id="a", ref="both", tokens=half, resume=True))
    await settled()
    cold.keeper.comes()
    ticks(cold.server)
    assert [one.ref for one in cold.listener.heard if isinstance(one, protocol.Error)] == ["both"]
    assert cold.pauses == [("client", None), ("loading", 1500), ("client", None)]
    assert cold.told(protocol.Resumed) == []


def test_who_starts_while_it_is_to_go_waits_and_who_runs_runs_on(whole: str) -> None:
    cold = Cold()
    cold.send(start("a", params=SHORT, credit=PLENTY))
    ticks(cold.server, 5)
    cold.keeper.unload()
    cold.send(start("b", params=SHORT, credit=PLENTY))
    assert cold.pauses == [("loading", 1500)]
    assert cold.server.hub.serving.computes("toy"), "what runs is not cut"
    ticks(cold.server)
    assert cold.reasons == ["length"]
    assert not cold.server.hub.serving.computes("toy")
    cold.keeper.goes()
    assert cold.server.hub.serving.wants("toy")
    cold.keeper.comes()
    ticks(cold.server)
    assert (cold.reasons, cold.text) == (["length"] * 2, whole * 2)


def test_what_is_asked_while_it_waits_is_done(whole: str) -> None:
    cold = Cold()
    cold.keeper.goes()
    for name in "abc":
        cold.send(start(name, params=SHORT, credit=PLENTY))
    cold.send(protocol.Cancel(request_id="a"))
    cold.send(protocol.Pause(request_id="b", ref="stop"))
    assert cold.reasons == ["cancelled"]
    cold.keeper.comes()
    ticks(cold.server)
    assert [one for one in cold.pauses if one[0] == "client"] == [("client", None)]
    assert (cold.reasons, cold.text) == (["cancelled", "length"], whole)


def test_what_is_asked_of_a_past_that_had_stopped_comes_too_late_there_as_well() -> None:
    cold = Cold()
    cold.keeper.goes()
    asked = {"params": Params(stop="b"), "past": Past(tokens=[*b"ab"])}
    cold.send(start("a", credit=PLENTY, on_disconnect="continue", **asked))
    cold.send(protocol.Rewind(request_id="a", ref="back", to=0))
    cold.keeper.comes()
    ticks(cold.server)
    (final,) = cold.told(protocol.Final)
    assert isinstance(final, protocol.Final)
    assert (final.index, final.stop_reason) == (2, "b")
    assert cold.told(protocol.Rewound) == []
    assert [one.code for one in cold.listener.heard if isinstance(one, protocol.Error)] == [
        "request_finished"
    ]


async def test_one_that_begins_as_it_waits_for_results_has_its_model_loaded_when_they_come() -> None:
    """Until then it needs none: neither is one loaded, nor does it end where one cannot be."""
    cold = Cold(tokenizer=knowing(), keeps=True)
    cold.keeper.goes()
    cold.send(waiting(tool_hold_ms=10, on_disconnect="pause", params=SHORT, credit=PLENTY))
    await settled()
    cold.server.hub.serving.fail_waiting("toy")
    cold.server.clock.advance(1)
    _, snapshot = cold.told(protocol.StreamEvent)
    assert isinstance(snapshot, protocol.Snapshot)
    assert snapshot.paused == "tool_call"
    assert cold.keeper.wanted == 0
    call_id = snapshot.tool_calls[0].call_id
    cold.send(ToolResult(request_id="a", call_id=call_id, content="42"))
    await settled()
    assert cold.keeper.wanted == 1
    cold.keeper.comes()
    ticks(cold.server, 5)
    cold.server.check_kept()
    ticks(cold.server)
    kinds = [type(event).__name__ for event in cold.told(protocol.StreamEvent)]
    assert kinds[2:6] == ["Paused", "Injected", "Resumed", "Token"]
    assert (cold.pauses, cold.reasons) == ([("loading", 1500)], ["length"])


def test_who_waits_for_what_cannot_be_loaded_is_told_so() -> None:
    cold = Cold()
    cold.keeper.goes()
    cold.send(start("a", params=SHORT))
    cold.server.hub.serving.fail_waiting("toy")
    (final,) = cold.told(protocol.Final)
    assert isinstance(final, protocol.Final)
    assert (final.finish_reason, final.stop_reason) == ("error", "the model could not be loaded")


def with_many_frames(cold: Cold) -> None:
    """Streams for which so much waits that the end of each is a turn's work."""
    for name in "abc":
        cold.send(start(name, params=SHORT, credit=PLENTY))
        for _ in range(LOST_A_TURN * REFUSED):
            cold.send(protocol.Rewind(request_id=name, to=0))


def test_others_have_their_turn_between_those_that_are_told_so() -> None:
    cold = Cold()
    cold.keeper.goes()
    with_many_frames(cold)
    cold.server.hub.serving.fail_waiting("toy")
    assert cold.reasons == ["error"]
    cold.server.clock.advance(0)
    assert cold.reasons == ["error"] * 2
    cold.keeper.comes()
    ticks(cold.server, 200)
    assert cold.reasons == ["error", "error", "length"], "it was loaded before it was told"


def test_others_have_their_turn_between_those_that_end_with_their_engine() -> None:
    cold = Cold()
    cold.keeper.goes()
    with_many_frames(cold)
    cold.keeper.comes()
    for name in "abc":
        cold.send(protocol.Cancel(request_id=name))
    cold.server.engines[0].die()
    cold.server.hub.engine_lost(0)
    ends = [len(cold.reasons)]
    for _ in range(2):
        cold.server.clock.advance(0)
        ends.append(len(cold.reasons))
    assert ends == [1, 2, 3]


def test_the_catalog_says_what_is_loaded() -> None:
    cold = Cold()
    states = []
    for change in (cold.keeper.unload, cold.keeper.goes, cold.keeper.comes, cold.server.kill_engine):
        change()
        states += [one.state for one in cold.server.hub.serving.catalog]
    assert states == ["unloading", "cold", "ready", "loading"]
