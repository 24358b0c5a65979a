"""What becomes of a stream that an engine has given to this gateway, and that cannot be built here."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine import api
from realtime.hub.keepers import Found, Search
from realtime.hub.rebuilt_stream import RebuiltStream
from realtime.hub.stream_key import StreamKey
from realtime.refusal import Refusal
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, TENANT, endless
from tests.fakes.simulated_server import SimulatedServer

NUMBER = 7


def a_journal() -> tuple[StreamKey, api.Journal]:
    """Of a stream that runs at another gateway."""
    there = SimulatedServer(SIZE, keeps=True)
    RecordingListener(there).send(endless(on_disconnect="continue"))
    there.tick()
    (stream,) = there.hub.streams
    return StreamKey(TENANT, stream.request_id), there.engines[0].keeping.kept[stream.number].journal.told()


async def told_engine(
    here: SimulatedServer, key: StreamKey, journal: api.Journal, code: str
) -> api.AnyCommand:
    """The last thing that its engine is told when it cannot be built here."""
    engine = here.hub.serving.engines[0]
    found, search = Found(engine, journal, []), Search([], doubtful=False)
    with pytest.raises(Refusal) as caught:
        await here.hub._adoptions._build(key, NUMBER, search, found, RecordingListener(here))
    assert caught.value.code == code
    engine.flush()
    return here.down.pop()[-1]


async def test_one_that_is_lost_ends_and_counts_for_nobody() -> None:
    here = SimulatedServer(SIZE, keeps=True, quotas=Quotas(lambda tenant: Allowance(max_streams=9)))
    key, journal = a_journal()
    other = replace(journal, digest=journal.digest + 1)
    assert await told_engine(here, key, other, "unknown_request") == api.Cancel(NUMBER)
    assert here.hub._quotas.taken() == {}


async def test_one_that_cannot_be_built_now_waits_in_its_engine_for_whoever_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No longer than it would for a gateway that is gone: it holds the engine's memory."""

    def compiler_was_killed(stream: RebuiltStream) -> None:
        raise Refusal("overloaded", "It cannot be built again now.", retry_after_ms=1000)

    monkeypatch.setattr(RebuiltStream, "try_rules", compiler_was_killed)
    here = SimulatedServer(SIZE, keeps=True)
    assert await told_engine(here, *a_journal(), "overloaded") == api.Disown(NUMBER)
