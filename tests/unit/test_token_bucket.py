"""The token bucket: what a burst allows, what time gives back, and what was overdrawn."""

from __future__ import annotations

from realtime.token_bucket import TokenBucket


def test_a_burst_costs_no_waiting_and_what_goes_beyond_it_does() -> None:
    bucket = TokenBucket(rate=10, burst=5, now=0)
    assert [bucket.spend(1, 0) for _ in range(7)] == [0, 0, 0, 0, 0, 0.1, 0.2]


def test_time_gives_back_at_the_rate_and_never_more_than_a_burst() -> None:
    bucket = TokenBucket(rate=10, burst=5, now=0)
    assert bucket.spend(10, 0) == 0.5
    assert bucket.spend(0, 0.5) == 0
    assert bucket.spend(1, 0.5) == 0.1
    assert bucket.spend(5, 100) == 0
    assert bucket.spend(1, 100) == 0.1
