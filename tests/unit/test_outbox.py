"""What waits for a listener: order, numbers, credit, pauses and intervals, on the outbox alone."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from midstream import protocol
from midstream.protocol import (
    Adjusted,
    Error,
    Params,
    Paused,
    Reasoning,
    Resumed,
    Rewound,
    Token,
    TokenLogprob,
    ToolArguments,
    ToolCall,
)
from realtime.refusal import Refusal
from realtime.stream import outbox as outbox_module
from realtime.stream.credit import Credit
from realtime.stream.memory import event_bytes
from realtime.stream.outbox import Item, Outbox, OutgoingEvent, PendingToken
from tests.fakes.counted_work import counted

ENDLESS = 10_000


def outbox(limit: int = ENDLESS, interval: int = 1) -> Outbox:
    return Outbox("a", Credit(protocol.Credit(limit=limit), window=1), interval=interval, tokens=True)


def put_tokens(box: Outbox, *indices: int) -> None:
    for index in indices:
        box.put(PendingToken(index, f"{index} ", 100 + index))


def paused(index: int = 0) -> Paused:
    return Paused(request_id="a", index=index, reason="client")


def resumed(index: int = 0) -> Resumed:
    return Resumed(request_id="a", index=index, recomputed_tokens=0)


def rewound(index: int) -> Rewound:
    return Rewound(request_id="a", index=index, text_length=0)


def adjusted(index: int) -> Adjusted:
    return Adjusted(request_id="a", index=index, params=Params())


def said(events: list[OutgoingEvent]) -> list[str]:
    """Events in short: tokens as from:count, others by their kind and index."""
    return [
        f"{event.index}:{event.count}"
        if isinstance(event, Token)
        else f"{type(event).__name__} {getattr(event, 'index', '')}".strip()
        for event in events
    ]


def test_tokens_that_piled_up_go_out_as_one_event() -> None:
    box = outbox()
    put_tokens(box, 0, 1, 2)
    (event,) = box.take()
    assert isinstance(event, Token)
    assert (event.index, event.count, event.delta, event.tokens) == (0, 3, "0 1 2 ", [100, 101, 102])
    assert box.sent == 3
    assert not box.waiting
    assert box.take() == []


def test_where_log_probabilities_begin_or_end_an_event_does() -> None:
    box = outbox()
    told = [TokenLogprob(100 + index, -1.0) if index in (1, 2) else None for index in range(4)]
    for index, logprob in enumerate(told):
        box.put(PendingToken(index, f"{index} ", 100 + index, logprob))
    box.put(adjusted(4))
    box.put(PendingToken(4, "4 ", 104, TokenLogprob(104, -1.0)))
    box.put(PendingToken(5, "rest", None))
    events = [event for event in box.take() if isinstance(event, Token)]
    assert said(list(events)) == ["0:1", "1:2", "3:1", "4:1"]
    assert [len(event.logprobs or ()) for event in events] == [0, 2, 0, 1]
    assert events[-1].delta == "4 rest"
    assert box.sent == 5


def test_events_are_numbered_as_they_are_given_out_and_errors_are_not() -> None:
    box = outbox()
    put_tokens(box, 0)
    box.put(Refusal("request_finished", "Too late.").event("a", "r"))
    box.put(adjusted(1))
    first, error, last = box.take()
    assert isinstance(first, Token)
    assert isinstance(last, Adjusted)
    assert isinstance(error, Error)
    assert (first.seq, last.seq) == (0, 1)


def test_tokens_stay_in_order_with_other_events() -> None:
    box = outbox()
    put_tokens(box, 0, 1)
    box.put(adjusted(2))
    put_tokens(box, 2)
    assert said(box.take()) == ["0:2", "Adjusted 2", "2:1"]


def test_no_token_goes_out_past_the_limit_and_no_other_event_waits_for_it() -> None:
    box = outbox(limit=2)
    put_tokens(box, 0, 1, 2, 3)
    box.put(adjusted(4))
    assert said(box.take()) == ["0:2", "Adjusted 4"]
    assert [piece.index for piece in box.beyond_credit] == [2, 3]
    box.credit.grant(3)
    assert said(box.take()) == ["2:1"]
    assert box.waiting


def test_nothing_follows_paused_but_what_is_no_token() -> None:
    box = outbox(limit=1)
    put_tokens(box, 0, 1)
    box.put(paused(2))
    assert said(box.take()) == ["0:1", "Paused 1"], "paused says what the listener has"
    box.credit.grant(2)
    box.put(adjusted(2))
    assert said(box.take()) == ["Adjusted 2"]
    box.put(resumed(2))
    assert said(box.take()) == ["Resumed 1", "1:1"], "and what waited goes out with resumed"


def test_paused_says_what_the_listener_has_where_the_rest_was_rewound() -> None:
    box = outbox()
    put_tokens(box, 0, 1, 2)
    box.take()
    put_tokens(box, 3, 4)
    box.put(paused(5))
    box.put(resumed(5))
    box.drop_from(2)
    box.put(rewound(2))
    assert said(box.take()) == ["Paused 3", "Resumed 3", "Rewound 2"]
    assert box.sent == 2


def test_what_is_rewound_is_never_given_out() -> None:
    box = outbox()
    put_tokens(box, 0, 1, 2)
    box.drop_from(1)
    box.put(rewound(1))
    put_tokens(box, 1)
    assert said(box.take()) == ["0:1", "Rewound 1", "1:1"]


def test_what_goes_back_to_before_nothing_that_was_given_out_says_how_much_that_is() -> None:
    """Its tokens wait for credit, or were taken back since: all that was told stands, and its lengths."""
    box = outbox(limit=3)
    thought = Reasoning(request_id="a", index=1, count=1, delta="hm")
    call = ToolCall(request_id="a", index=2, call_id="c", name="f")
    arguments = ToolArguments(request_id="a", index=2, count=1, call_id="c", delta='{"a')
    box.put(PendingToken(0, "one ", 100))
    box.put(PendingToken(1, "", 101, beside=[thought]))
    box.put(PendingToken(2, "", 102, beside=[call, arguments]))
    put_tokens(box, 3, 4)
    box.put(Rewound(request_id="a", index=5, text_length=8, reasoning_length=9, tool_calls=9))
    *before, told = box.take()
    assert told == Rewound(
        request_id="a",
        seq=len(before),
        index=3,
        text_length=4,
        reasoning_length=2,
        tool_calls=1,
        arguments_length=3,
    )
    box.drop_from(1)
    box.put(rewound := Rewound(request_id="a", index=1, text_length=4))
    box.put(Rewound(request_id="a", index=2, text_length=9, reasoning_length=9))
    _, told = box.take()
    assert told == replace(rewound, seq=len(before) + 2)


def test_what_is_rewound_among_other_events_is_never_given_out() -> None:
    box = outbox()
    put_tokens(box, 0, 1)
    box.put(adjusted(2))
    put_tokens(box, 2, 3)
    box.put(adjusted(4))
    before = box.bytes
    put_tokens(box, 4)
    box.drop_from(4)
    assert box.bytes == before
    box.drop_from(1)
    box.put(rewound(1))
    assert said(box.take()) == ["0:1", "Adjusted 2", "Adjusted 4", "Rewound 1"]
    assert box.unread_bytes == 0


def test_a_rewind_looks_at_what_it_takes_back_and_not_at_all_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = outbox()
    put_tokens(box, 0)
    for _ in range(1000):
        box.put(rewound(1))
    looked_at = Counter[int]()
    is_token = outbox_module._is_token

    def look_at(item: Item) -> bool:
        looked_at[id(item)] += 1
        return is_token(item)

    monkeypatch.setattr(outbox_module, "_is_token", look_at)
    put_tokens(box, 1)
    for _ in range(100):
        box.drop_from(1)
        put_tokens(box, 1)
    assert looked_at.total() < 500
    box.drop_from(0)
    assert box.unread_bytes == sum(map(event_bytes, [rewound(1)] * 1000))


def test_intervals_hold_tokens_back_until_they_are_whole() -> None:
    box = outbox(interval=3)
    put_tokens(box, 0, 1)
    assert box.take() == []
    put_tokens(box, 2, 3)
    assert said(box.take()) == ["0:3"]
    put_tokens(box, 4, 5, 6, 7, 8)
    assert said(box.take()) == ["3:6"]


def test_an_interval_does_not_hold_back_what_comes_before_an_event() -> None:
    box = outbox(interval=3)
    put_tokens(box, 0, 1)
    box.put(paused(2))
    assert said(box.take()) == ["0:2", "Paused 2"]


def test_an_interval_does_not_hold_back_the_last_token_that_may_come() -> None:
    """Else a client that grants what it has read and a server that waits for that wait for one another."""
    box = outbox(limit=5, interval=4)
    put_tokens(box, 0, 1, 2, 3)
    assert said(box.take()) == ["0:4"]
    put_tokens(box, 4, 5)
    assert said(box.take()) == ["4:1"]


def test_an_interval_does_not_hold_back_what_has_no_token_nor_is_what_waits_behind_that_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where more of a call was injected, and told with the token behind it: of 270 streams that held some
    1,000 each, a step took the event loop 40 to 110 ms."""
    box = outbox(interval=4000)
    put_tokens(box, 0)
    box.put(PendingToken(1, "", None, beside=[Reasoning(request_id="a", index=1, count=0, delta="a")]))
    put_tokens(box, 1)
    assert said(box.take()) == ["0:1", "Reasoning 1"]
    monkeypatch.setattr(Outbox, "_may_be_sent", None)
    put_tokens(box, 2)
    assert box.take() == []
    assert box.known == 3


def test_text_without_a_token_waits_for_nothing() -> None:
    box = outbox(limit=1)
    put_tokens(box, 0)
    box.put(paused(1))
    box.put(PendingToken(1, "rest", None))
    box.put(adjusted(1))
    assert said(box.take()) == ["0:1", "Paused 1", "1:0", "Adjusted 1"]
    assert box.sent == 1


def test_stuck_is_what_an_end_would_leave_behind() -> None:
    box = outbox(limit=3)
    put_tokens(box, 0, 1)
    assert box.undeliverable == []
    box.put(paused(2))
    assert box.undeliverable == [], "what comes before paused still goes out"
    put_tokens(box, 2, 3)
    assert [piece.index for piece in box.undeliverable] == [2, 3]
    box.put(resumed(2))
    assert [piece.index for piece in box.undeliverable] == [3]


def test_tokens_that_must_wait_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held, ahead = outbox(interval=4000), outbox(limit=1)
    for box in (held, ahead):
        for index in range(1000):
            put_tokens(box, index)
    ahead.take()
    monkeypatch.setattr(Outbox, "_may_be_sent", None)
    assert held.take() == []
    assert ahead.take() == []


@pytest.mark.parametrize(
    "passing",
    [
        PendingToken(1000, "", None, beside=[Reasoning(request_id="a", index=1000, count=0, delta="a")]),
        adjusted(1000),
    ],
)
def test_what_waits_for_credit_is_not_looked_at_with_each_token(passing: Item) -> None:
    """Of 270 streams that held 1,700 each, and among them what was known of a call without a token, each step
    took the event loop 100 ms."""
    box = outbox(limit=1)
    put_tokens(box, *range(1000))
    box.take()
    with counted() as work:
        box.put(passing)
        box.take()
        put_tokens(box, 1000)
        assert box.take() == []
    assert work.lines < 200
    box.credit.grant(3)
    with counted() as work:
        assert said(box.take()) == ["1:2"]
    assert work.lines < 200
    assert box.known == 1001
    box.credit.grant(ENDLESS)
    box.take()
    assert box.bytes == box.history_bytes
