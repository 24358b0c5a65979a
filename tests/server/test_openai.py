"""OpenAI's API from outside, as bytes: headers, events, silence, names, and clients that go away."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from tests.server.server_process import PATIENCE_S, Served, streams

MESSAGES = [{"role": "user", "content": "Hello"}]
ENDLESS: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"


def http(server: Served) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.http, timeout=PATIENCE_S)


async def post(
    server: Served, path: str, headers: dict[str, str] | None = None, **body: Any
) -> httpx2.Response:
    async with http(server) as client:
        return await client.post(path, json=body, headers=headers)


class Stream:
    """A response as it comes: its events, and the comments between them."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def line(self) -> str:
        """The next event or comment."""
        while not (line := await anext(self._lines)):
            pass
        return line

    async def comment(self) -> None:
        while not (await self.line()).startswith(":"):
            pass

    async def next(self) -> dict[str, Any]:
        while not (line := await self.line()).startswith("data: "):
            pass
        said: dict[str, Any] = json.loads(line.removeprefix("data: "))
        return said

    async def text(self) -> str:
        """The next text of a completion."""
        while not (said := str((await self.next())["choices"][0]["text"])):
            pass
        return said

    async def rest(self) -> list[str]:
        return [line.removeprefix("data: ") async for line in self._lines if line.startswith("data: ")]


@asynccontextmanager
async def streaming(
    server: Served, path: str = TEXTS, headers: dict[str, str] | None = None, **body: Any
) -> AsyncIterator[Stream]:
    asked = {"stream": True} | body
    async with (
        http(server) as client,
        client.stream("POST", path, json=asked, headers=headers) as response,
    ):
        yield Stream(response)


# -- answers ---------------------------------------------------------------------------------------


async def test_an_event_stream_is_one_that_no_proxy_holds_up(server: Served) -> None:
    headers = {"Accept-Encoding": "gzip, br", "X-Request-Id": "mine"}
    async with streaming(server, CHATS, headers, messages=MESSAGES, max_tokens=4) as stream:
        head = stream.response.headers
        assert stream.response.status_code == 200
        assert head["content-type"].startswith("text/event-stream")
        assert head["cache-control"] == "no-cache, no-transform"
        assert head["x-accel-buffering"] == "no"
        assert "content-encoding" not in head
        assert head["x-request-id"] == "mine"
        first = await stream.next()
        assert (first["id"], first["choices"][0]["delta"]["role"]) == ("mine", "assistant")
        assert (await stream.rest())[-1] == "[DONE]"


@pytest.mark.parametrize("length", [10, 4000])
async def test_short_and_long_texts_are_answered(server: Served, length: int) -> None:
    """Long ones are tokenized in a thread."""
    prompts = ["a " * length, "b " * length]
    answer = (await post(server, TEXTS, prompt=prompts, max_tokens=3, n=2, ignore_eos=True)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 12


async def test_the_same_name_is_the_same_answer_and_no_new_work(server: Served) -> None:
    body: dict[str, Any] = {"prompt": "Once", "max_tokens": 12, "ignore_eos": True}
    first = await post(server, TEXTS, {"X-Request-Id": "same"}, **body)
    before = await server.metrics()
    again = await post(server, TEXTS, request_id="same", **body)
    assert again.json()["choices"] == first.json()["choices"]
    assert (await server.metrics())["midstream_tokens_total"] == before["midstream_tokens_total"]
    other = await post(server, TEXTS, {"X-Request-Id": "same"}, **body | {"prompt": "Twice"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "request_conflict")
    assert other.headers["x-should-retry"] == "false"


async def test_whoever_lost_the_connection_asks_again_and_has_it_all(slow: Served) -> None:
    body: dict[str, Any] = {
        "prompt": "Once",
        "max_tokens": 30,
        "ignore_eos": True,
        "request_id": "lost",
        "seed": 3,
    }
    async with streaming(slow, **body) as stream:
        begun = [await stream.text() for _ in range(3)]
    await slow.until(lambda now: streams(now, "paused") == 1)
    answer = (await post(slow, TEXTS, **body)).json()
    assert answer["choices"][0]["text"].startswith("".join(begun))
    assert answer["usage"]["completion_tokens"] == 30


async def test_models_are_listed_by_name(server: Served) -> None:
    async with http(server) as client:
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["toy"]
        assert (await client.get("/v1/models/toy")).json() == listed["data"][0]
        unknown = await client.get("/v1/models/a/b")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


# -- silence, and readers --------------------------------------------------------------------------


async def test_heartbeats_pass_while_a_prompt_is_computed_and_while_it_is_paused(
    serve: Callable[..., Served],
) -> None:
    server = serve("--sse-heartbeat-s", "0.05", "--toy-step-ms", "200", "--step-tokens", "16")
    async with streaming(server, prompt=[5] * 64, request_id="quiet", **ENDLESS) as stream:
        assert (await stream.line()).startswith(":"), "no token yet"
        await stream.text()
        paused = await post(server, "/v1/streams/quiet/control", type="pause")
        assert paused.json()["type"] == "paused"
        for _ in range(3):
            await stream.comment()
        await post(server, "/v1/streams/quiet/control", type="resume")
        await stream.text()
        await post(server, "/v1/streams/quiet/control", type="cancel")
        assert (await stream.rest())[-1] == "[DONE]"


async def test_heartbeats_pass_while_a_prompt_waits_for_memory(serve: Callable[..., Served]) -> None:
    server = serve("--sse-heartbeat-s", "0.05", "--toy-step-ms", "15", "--kv-tokens", "512")
    async with (
        streaming(server, prompt=[5] * 400, **ENDLESS) as first,
        streaming(server, prompt=[6] * 400, **ENDLESS) as second,
    ):
        await first.text()
        await server.until(lambda now: streams(now, "queued") == 1)
        assert (await second.line()).startswith(":")
    await server.until_idle()


async def test_a_deadline_ends_an_answer_with_what_there_is(slow: Served) -> None:
    answer = (await post(slow, TEXTS, prompt="Once", timeout_ms=300, **ENDLESS)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert 0 < answer["usage"]["completion_tokens"] < 4000


@pytest.mark.parametrize("stream", [True, False])
async def test_whoever_goes_away_frees_all_of_its_work(slow: Served, stream: bool) -> None:
    async with http(slow) as client:
        body = {"prompt": "Once", "n": 3, "stream": stream} | ENDLESS
        asking = asyncio.create_task(client.post(TEXTS, json=body))
        await slow.until(lambda now: streams(now) == 3)
        asking.cancel()
        await asyncio.wait([asking])
    after = await slow.until_idle()
    assert after["midstream_tokens_total"] < 3 * 4000


def unread(server: Served, **fields: Any) -> socket.socket:
    """A client that has asked for a stream, and reads nothing yet. Its buffers are small."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.connect((server.host, server.port))
    body = json.dumps({"prompt": "Once", "stream": True, "ignore_eos": True} | fields).encode()
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    client.sendall(head % (TEXTS.encode(), len(body)) + body)
    return client


def everything(client: socket.socket) -> bytes:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
    said = b""
    while part := client.recv(65536):
        said += part
    return said


async def test_a_client_that_reads_late_has_it_all_in_fewer_and_larger_pieces(server: Served) -> None:
    with unread(server, max_tokens=1000, logprobs=0) as late:
        await server.until(lambda now: streams(now, "stalled") == 1)
        said = await asyncio.to_thread(everything, late)
    found = re.findall(rb'"tokens":(\[.*?\]),"token_logprobs"', said)
    counts = [len(json.loads(tokens)) for tokens in found]
    assert sum(counts) == 1000
    assert max(counts) > 10
    assert b"data: [DONE]" in said


async def test_a_client_that_reads_nothing_stops_its_own_decoding_and_nobody_elses(
    serve: Callable[..., Served],
) -> None:
    server = serve("--send-timeout-s", "2")
    with unread(server, max_tokens=8000):
        stalled = await server.until(lambda now: streams(now, "stalled") == 1)
        assert stalled["midstream_tokens_total"] < 2000
        answer = (await post(server, TEXTS, prompt="Once", max_tokens=50, ignore_eos=True)).json()
        assert answer["usage"]["completion_tokens"] == 50
        await server.until_idle()  # its time was up


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"prompt": "a", "model": "another"}, 404, "model_not_found"),
        ({"prompt": [1] * 9000}, 400, "context_length_exceeded"),
        ({"prompt": "x" * 2**20}, 413, "too_large"),
        ({"prompt": "a", "tools": [{}]}, 400, "unsupported_parameter"),
        ({"prompt": ""}, 400, "invalid_frame"),
        ({"prompt": [100_000]}, 400, "invalid_frame"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_right_has_openais_error_and_status(
    server: Served, body: dict[str, Any], status: int, code: str, stream: bool
) -> None:
    answer = await post(server, TEXTS, {"X-Request-Id": "wrong"}, stream=stream, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert {"message", "type", "param", "code"} <= error.keys()
    assert answer.headers["x-request-id"] == "wrong"


def test_whoever_says_too_much_is_heard_out_and_then_refused(shared: Served) -> None:
    with socket.create_connection((shared.host, shared.port)) as peer:
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        peer.sendall(head % (TEXTS.encode(), 2**23) + b"x" * 2**23)
        assert peer.recv(20).startswith(b"HTTP/1.1 413")


async def test_a_full_server_says_when_to_come_again(serve: Callable[..., Served]) -> None:
    server = serve("--max-streams", "1", "--toy-step-ms", "15")
    async with streaming(server, prompt="Once", **ENDLESS) as stream:
        await stream.text()
        full = await post(server, TEXTS, prompt="Twice")
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert full.headers["x-should-retry"] == "true"
        async with streaming(server, prompt="Twice") as second:
            assert second.response.status_code == 503


async def test_a_choice_that_is_refused_later_ends_the_answer_with_an_error(
    serve: Callable[..., Served],
) -> None:
    server = serve("--max-streams", "1")
    async with streaming(server, prompt="Once", n=2, **ENDLESS) as stream:
        error = json.loads((await stream.rest())[-1])["error"]
    assert (error["status"], error["retryable"]) == (503, True)
    await server.until_idle()


async def test_the_servers_end_is_an_error_that_may_be_tried_again(serve: Callable[..., Served]) -> None:
    server = serve("--shutdown-grace-s", "0.1", "--toy-step-ms", "15")
    async with streaming(server, prompt="Once", **ENDLESS) as stream:
        await stream.text()
        server.tell()
        error = json.loads((await stream.rest())[-1])["error"]
    assert (error["code"], error["retryable"]) == ("draining", True)
    assert server.ended() == 0
    assert "Traceback" not in server.log()


async def test_a_request_that_breaks_off_is_no_failure_of_ours(serve: Callable[..., Served]) -> None:
    server = serve()
    for path in (TEXTS, "/v1/streams/x/control"):
        with socket.socket() as broken:
            broken.connect((server.host, server.port))
            head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
            broken.sendall(head % path.encode() + b"{")
            assert (await server.ask("/healthz"))[0] == 200
    await server.until_idle()
    server.tell()
    assert server.ended() == 0
    assert "Traceback" not in server.log()


# -- beside a WebSocket ----------------------------------------------------------------------------


@asynccontextmanager
async def websocket(server: Served) -> AsyncIterator[Callable[..., Awaitable[dict[str, Any]]]]:
    """Gives the next event of a kind, behind a frame that is sent first."""
    async with connect(server.url) as socket:

        async def ask(kind: str, **frame: Any) -> dict[str, Any]:
            await socket.send(json.dumps(frame))
            while (event := json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S)))["type"] != kind:
                pass
            return dict(event)

        yield ask


async def test_a_websocket_steers_what_runs_over_http(slow: Served) -> None:
    async with (
        streaming(slow, prompt="Once", request_id="both", **ENDLESS) as stream,
        websocket(slow) as ask,
    ):
        await stream.text()
        assert (await ask("paused", type="pause", request_id="both", ref="1"))["ref"] == "1"
        final = await ask("final", type="cancel", request_id="both", ref="2")
        assert final["finish_reason"] == "cancelled"
        *_, last, done = await stream.rest()
    assert json.loads(last)["choices"][0]["finish_reason"] == "cancelled"
    assert done == "[DONE]"


async def test_a_websocket_takes_over_what_runs_over_http(slow: Served) -> None:
    async with (
        streaming(slow, prompt="Once", request_id="over", **ENDLESS) as stream,
        websocket(slow) as ask,
    ):
        await stream.text()
        await ask("attached", type="attach", request_id="over", after=-1)
        assert json.loads((await stream.rest())[-1])["error"]["code"] == "request_taken"
        await ask("final", type="cancel", request_id="over")
