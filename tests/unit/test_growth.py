"""What is done to a stream takes no more than its size has it take: the lines that are run for it are
counted, for a stream and for one of four times its size. And what its memory takes is on an account.
`make reliability` tries more of all, larger ones, and by the clock."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bench.reliability.accounts import EVERY, account, weighed
from bench.reliability.growth_acts import ACTS, NothingThereError
from bench.reliability.growth_states import STATES
from midstream import protocol
from tests.fakes.counted_work import counted

SMALL, LARGE = 12, 48
MOST_GROWTH = 5  # times
MUCH = 128  # of what a state is made large in
FEW_LINES = 5_000  # are quick, however they have grown
TRIED = [
    "approve many",
    "amend the last",
    "many results",
    "rewind step by step",
    "fork from the middle",
    "attach many times",
    "lose the engine",
    "be adopted",
    "the end of the turn",
]


@pytest.fixture
def _alone() -> Iterator[None]:
    """What other tests have left is not looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def lines(state: str, act: str, size: int) -> int:
    world = await STATES[state].build(size)
    with counted() as work:
        try:
            await ACTS[act](world)
        except NothingThereError:
            return 0
    return work.lines


async def test_an_injection_that_is_yet_to_be_read_is_not_kept_as_it_came() -> None:
    """Its numbers take ten times as much as they count, and many streams of one payer may read in turns."""
    count = 20_000
    world = await STATES["an injection that is not read"].build(count)
    assert world.stream.reads_injected
    world.engine.die()  # which has heard the same
    frames = (one for one in gc.get_objects() if type(one) is protocol.Inject)  # others may warn when asked
    assert [frame for frame in frames if len(frame.tokens or ()) == count] == []


@pytest.mark.parametrize("state", ["calls to approve", "results that wait", "injections"])
async def test_no_act_grows_faster_than_what_it_is_done_to(state: str) -> None:
    grown = {}
    for act in TRIED:
        large = await lines(state, act, LARGE)
        if large > FEW_LINES and large > MOST_GROWTH * (small := await lines(state, act, SMALL)):
            grown[act] = small, large
    assert grown == {}


@pytest.mark.usefixtures("_alone")
def test_an_injection_that_is_yet_to_be_read_is_kept_once() -> None:
    """What was left of it was kept besides, in no account."""
    state = EVERY["an injection that is not read"]
    half, whole = weighed(state, 8_192), weighed(state, 16_384)
    taken, counted = whole.taken - half.taken, sum(whole.accounts) - sum(half.accounts)
    assert counted > 10 * 8_192
    assert taken < 1.1 * counted


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("state", ["failed results", "texts that wait", "streams", "content, wide letters"])
def test_what_a_state_takes_is_on_an_account(state: str) -> None:
    found = account(state, MUCH)
    assert found.taken > 10_000, "else it proves little"
    assert not found.is_short, found


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("state", "weigher"),
    [
        ("calls", "realtime.stream.context.Context.bytes"),
        ("wide results", "realtime.stream.tool_loop.ToolLoop.bytes"),
        ("log probabilities", "realtime.stream.outbox.Outbox.bytes"),
    ],
)
def test_what_nobody_weighs_is_found(state: str, weigher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weigher, 0)
    found = account(state, MUCH)
    assert found.is_short, found
