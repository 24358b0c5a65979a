"""Whoever has a stream built again pays for it, piece by piece, and others have their turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from engine import api
from midstream import protocol
from realtime.hub import keepers
from realtime.hub.adoptions import ASK_S, SEARCH_S
from realtime.hub.keepers import Found, Search
from realtime.hub.stream_key import StreamKey
from realtime.refusal import Refusal
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, TENANT, endless
from tests.fakes.simulated_server import SimulatedServer


class Payer:
    number = 1

    def __init__(self) -> None:
        self.payer = self
        self.paid: list[float] = []

    async def pay(self, work_s: float) -> None:
        self.paid.append(work_s)


async def test_each_piece_is_paid_for_and_others_have_their_turn_behind_it() -> None:
    payer, done, turns = Payer(), list[int](), list[int]()

    def pieces() -> Iterator[None]:
        for piece in range(5):
            done.append(piece)
            yield

    async def others() -> None:
        while len(done) < 5:
            turns.append(len(done))
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    adoptions: Any = SimulatedServer(SIZE, keeps=True).hub._adoptions
    await adoptions._tell(TENANT, None, pieces(), payer)
    await other
    assert len(payer.paid) == 6
    assert all(work_s >= 0 for work_s in payer.paid)
    assert turns == [1, 2, 3, 4]


@pytest.mark.parametrize("engines", [1, 3])
async def test_whoever_has_engines_asked_for_a_stream_owes_that_by_each(
    monkeypatch: pytest.MonkeyPatch, engines: int
) -> None:
    monkeypatch.setattr(keepers, "ANSWER_S", 0.0)
    server = SimulatedServer(SIZE, engines=engines, keeps=True)
    listener, frame = RecordingListener(server), protocol.Attach(request_id="a", after=-1)
    with pytest.raises(Refusal, match="does not answer"):
        await server.hub._adoptions.find(StreamKey(TENANT, "a"), frame, listener)
    assert listener.owed_s == pytest.approx(SEARCH_S + engines * ASK_S)


async def test_what_is_decoded_while_it_is_built_counts_for_its_tenant() -> None:
    """Who owes much waits long until it is."""
    there, here = (
        SimulatedServer(SIZE, keeps=True, quotas=Quotas(lambda tenant: Allowance(max_streams=9)))
        for _ in "ab"
    )
    credit = protocol.Credit(limit=100)
    RecordingListener(there).send(endless(credit=credit, on_disconnect="continue"))
    for _ in range(3):
        there.tick()
    (stream,) = there.hub.streams
    journal = there.engines[0].keeping.kept[stream.number].journal.told()
    late = list[api.News]()
    for _ in range(5):
        there.step()
        late += there.up.popleft().news
    found = Found(here.hub.serving.engines[0], journal, late)
    key, search = StreamKey(TENANT, stream.request_id), Search([], doubtful=False)
    await here.hub._adoptions._adopt(key, 7, search, found, RecordingListener(here))
    assert sum(len(news.tokens) for news in late) == 5
    assert here.hub._quotas.taken()[TENANT].tokens == 5
