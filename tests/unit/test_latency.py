"""What of a stream's waiting is counted: the server's part of it, and never the client's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, sampled_from, sets

from engine import api
from realtime.hub.observers import StreamOrigin
from realtime.observability.histograms import Buckets, Histogram
from realtime.observability.latency import LatencyMetrics

BEGUN = StreamOrigin("tenant", "toy", "websocket")


class Steps:
    """An engine's news by hand: steps of 10 ms, told at the moment of their end."""

    def __init__(self) -> None:
        self.times = LatencyMetrics()
        self.now = 100.0

    def start(self, number: int, prompt: int = 10) -> None:
        self.times.started(number, BEGUN, prompt, self.now)

    def step(self, *news: api.News, after_s: float = 0.01) -> None:
        self.now += after_s
        self.times.stepped(0, api.StepOutput(0, list(news), api.Stats(step_s=0.01)), self.now)

    def first(self, number: int, found: int = 0) -> None:
        """Admitted, and the prompt computed, in one step."""
        self.step(api.News(number, admitted=found, tokens=[1]))

    def seen(self, name: str, **labels: str) -> tuple[float, object]:
        """How often, and how much in all."""
        (family,) = [family for family in self.times.families() if family.name == name]
        said = {
            sample.name.removeprefix(name): sample.value
            for sample in family.samples
            if sample.labels == labels
        }
        return said.get("_count", 0), pytest.approx(said.get("_sum", 0.0))


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_the_first_token_is_counted_from_the_start_on_and_by_what_the_cache_had(steps: Steps) -> None:
    steps.start(1)
    steps.start(2)
    steps.step(after_s=0.09)
    steps.first(1)
    steps.first(2, found=5)
    labels = {"model": "toy", "route": "websocket"}
    assert steps.seen("stream_ttft_seconds", **labels, cache="miss") == (1, 0.1)
    assert steps.seen("stream_ttft_seconds", **labels, cache="hit") == (1, 0.11)
    assert steps.seen("scheduler_wait_time_seconds", phase="prefill") == (2, 0.09 + 0.1)
    assert steps.seen("stream_tokens_per_second", model="toy", phase="prefill") == (2, 1000 + 500)


def test_gaps_are_those_between_a_streams_own_tokens(steps: Steps) -> None:
    for number in (1, 2):
        steps.start(number)
        steps.first(number)
    steps.step(api.News(1, tokens=[1]), api.News(2, tokens=[1]))  # 20 ms after its last, and 10
    steps.step(api.News(1, tokens=[1]), after_s=0.03)
    steps.step(api.News(1, tokens=[1]), api.News(2, tokens=[1]))
    assert steps.seen("stream_inter_token_seconds") == (5, 0.02 + 0.01 + 0.03 + 0.01 + 0.04)
    assert steps.seen("scheduler_wait_time_seconds", phase="decode") == (5, 0.01 + 0 + 0.02 + 0 + 0.03)


def test_a_wait_for_credit_or_for_the_clients_own_pause_is_none(steps: Steps) -> None:
    steps.start(1)
    steps.first(1)
    steps.times.granted(1)
    steps.step(api.News(1, tokens=[1]), after_s=60)
    assert steps.seen("stream_inter_token_seconds") == (0, 0)
    steps.step(api.News(1, changes=[api.Resumed(2)]), after_s=60)
    steps.step(api.News(1, tokens=[1]))
    assert steps.seen("stream_inter_token_seconds") == (0, 0)
    steps.step(api.News(1, tokens=[1]))
    assert steps.seen("stream_inter_token_seconds") == (1, 0.01)


def test_a_wait_for_memory_is_one(steps: Steps) -> None:
    steps.start(1)
    steps.first(1)
    steps.step(api.News(1, early=[api.Paused(1, "memory")]))
    steps.step(api.News(1, early=[api.Resumed(1, reason="memory")], tokens=[1]), after_s=0.99)
    assert steps.seen("stream_inter_token_seconds") == (1, 1.0)


def test_a_first_token_that_the_client_held_up_is_not_counted(steps: Steps) -> None:
    steps.start(1)
    steps.times.granted(1)
    steps.first(1)
    assert steps.seen("stream_ttft_seconds", model="toy", route="websocket", cache="miss") == (0, 0)
    steps.step(api.News(1, tokens=[1]))
    assert steps.seen("stream_inter_token_seconds") == (1, 0.01)


@pytest.mark.parametrize("at_once", [True, False])
def test_nor_is_how_long_one_was_paused_before_its_turn(steps: Steps, at_once: bool) -> None:
    """As one that was started again while it waits for results. `at_once`: where some of it is found."""
    steps.start(1)
    resumed = api.News(1, admitted=3 if at_once else None, changes=[api.Resumed(0)])
    steps.step(resumed, after_s=60)
    steps.step(api.News(1, admitted=None if at_once else 0, tokens=[1]))
    assert steps.seen("scheduler_wait_time_seconds", phase="prefill") == (0, 0)
    assert steps.seen("stream_ttft_seconds", model="toy", route="websocket", cache="miss") == (0, 0)


def test_of_a_stream_that_has_ended_nothing_is_kept_and_nothing_counted(steps: Steps) -> None:
    steps.start(1)
    steps.first(1)
    steps.times.finished(1, BEGUN, 50.0)
    steps.step(api.News(1, tokens=[1]))
    steps.step(api.News(1, tokens=[1]))
    steps.times.granted(1)
    assert steps.seen("stream_inter_token_seconds") == (0, 0)
    assert steps.seen("stream_tokens_per_second", model="toy", phase="decode") == (1, 50)


@given(data())
def test_counting_many_together_counts_each_of_them(chosen: DataObject) -> None:
    steps, last, gaps = Steps(), dict[int, float | None](), list[float]()
    for number in range(5):
        steps.start(number)
        steps.first(number)
        last[number] = steps.now
    for _ in range(chosen.draw(integers(1, 12))):
        for number in chosen.draw(sets(sampled_from(range(5)), max_size=2)):
            steps.times.granted(number)
            if number in last:
                last[number] = None
        for number in chosen.draw(sets(sampled_from(range(5)), max_size=1)):
            steps.times.finished(number, BEGUN, None)
            last.pop(number, None)
        moving = chosen.draw(sampled_from([range(5), range(5), [2, 0, 1], [], [4]]))
        steps.step(*(api.News(number, tokens=[1]) for number in moving), after_s=0.25)
        gaps += [steps.now - before for number in moving if (before := last.get(number)) is not None]
        last |= {number: steps.now for number in moving if number in last}
    assert steps.seen("stream_inter_token_seconds") == (len(gaps), sum(gaps))


def test_a_stream_that_comes_to_another_engine_is_admitted_once(steps: Steps) -> None:
    steps.start(1)
    steps.step(api.News(1, admitted=0))
    steps.step(api.News(1, admitted=0), after_s=5)
    steps.step(api.News(1, tokens=[1]))
    assert steps.seen("scheduler_wait_time_seconds", phase="prefill") == (1, 0)


def test_buckets_count_as_prometheus_does() -> None:
    buckets = Buckets((1, 2.5))
    for value, times in ((0.5, 1), (1, 2), (2, 1), (9, 3)):
        buckets.observe(value, times)
    assert buckets.cumulative() == [("1.0", 3), ("2.5", 4), ("+Inf", 7)]
    assert buckets.sum == 0.5 + 2 + 2 + 27


def test_a_histogram_has_buckets_for_each_set_of_labels() -> None:
    histogram = Histogram("waits", "Waits", (1,), ("phase",))
    histogram.of("decode").observe(0.5)
    histogram.of("decode").observe(3)
    histogram.of("prefill")
    samples = {
        (sample.name, sample.labels["phase"], sample.labels.get("le")): sample.value
        for sample in histogram.family().samples
    }
    assert samples["waits_bucket", "decode", "1.0"] == 1
    assert samples["waits_bucket", "decode", "+Inf"] == samples["waits_count", "decode", None] == 2
    assert samples["waits_sum", "decode", None] == 3.5
    assert samples["waits_count", "prefill", None] == 0
