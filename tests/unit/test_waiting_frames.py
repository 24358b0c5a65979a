"""What waits to be tokenized is bounded, for each client, each tenant and everybody."""

from __future__ import annotations

import pytest

from midstream.protocol import Inject, Message, Past, PastInject, Start
from realtime.hub import frame_tokenizing
from realtime.hub.frame_tokenizing import text_length
from realtime.hub.waiting_frames import WaitingFrames, WaitingLimits
from realtime.refusal import Refusal

LIMITS = WaitingLimits(tenant_bytes=100, tenant_frames=10, bytes=150, frames=15)


def refused(frames: WaitingFrames, tenant: str, client: str, size: int) -> Refusal:
    with pytest.raises(Refusal) as caught:
        frames.check(tenant, client, size)
    return caught.value


def add(frames: WaitingFrames, tenant: str, client: str, size: int) -> None:
    frames.check(tenant, client, size)
    frames.add(tenant, client, size)


def test_one_client_may_have_half_of_what_its_tenant_may() -> None:
    frames = WaitingFrames(LIMITS)
    add(frames, "a", "x", 50)
    refusal = refused(frames, "a", "x", 1)
    assert (refusal.code, refusal.status, refusal.retry_after_ms) == ("rate_limited", 429, 1000)
    assert "on this connection" in refusal.message
    assert "5 frames and 50 bytes" in refusal.message
    add(frames, "a", "y", 50)
    assert "of yours" in refused(frames, "a", "z", 1).message
    add(frames, "b", "x", 50)
    refusal = refused(frames, "c", "x", 1)
    assert (refusal.code, refusal.retry_after_ms) == ("overloaded", 1000)
    assert refusal.message == "The server's limit of frames that wait to be tokenized is reached."


def test_frames_without_text_are_counted_too() -> None:
    frames = WaitingFrames(LIMITS)
    for _ in range(5):
        add(frames, "a", "x", 0)
    assert refused(frames, "a", "x", 0).code == "rate_limited"
    for _ in range(5):
        add(frames, "a", "y", 0)
    assert refused(frames, "a", "z", 0).code == "rate_limited"


def test_what_waits_no_more_makes_room_and_what_was_refused_took_none() -> None:
    frames = WaitingFrames(LIMITS)
    add(frames, "a", "x", 50)
    for _ in range(5):
        refused(frames, "a", "x", 50)
    frames.remove("a", "x", 50)
    for client in ("x", "y"):
        add(frames, "a", client, 50)


def test_a_frame_larger_than_all_that_may_wait_waits_alone() -> None:
    frames = WaitingFrames(LIMITS)
    add(frames, "a", "x", 1000)
    assert refused(frames, "a", "x", 1).code == "rate_limited"


def test_what_a_past_was_told_is_as_long_as_its_frames_would_be_and_none_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 4,096 that took longer than to read them: 30 ms in one turn."""
    messages = [Message(role="user", content="some text", name="somebody")]
    told = [{"text": "text"}, {"text": ""}, {"tokens": [1, 2, 3]}, {"messages": messages}]
    frames = [Inject(request_id="a", **fields) for fields in told]  # type: ignore[arg-type]
    steering = [PastInject(index=0, **fields) for fields in told]  # type: ignore[arg-type]
    without = Start(request_id="a", prompt="x", past=Past(tokens=[1]))
    start = Start(request_id="a", prompt="x", past=Past(tokens=[1], steering=[*steering]))
    steps = sum(map(frame_tokenizing._step_length, steering))
    monkeypatch.setattr(frame_tokenizing, "past_injects", None)
    assert text_length(start) == text_length(without) + steps + sum(map(text_length, frames))
