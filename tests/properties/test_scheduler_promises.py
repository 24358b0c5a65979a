"""What the scheduler promises, in mixes of all sizes: it is work-conserving; who has credit and memory is
served within a bound; nothing is taken in vain; and no lower rank goes before a higher one.

`make test` plays some, `make reliability` thousands.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.scheduler_mix import Mix, Sizes

SIZES = st.builds(
    Sizes,
    blocks=st.integers(17, 200),
    step_tokens=st.integers(2, 40),
    batch_rows=st.integers(2, 12),
    streams=st.integers(1, 40),
    tenants=st.integers(1, 4),
    overlap=st.booleans(),
)
HAPPENS = ["rows", "full", "told", "taken", "left", "of who has more", "in turn", "due", "yielded"]


def test_every_promise_is_kept_at_every_step_of_any_mix() -> None:
    happened = Counter[str]()

    @settings(max_examples=60, derandomize=True, database=None, deadline=None)
    @given(seed=st.integers(0, 2**32), sizes=SIZES)
    def play(seed: int, sizes: Sizes) -> None:
        happened.update(Mix(seed, sizes).play(150))

    play()
    assert all(happened[what] for what in HAPPENS), happened  # else the mixes prove less than they say


def test_what_is_counted_once_in_a_step_stands_while_many_take_memory_in_it() -> None:
    happened = Counter[str]()

    @settings(max_examples=30, derandomize=True, database=None, deadline=None)
    @given(seed=st.integers(0, 2**32), sizes=SIZES)
    def play(seed: int, sizes: Sizes) -> None:
        happened.update(Mix(seed, sizes, anew=False).play(150))

    play()
    assert all(happened[what] for what in ("taken", "in order")), happened


@pytest.mark.parametrize(
    ("seed", "sizes"),
    [
        (4082315191, Sizes(blocks=92, step_tokens=21, batch_rows=6, streams=40, tenants=2, overlap=True)),
        (900685, Sizes(blocks=40, step_tokens=40, batch_rows=9, streams=6, tenants=4, overlap=True)),
        (1036892246, Sizes(blocks=43, step_tokens=29, batch_rows=8, streams=42, tenants=9, overlap=True)),
    ],
    ids=[
        "what two share that turn out to be one",
        "what came free behind the first in line's turn",
        "who has what came free stands in line as who has begun",
    ],
)
def test_what_was_broken_once_is_not_broken_again(seed: int, sizes: Sizes) -> None:
    Mix(seed, sizes).play(150)


def test_nor_is_what_who_lost_its_memory_would_begin_with_counted_again() -> None:
    sizes = Sizes(blocks=119, step_tokens=30, batch_rows=4, streams=23, tenants=3, overlap=False)
    Mix(242, sizes, anew=False).play(65)
