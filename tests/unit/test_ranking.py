"""Rankings, beside sorting anew each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.api import Sampling
from engine.schedule import ranking
from engine.schedule.ranking import Ranking
from engine.schedule.sequence import Sequence

ACTS = st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(-5, 5)), max_size=150)


@given(acts=ACTS, end=st.integers(-5, 6))
def test_a_ranking_is_the_order_of_its_numbers(acts: list[tuple[int, int | None]], end: int) -> None:
    most, ranking.MOST = ranking.MOST, 4  # so that chunks are split, and go
    try:
        sequences = [Sequence(stream, [1], Sampling(), credit=1, context=2) for stream in range(31)]
        ranked, keys = Ranking(), dict[int, int]()
        for stream, key in acts:
            if key is None:
                assert ranked.discard(sequences[stream]) == keys.pop(stream, None)
            else:
                ranked.put(sequences[stream], key)
                keys[stream] = key
            order = sorted((key, stream) for stream, key in keys.items())
            smaller = [stream for key, stream in order if key < end]
            assert [one.stream for one in ranked.before(end)] == smaller
            assert len(ranked) == len(keys)
            assert not keys or ranked.first == (order[0][0], sequences[order[0][1]])
    finally:
        ranking.MOST = most
