"""Whatever reads a client's text, or a list of a client's, takes no more than its length has it take: the
lines that are run for it are counted, for each text that may be hard for it, and where they are many for half
of it as well. What runs in C is measured by `bench/reliability/reading.py`."""

from __future__ import annotations

from contextlib import suppress

import pytest

from bench.reliability.worst_texts import READERS, REFUSED, Work
from tests.fakes.counted_work import counted

LENGTH, LEAST_TIMES = 96, 12  # characters, of whatever is repeated at least so often
MOST_GROWTH = 2.4  # times, where there is twice as much
FEW_LINES = 1_500  # are quick, however they have grown


def lines(work: Work) -> int:
    """But for what is made once."""
    with suppress(*REFUSED):
        work()
    with counted() as seen, suppress(*REFUSED):
        work()
    return seen.lines


@pytest.mark.parametrize("reader", READERS)
def test_no_text_takes_longer_than_it_is(reader: str) -> None:
    grown = {}
    for what, made, length, _, _ in READERS[reader]():
        half = max(LEAST_TIMES, LENGTH // length) // 2
        large = lines(made(2 * half))
        if large > FEW_LINES and large > MOST_GROWTH * (small := lines(made(half))):
            grown[what] = small, large
    assert grown == {}
