"""What is done to a stream takes no more than its size has it take: the lines that are run for it are
counted, for a stream and for one of four times its size. `make reliability` tries more of both, larger ones,
and by the clock."""

from __future__ import annotations

import gc

import pytest

from bench.reliability.growth_acts import ACTS, NothingThereError
from bench.reliability.growth_states import STATES
from midstream import protocol
from tests.fakes.counted_work import counted

SMALL, LARGE = 12, 48
MOST_GROWTH = 5  # times
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
    frames = (one for one in gc.get_objects() if isinstance(one, protocol.Inject))
    assert [frame for frame in frames if len(frame.tokens or ()) == count] == []


@pytest.mark.parametrize("state", ["calls to approve", "results that wait", "injections"])
async def test_no_act_grows_faster_than_what_it_is_done_to(state: str) -> None:
    grown = {}
    for act in TRIED:
        large = await lines(state, act, LARGE)
        if large > FEW_LINES and large > MOST_GROWTH * (small := await lines(state, act, SMALL)):
            grown[act] = small, large
    assert grown == {}
