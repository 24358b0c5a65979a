"""What is told of the streams that live: how far they are, what holds them up, and to whom."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from engine import api, toy_model
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.access.authentication import Credentials
from realtime.access.keyring import Keyring
from realtime.http.guard import Access, guarded
from realtime.http.listing_endpoint import listing_endpoint
from realtime.http.request_work import RequestWork
from realtime.hub.observers import Observer
from realtime.hub.placement import PlacedMachine, Placement
from realtime.keys_command import main
from realtime.observability.listing import Listed, Listing, ListingObserver
from realtime.pieces import at_once
from tests.fakes.checking_client import Reader
from tests.fakes.credentials import credentials
from tests.fakes.simulated_client import SIZE, TENANT, endless, rest, run_out, start
from tests.fakes.simulated_server import Clock, SimulatedServer

HELLO = api.Hello(
    model="toy",
    folder="",
    vocab=toy_model.VOCAB,
    context=4096,
    eos=[],
    kv_tokens=4096,
    block=16,
    device="cpu",
    dtype="none",
    attention="none",
)


class Watched:
    """A server whose streams can be listed."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.listings = ListingObserver(self.clock)
        self.server = SimulatedServer(SIZE, clock=self.clock, observer=self.listings)
        self.listings.engine_ready(0, HELLO)
        self.reader = Reader(self.server)

    def all(self, **choice: Any) -> Listing:
        return at_once(self.listings.of_all(**({"most": 100, "connections": 7} | choice)))

    def one(self) -> Listed:
        (listed,) = self.all().streams
        return listed

    def ticks(self, count: int, each_s: float) -> None:
        for _ in range(count):
            self.clock.advance(each_s)
            self.server.tick()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_stream_is_listed_from_its_start_to_its_end(watched: Watched) -> None:
    watched.reader.send(start(params=Params(max_tokens=2, ignore_eos=True)))
    queued = watched.one()
    assert (queued.request_id, queued.tenant, queued.model, queued.route) == ("a", TENANT, "toy", "websocket")
    assert (queued.state, queued.tokens, queued.tokens_per_s, queued.age_s) == ("queued", 0, 0, 0)
    watched.clock.advance(2.5)
    assert watched.one().age_s == 2.5
    run_out(watched.server, watched.reader.accounts[0])
    assert (watched.all().streams, watched.all().total) == ([], 0)


def test_it_says_what_a_stream_has_and_what_it_waits_for(watched: Watched) -> None:
    watched.reader.send(endless(credit=Credit(limit=3)))
    rest(watched.server)
    stalled = watched.one()
    assert (stalled.state, stalled.paused, stalled.tokens, stalled.credit) == ("stalled", None, 3, 0)
    assert stalled.context_tokens == stalled.prompt_tokens + 3
    watched.reader.send(protocol.Grant(request_id="a", limit=50))
    watched.reader.send(protocol.Inject(request_id="a", tokens=[5, 6], at=3))
    watched.reader.send(protocol.Pause(request_id="a"))
    rest(watched.server)
    paused = watched.one()
    assert (paused.state, paused.paused, paused.tokens_per_s) == ("paused", "client", 0)
    assert paused.credit == 50 - paused.tokens
    assert paused.context_tokens == paused.prompt_tokens + paused.tokens + 2


def test_a_rate_is_that_of_the_last_moment_and_not_of_the_whole_life(watched: Watched) -> None:
    watched.reader.send(endless(credit=Credit(limit=4000)))
    watched.ticks(30, 0.5)
    assert watched.one().tokens_per_s == 2
    watched.ticks(30, 0.125)
    assert watched.one().tokens_per_s == 8
    totals = watched.all().server
    assert totals is not None
    assert totals.tokens_per_s == 8


def test_an_engine_that_comes_or_goes_is_no_leap_of_the_rate(watched: Watched) -> None:
    watched.reader.send(endless(credit=Credit(limit=4000)))
    watched.ticks(30, 0.5)
    watched.listings.engine_ready(1, replace(HELLO, keeper=b"1"))
    watched.listings.delivered(1, api.StepOutput(1, [], api.Stats(tokens_total=1_000_000)))
    for lost in (False, True):
        if lost:
            watched.listings.engine_lost(1)
        watched.ticks(1, 0.5)
        totals = watched.all().server
        assert totals is not None
        assert 0 < totals.tokens_per_s <= 4


def test_no_more_are_listed_than_are_asked_for_the_youngest_first(watched: Watched) -> None:
    for name in ("a", "b", "c"):
        watched.reader.send(endless(name, credit=Credit(limit=1 if name == "a" else 100)))
        watched.ticks(3, 0.1)
    listing = watched.all(most=2)
    assert ([one.request_id for one in listing.streams], listing.total) == (["c", "b"], 3)
    assert listing.states == {"queued": 0, "running": 2, "paused": 0, "stalled": 1}
    stalled = watched.all(state="stalled")
    assert ([one.request_id for one in stalled.streams], stalled.total) == (["a"], 1)
    assert stalled.states == listing.states


def test_the_totals_are_of_the_engine_that_runs(watched: Watched) -> None:
    idle = watched.all().server
    watched.reader.send(endless(credit=Credit(limit=100)))
    watched.ticks(3, 0.1)
    busy = watched.all().server
    assert idle is not None
    assert busy is not None
    assert (idle.batch_rows, busy.batch_rows, busy.connections, busy.models) == (0, 1, 7, ["toy"])
    assert busy.kv_used_tokens >= 16 - 1
    assert busy.kv_used_tokens + busy.kv_cached_tokens + busy.kv_free_tokens == SIZE.kv_tokens
    assert busy.fleet is None
    watched.listings.placed(placement := Placement([PlacedMachine("gpu1", 8, 4, 2**35)], [], []))
    placed = watched.all().server
    assert placed is not None
    assert placed.fleet == placement
    watched.listings.engine_lost(0)
    watched.server.kill_engine()
    lost = watched.all().server
    assert lost is not None
    assert (lost.engine, lost.kv_used_tokens, watched.one().paused) == (False, 0, "engine")


# -- over HTTP -------------------------------------------------------------------------------------


def asking(watched: Watched, locks: Credentials) -> TestClient:
    door = listing_endpoint(watched.listings, locks, RequestWork(), lambda: 7)
    routes = guarded(Access.HOLDERS, locks, Route("/v1/streams", door), observer=Observer())
    return TestClient(Starlette(routes=routes), base_url="http://localhost")


def test_a_tenant_is_told_of_its_own_and_an_admin_of_all(
    watched: Watched, tmp_path: Any, capsys: Any
) -> None:
    file = tmp_path / "keys.toml"
    keys = {}
    for words in (["alice"], ["bob"], ["root", "--admin"]):
        assert main(["add", *words, "--file", str(file)], {}) == 0
        keys[words[0]] = capsys.readouterr().out.strip()
    client = asking(watched, credentials(Keyring(file)))
    for tenant in ("alice", "bob"):
        Reader(watched.server, tenant).send(endless(f"{tenant}'s", credit=Credit(limit=1)))

    def told(who: str) -> Any:
        return client.get("/v1/streams", headers={"Authorization": f"Bearer {keys[who]}"}).json()

    assert [one["request_id"] for one in told("alice")["streams"]] == ["alice's"]
    assert (told("alice")["total"], told("alice")["states"]["queued"]) == (1, 1)
    assert told("alice")["server"] is None, "how busy others are is no business of hers"
    assert [one["tenant"] for one in told("root")["streams"]] == ["bob", "alice"]
    assert told("root")["server"]["connections"] == 7


def test_what_is_told_holds_no_word_of_a_prompt_or_an_output(watched: Watched) -> None:
    watched.reader.send(endless(prompt="CANARY", credit=Credit(limit=9)))
    rest(watched.server)
    answer = asking(watched, credentials()).get("/v1/streams")
    assert "CANARY" not in answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    (told,) = json.loads(answer.text)["streams"]
    assert {name for name, value in told.items() if isinstance(value, str)} == {
        *("request_id", "tenant", "model", "route", "state")
    }


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=²", "state=ended", "state="]
)
def test_what_cannot_be_asked_is_refused_in_words(watched: Watched, query: str) -> None:
    answer = asking(watched, credentials()).get(f"/v1/streams?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_params")
    assert "must be" in answer.json()["error"]["message"]


def test_what_can_be_asked_is_answered(watched: Watched) -> None:
    client = asking(watched, credentials())
    for query in ("", "?limit=1", "?limit=1000", "?state=paused&limit=5"):
        assert client.get(f"/v1/streams{query}").status_code == 200
