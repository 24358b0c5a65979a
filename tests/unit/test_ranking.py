"""Rankings, beside sorting anew each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.api import Sampling
from engine.schedule import ranking
from engine.schedule.ranking import Ranking
from engine.schedule.sequence import Sequence

STREAMS = 31
PUT = st.tuples(st.integers(0, STREAMS - 1), st.integers(-5, 5))
DISCARD = st.sets(st.integers(0, STREAMS - 1), max_size=9)
ACTS = st.lists(PUT | DISCARD, max_size=150)


@given(acts=ACTS, end=st.integers(-5, 6))
def test_a_ranking_is_the_order_of_its_numbers(acts: list[tuple[int, int] | set[int]], end: int) -> None:
    most, ranking.MOST = ranking.MOST, 4  # so that chunks are split, and go
    try:
        sequences = [Sequence(stream, [1], Sampling(), credit=1, context=2) for stream in range(STREAMS)]
        ranked, keys = Ranking(), dict[int, int]()
        for act in acts:
            if isinstance(act, set):  # also of those that are not in
                ranked.discard([sequences[stream] for stream in act])
                keys = {stream: key for stream, key in keys.items() if stream not in act}
            else:
                stream, key = act
                ranked.put(sequences[stream], key)
                keys[stream] = key
            order = sorted((key, stream) for stream, key in keys.items())
            smaller = [stream for key, stream in order if key < end]
            assert [one.stream for one in ranked.before(end)] == smaller
            assert len(ranked) == len(keys)
            assert not keys or ranked.first == (order[0][0], sequences[order[0][1]])
    finally:
        ranking.MOST = most
