"""Streams of one's own over HTTP: followed as events that can be taken up again, and steered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from websockets.asyncio.client import connect

from tests.server.gateways import Serve, gateways
from tests.server.server_process import PATIENCE_S, Served

ENDLESS: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}


def http(server: Served) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.http, timeout=PATIENCE_S)


async def control(server: Served, request_id: str, /, **frame: Any) -> httpx2.Response:
    async with http(server) as client:
        return await client.post(f"/v1/streams/{quote(request_id, safe='')}/control", json=frame)


class Events:
    """What an EventSource reads: data, each under the last id that stood before it."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.last_id: str | None = None
        self._lines = response.aiter_lines()

    async def next(self, kind: str | None = None) -> dict[str, Any]:
        while True:
            async for line in self._lines:
                if line.startswith("id: "):
                    self.last_id = line.removeprefix("id: ")
                if line.startswith("data: "):
                    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    break
            else:
                raise AssertionError("it ended")
            if kind in (None, event["type"]):
                return event

    async def rest(self) -> list[dict[str, Any]]:
        told = []
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line.removeprefix("id: ")
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
        return told


@asynccontextmanager
async def following(server: Served, path: str, method: str = "GET", **headers: str) -> AsyncIterator[Events]:
    async with http(server) as client, client.stream(method, path, headers=headers) as response:
        yield Events(response)


@asynccontextmanager
async def running(server: Served, request_id: str, **fields: Any) -> AsyncIterator[None]:
    """A stream of a WebSocket's, that outlives it and is ended behind the test."""
    start = {
        "type": "start",
        "request_id": request_id,
        "prompt": "Once",
        "on_disconnect": "continue",
        **fields,
    }
    async with connect(server.url) as websocket:
        await websocket.recv()
        await websocket.send(json.dumps(start))
        assert json.loads(await websocket.recv())["type"] == "started"
    yield
    await control(server, request_id, type="cancel")


# -- steering --------------------------------------------------------------------------------------


async def test_every_control_frame_is_answered_by_its_event(slow: Served) -> None:
    async with running(slow, "steered", params=ENDLESS), following(slow, "/v1/streams/steered") as events:
        await events.next("token")
        said = [
            await control(slow, "steered", **frame)
            for frame in (
                {"type": "pause"},
                {"type": "adjust", "params": {"temperature": 0}, "ref": "mine"},
                {"type": "rewind", "to": 0},
                {"type": "inject", "text": " and then"},
                {"type": "inject", "text": " but", "at": 0},
                {"type": "resume"},
                {"type": "credit", "limit": 50},
                {"type": "cancel"},
            )
        ]
        kinds = [answer.json()["type"] for answer in said if answer.content]
        assert kinds == ["paused", "adjusted", "rewound", "injected", "injected", "resumed", "final"]
        assert [answer.status_code for answer in said] == [200] * 6 + [204, 200]
        assert said[1].json()["ref"] == "mine"
        assert said[1].json()["params"]["temperature"] == 0
        assert "ref" not in said[0].json()
        assert said[-1].json()["finish_reason"] == "cancelled"
        assert said[0].headers["x-request-id"] == "steered"
        assert (await events.rest())[-1]["type"] == "final"


async def test_what_has_ended_is_not_steered_any_more(server: Served) -> None:
    async with (
        running(server, "short", params={"max_tokens": 1}),
        following(server, "/v1/streams/short") as events,
    ):
        await events.rest()
    assert (await control(server, "short", type="cancel")).status_code == 204
    assert (await control(server, "short", type="credit", limit=5)).status_code == 204
    late = await control(server, "short", type="pause")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "request_finished")


@pytest.mark.parametrize(
    ("frame", "status", "code"),
    [
        ({"type": "pause"}, 404, "unknown_request"),
        ({"type": "start", "prompt": "a"}, 400, "invalid_frame"),
        ({"type": "attach", "after": -1}, 400, "invalid_frame"),
        ({"type": "ping"}, 400, "invalid_frame"),
        ({"type": "replace", "session_id": "x"}, 400, "invalid_frame"),
        ({"type": "dance"}, 400, "invalid_frame"),
        ({"type": "rewind"}, 400, "invalid_frame"),
        ({"type": "pause", "request_id": "another"}, 400, "invalid_frame"),
        ({"type": "adjust", "params": {"temperature": 3}}, 400, "invalid_params"),
        ({"type": "inject", "text": "x" * 2**20}, 413, "too_large"),
    ],
)
async def test_a_frame_that_is_not_right_has_the_wires_error(
    server: Served, frame: dict[str, Any], status: int, code: str
) -> None:
    answer = await control(server, "nothing", **frame)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff"])
async def test_a_body_that_is_no_frame_is_refused(server: Served, body: bytes) -> None:
    async with http(server) as client:
        answer = await client.post("/v1/streams/x/control", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_frame")


async def test_a_refused_frame_says_what_is_wrong_and_changes_nothing(slow: Served) -> None:
    async with running(slow, "firm", params=ENDLESS), following(slow, "/v1/streams/firm") as events:
        await events.next("token")
        wrong = await control(slow, "firm", type="rewind", to=100_000)
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_params")
        await events.next("token")


async def test_names_of_any_characters_can_be_in_the_path(server: Served) -> None:
    name = "a/b\nc\u00e9?#"
    async with running(server, name, params={"max_tokens": 1}), http(server) as client:
        answer = await client.get(f"/v1/streams/{quote(name, safe='')}")
        assert answer.status_code == 200
        assert '"final"' in answer.text
        assert answer.headers["x-request-id"] == "a/b%0Ac%C3%A9?#"


# -- following -------------------------------------------------------------------------------------


async def test_a_stream_is_followed_event_by_event_and_taken_up_where_it_was_left(slow: Served) -> None:
    async with running(slow, "told", params=ENDLESS):
        async with following(slow, "/v1/streams/told") as events:
            assert events.response.headers["content-type"].startswith("text/event-stream")
            assert (await events.next())["type"] == "started"
            for _ in range(4):
                last = await events.next("token")
        assert events.last_id == str(last["seq"])
        # Where the end of a connection was not heard yet, only who takes over is sure to come in.
        async with following(slow, f"/v1/streams/told?after={last['seq']}", "POST") as events:
            again = await events.next("token")
            assert (again["seq"], again["index"]) == (last["seq"] + 1, last["index"] + last["count"])
        # A browser comes again with the URL that it had, and says what it has.
        headers = {"last-event-id": str(again["seq"])}
        async with following(slow, "/v1/streams/told?after=-1", **headers) as events:
            assert (await events.next("token"))["seq"] == again["seq"] + 1


async def test_whoever_has_had_it_all_is_told_to_come_no_more(server: Served) -> None:
    async with running(server, "done", params={"max_tokens": 2}):
        async with following(server, "/v1/streams/done") as events:
            final = await events.next("final")
        async with http(server) as client:
            for last in (str(final["seq"]), events.last_id or ""):
                answer = await client.get("/v1/streams/done", headers={"last-event-id": last})
                assert (answer.status_code, answer.content) == (204, b"")
            ended = await client.get("/v1/streams/done", params={"after": final["seq"] - 1})
            assert json.loads(ended.text.split("data: ")[1])["type"] == "final"


async def test_one_follows_at_a_time_and_by_post_another_takes_over(slow: Served) -> None:
    async with running(slow, "one", params=ENDLESS), following(slow, "/v1/streams/one") as first:
        await first.next("token")
        async with following(slow, "/v1/streams/one?after=0", "POST") as second:
            await second.next("token")
            assert (await first.rest())[-1]["code"] == "request_taken"
            # As a browser's EventSource does by itself, which would take back what was taken on purpose.
            async with http(slow) as client:
                again = await client.get("/v1/streams/one", headers={"last-event-id": first.last_id or ""})
            assert (again.status_code, again.content) == (204, b"")
            await second.next("token")


async def test_one_whose_path_is_anothers_to_steer_by_is_taken_over_all_the_same(slow: Served) -> None:
    path = "/v1/streams/one/control"
    async with running(slow, "one/control", params=ENDLESS), following(slow, path) as first:
        await first.next("token")
        async with following(slow, path, **{"last-event-id": "-1"}) as second:
            await second.next("token")
            assert (await first.rest())[-1]["code"] == "request_taken"


async def test_no_get_takes_a_stream_from_its_reader(slow: Served) -> None:
    """Pages of other sites can have a browser ask for it, as an image."""
    start = {"type": "start", "request_id": "mine", "prompt": "Once", "params": ENDLESS}
    async with connect(slow.url) as websocket:
        await websocket.recv()
        await websocket.send(json.dumps(start))
        assert json.loads(await websocket.recv())["type"] == "started"
        async with http(slow) as client:
            for path in ("/v1/streams/mine", "/v1/streams/mine?after=-1"):
                answer = await client.get(path)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (409, "request_taken")
                assert "POST" in error["message"]
        assert json.loads(await websocket.recv())["type"] == "token"
        async with following(slow, "/v1/streams/mine", "POST") as events:
            await events.next("token")
            while (told := json.loads(await websocket.recv()))["type"] == "token":
                pass
            assert told["code"] == "request_taken"
    await control(slow, "mine", type="cancel")


async def test_without_keys_no_browser_that_does_not_say_which_page_asks_has_a_stream_by_a_get(
    slow: Served,
) -> None:
    path, browser = "/v1/streams/unread", {"User-Agent": "Mozilla/5.0"}
    async with running(slow, "unread", params=ENDLESS), http(slow) as client:
        for unsaid in ({}, {"Sec-Fetch-Site": "none"}):
            answer = await client.get(path, headers=browser | unsaid)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        for method, said in (
            ("GET", {"Sec-Fetch-Site": "same-origin"}),
            ("GET", {"Last-Event-ID": "-1"}),
            ("POST", {}),
        ):
            async with following(slow, path, method, **browser, **said) as events:
                await events.next("token")


async def test_at_another_gateway_a_get_takes_no_stream_from_its_reader_either(
    tmp_path: Path, serve: Serve
) -> None:
    async with gateways(tmp_path, serve) as (first, second), running(first, "there", params=ENDLESS):
        async with following(first, "/v1/streams/there") as reader, http(second) as client:
            await reader.next("token")
            told = await client.get("/v1/streams/there")
            assert (told.status_code, told.json()["error"]["code"]) == (404, "unknown_request")
            await reader.next("token")
            async with following(second, "/v1/streams/there", "POST") as taker:
                await taker.next("token")
                assert (await reader.next("error"))["code"] == "request_taken"
        await control(second, "there", type="cancel")


async def test_an_event_source_comes_again_also_where_its_first_connection_seems_open(slow: Served) -> None:
    async with (
        running(slow, "seems lost", params=ENDLESS),
        following(slow, "/v1/streams/seems%20lost") as first,
    ):
        last = await first.next("token")
        headers = {"last-event-id": str(last["seq"])}
        async with following(slow, "/v1/streams/seems%20lost", **headers) as again:
            assert (await again.next("token"))["seq"] == last["seq"] + 1


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/streams/nothing", 404, "unknown_request"),
        ("/v1/streams/" + "n" * 129, 400, "invalid_frame"),
        ("/v1/streams/nothing?after=x", 400, "invalid_params"),
        ("/v1/streams/nothing?after=-2", 400, "invalid_params"),
        ("/v1/streams/nothing?after=99999999999", 400, "invalid_params"),
    ],
)
async def test_what_cannot_be_followed_says_why(server: Served, path: str, status: int, code: str) -> None:
    async with http(server) as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/streams"), ("GET", "/v1/streams/any"), ("POST", "/v1/streams/any/control")],
)
async def test_a_query_may_be_no_longer_than_anything_needs(server: Served, method: str, path: str) -> None:
    """To read one of thousands of fields would hold everybody up, and cost whoever sent it nothing."""
    async with http(server) as client:
        answer = await client.request(method, path + "?" + "%e2&" * 3000, json={"type": "cancel"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_params")
    assert error["message"] == "The query may have 1024 bytes at most."


async def test_looking_at_the_headers_takes_nothing_from_anybody(server: Served) -> None:
    async with http(server) as client:
        before = await server.metrics()
        looked = await client.head("/v1/streams/nothing")
        after = await server.metrics()
    assert (looked.status_code, looked.headers["Allow"]) == (405, "GET, POST")
    counted = 'midstream_refusals_total{code="method_not_allowed",endpoint="none"}'
    assert after[counted] - before.get(counted, 0) == 1
