"""Streams that outlive their connections, over real sockets, from frames and events alone."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from realtime.websocket.read_acks import RARELY
from tests.server.conftest import JSON, MSGPACK
from tests.server.independent_client import Client, Event, client_of
from tests.server.server_process import Served

LONG = {"ignore_eos": True, "temperature": 0}
BOTH = pytest.mark.parametrize("encoding", [JSON, MSGPACK])


async def until(client: Client, kind: str, name: str | None = "a") -> list[Event]:
    """All events of the stream up to the next of this kind."""
    events = [await client.next(name)]
    while events[-1]["type"] != kind:
        events.append(await client.next(name))
    return events


async def attach(client: Client, to: Client, after: int = -1, name: str = "a") -> list[Event]:
    """To a stream that another client started: all that comes before, and with, `attached`."""
    client.mark = to.mark
    await client.send("attach", request_id=name, after=after, ref="attach")
    events = await until(client, "attached", name)
    assert events[-1].get("ref") == "attach"
    return events


def kinds(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def text(events: list[Event]) -> str:
    return "".join(event["text"] if "text" in event else event.get("delta", "") for event in events)


async def closed(client: Client) -> ConnectionClosed:
    try:
        while True:
            await client.next("nobody")
    except ConnectionClosed as error:
        return error


# -- attaching -------------------------------------------------------------------------------------


@BOTH
async def test_what_was_missed_comes_again_as_it_was_and_the_rest_behind_it(
    server: Served, encoding: str
) -> None:
    async with client_of(server.url, encoding) as second:
        async with client_of(server.url, encoding) as first:
            stream = await first.start(
                "a", params=LONG | {"max_tokens": 12}, credit={"limit": 5}, on_disconnect="pause"
            )
            await stream.until_index(5)
        await server.until(lambda now: now['midstream_streams{state="paused"}'] == 1)
        *missed, attached = await attach(second, first, 0)
        assert (
            missed == [event | {"request_id": "a"} for event in stream.events[1:]]
            or text(missed) == stream.text
        )
        assert "pending" not in attached
        assert "seq" not in attached
        paused, resumed = await until(second, "resumed")
        assert (paused["type"], paused["reason"], paused["index"]) == ("paused", "detached", 5)
        assert resumed["index"] == 5
        await second.send("credit", request_id="a", limit=100)
        rest = await until(second, "final")
        assert rest[-1]["finish_reason"] == "length"
        assert rest[-1]["index"] == 12
        numbers = [event["seq"] for event in [*missed, paused, resumed, *rest]]
        assert numbers == list(range(1, len(numbers) + 1)), "as if there had been one connection"


@BOTH
async def test_automatic_credit_goes_on_where_another_attached(server: Served, encoding: str) -> None:
    """With nothing but pongs, far beyond a window: what is read is acknowledged by whoever reads it."""
    async with client_of(server.url, encoding) as second:
        async with client_of(server.url, encoding) as first:
            length = 5 * first.limits["auto_credit_window"]
            stream = await first.start(
                "a", params=LONG | {"max_tokens": length}, on_disconnect="continue", return_tokens=True
            )
            await stream.until_index(3)
        events = await attach(second, first)
        assert kinds(events)[0] in ("started", "snapshot")
        events += await until(second, "final")
        assert events[-1]["index"] == length
        assert sum(len(event.get("tokens", [])) for event in events) == length
        assert text(events)


@BOTH
async def test_what_has_been_read_comes_as_a_snapshot(server: Served, encoding: str) -> None:
    async with client_of(server.url, encoding) as first, client_of(server.url, encoding) as second:
        asked = RARELY * first.limits["ack_every"]  # how far it has come
        stream = await first.start(
            "a", params=LONG, credit={"limit": asked}, on_disconnect="continue", return_tokens=True
        )
        await stream.until_index(asked)
        await stream.ask("pause", "paused")
        await first.roundtrip()
        snapshot, *others = await attach(second, first)
        assert snapshot["type"] == "snapshot"
        assert snapshot["model"] == "toy"
        assert snapshot["params"] == stream.events[0]["params"]
        assert snapshot["prompt_tokens"] == stream.events[0]["prompt_tokens"]
        assert (
            snapshot["tokens"] + [token for event in others for token in event.get("tokens", [])]
            == stream.tokens
        )
        assert text([snapshot, *others]) == stream.text
        await second.send("cancel", request_id="a")
        await until(second, "final")


@BOTH
async def test_a_start_sent_twice_starts_once(server: Served, encoding: str) -> None:
    async with client_of(server.url, encoding) as first, client_of(server.url, encoding) as second:
        fields: dict[str, Any] = {
            "prompt": "Twice",
            "params": LONG | {"max_tokens": 4},
            "on_disconnect": "continue",
        }
        stream = await first.start("a", **fields)
        final = await stream.rest()
        second.mark = first.mark
        await second.send("start", request_id="a", ref="again", **fields)
        events = await until(second, "attached")
        assert events[-1]["ref"] == "again"
        assert events[-2] == final
        assert text(events) == stream.text
        await second.send("start", request_id="a", **fields | {"prompt": "Thrice"})
        error = await second.next("a")
        assert (error["status"], error["code"]) == (409, "request_conflict")


async def test_who_had_the_stream_hears_that_another_has_it(server: Served) -> None:
    async with client_of(server.url, JSON) as first, client_of(server.url, MSGPACK) as second:
        stream = await first.start("a", params=LONG | {"max_tokens": 9}, credit={"limit": 4})
        await stream.until_index(4)
        events = await attach(second, first)
        assert text(events) == stream.text, "in another encoding, too"
        taken = await first.next("a")
        assert (taken["type"], taken["status"], taken["code"]) == ("error", 409, "request_taken")
        await second.send("credit", request_id="a", limit=9)
        assert (await until(second, "final"))[-1]["index"] == 9
        await first.roundtrip()
        assert first.heard("a") == []


async def test_frames_that_were_taken_in_and_not_answered_are_pending(slow: Served) -> None:
    async with client_of(slow.url) as first:
        await first.send("start", request_id="a", prompt="Once", params=LONG)
        await until(first, "started")
        await first.send("rewind", request_id="a", to=0, ref="r")
        await first.send("attach", request_id="a", after=0, ref="attach")
        before = await until(first, "attached")
        await first.send("cancel", request_id="a")
        behind = await until(first, "final")
        answered = [event["type"] for event in behind if event.get("ref") == "r"]
        assert before[-1].get("pending", []) == ["r"] * len(answered), (
            "it says which answers are still to come"
        )
        told = {(event["type"], event["seq"]) for event in [*before, *behind] if event.get("ref") == "r"}
        assert [kind for kind, _ in told] == ["rewound"], "one answer: told again where it came before"


# -- when a connection ends ------------------------------------------------------------------------


@BOTH
async def test_each_stream_does_what_its_start_said(server: Served, encoding: str) -> None:
    async with client_of(server.url, encoding) as second:
        async with client_of(server.url, encoding) as first:
            for mode in ("cancel", "pause", "continue"):
                stream = await first.start(mode, params=LONG, credit={"limit": 2}, on_disconnect=mode)
                await stream.until_index(2)
        await server.until(lambda now: sum_of(now, "paused") == 1 and sum_of(now, "stalled") == 1)
        for mode, reason in (("cancel", "detached"), ("pause", None), ("continue", None)):
            await attach(second, first, name=mode)
            await second.send("cancel", request_id=mode)
            final = (await until(second, "final", mode))[-1]
            assert (final["finish_reason"], final.get("stop_reason")) == ("cancelled", reason)


def sum_of(metrics: dict[str, float], state: str) -> float:
    return metrics[f'midstream_streams{{state="{state}"}}']


@BOTH
async def test_nobody_coming_back_in_time_it_is_cancelled(server: Served, encoding: str) -> None:
    async with client_of(server.url, encoding) as second:
        async with client_of(server.url, encoding) as first:
            stream = await first.start("a", params=LONG, on_disconnect="pause", grace_ms=50)
            await stream.until_index(1)
        await server.until_idle()
        await attach(second, first)
        final = (await until(second, "final"))[-1]
        assert (final["finish_reason"], final["stop_reason"]) == ("cancelled", "detached")


# -- one stands in for another ---------------------------------------------------------------------


@BOTH
async def test_a_connection_that_is_replaced_is_closed_and_its_streams_wait(
    server: Served, encoding: str
) -> None:
    async with client_of(server.url, encoding) as second:
        await second.roundtrip()
        async with client_of(server.url, encoding) as first:
            stream = await first.start("a", params=LONG, credit={"limit": 3}, on_disconnect="pause")
            await stream.until_index(3)
            await second.send("replace", session_id=first.session_id)
            events = await attach(second, first, 0)
            assert text(events) == stream.text
            error = await closed(first)
            assert error.rcvd is not None
            assert error.rcvd.code == 4409
        await second.send("cancel", request_id="a")
        assert (await until(second, "final"))[-1]["finish_reason"] == "cancelled"


async def test_replacing_what_is_not_there_or_oneself_is_nothing(server: Served) -> None:
    async with client_of(server.url) as client:
        await client.send("replace", session_id="0" * 32)
        await client.send("replace", session_id=client.session_id)
        await client.roundtrip()
        stream = await client.start("a", params=LONG | {"max_tokens": 2})
        assert (await stream.rest())["index"] == 2
