"""What an operator sees and may do: refusals are counted and logged with who it was, whatever refused them;
an admin ends anybody's stream. One server with keys for all of it."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from realtime.keys_command import main
from tests.server.asgi_app_server import upgrade
from tests.server.independent_client import client_of
from tests.server.server_process import PATIENCE_S, Served

REALTIME, CONTROL = "/v1/realtime", "/v1/streams/{request_id}/control"
SECRETS = "/v1/realtime/client_secrets"


class Guarded:
    def __init__(self, folder: Path) -> None:
        self._file = str(folder / "keys.toml")
        self.alice, self.bob = self._key("alice", "--tenant", "acme"), self._key("bob")
        self.root, self.scraper = self._key("root", "--admin"), self._key("scraper", "--metrics")
        self.served = Served("--keys-file", self._file, "--log-format", "json", "--toy-step-ms", "15")

    def _key(self, *words: str) -> dict[str, str]:
        """The header with a new key."""
        with redirect_stdout(StringIO()) as told:
            assert main(["add", *words, "--file", self._file], {}) == 0
        return {"Authorization": f"Bearer {told.getvalue().strip()}"}

    def ask(self, method: str, path: str, key: dict[str, str], body: Any = None) -> httpx2.Response:
        return httpx2.request(method, self.served.http + path, headers=key, json=body, timeout=PATIENCE_S)

    def refusals(self) -> Counter[tuple[str, str]]:
        """How often each code was told at each endpoint."""
        families = text_string_to_metric_families(self.ask("GET", "/metrics", self.scraper).text)
        (refusals,) = (family for family in families if family.name == "midstream_refusals")
        samples = (sample for sample in refusals.samples if sample.name.endswith("_total"))
        return Counter(
            {(sample.labels["code"], sample.labels["endpoint"]): int(sample.value) for sample in samples}
        )

    def disconnects(self) -> Counter[str]:
        """Of streams whose listener went, by its cause."""
        families = text_string_to_metric_families(self.ask("GET", "/metrics", self.scraper).text)
        (left,) = (family for family in families if family.name == "stream_disconnects")
        samples = (sample for sample in left.samples if sample.name.endswith("_total"))
        return Counter({sample.labels["cause"]: int(sample.value) for sample in samples})

    def lines(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.served.log().splitlines()]
        return [line for line in lines if line["logger"] == "midstream.refusals"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("keys"))
    try:
        yield guarded
        guarded.served.tell()
        assert guarded.served.ended() == 0, guarded.served.log()
        assert "Traceback" not in guarded.served.log()
    finally:
        guarded.served.end()


def said(guarded: Guarded, request: bytes) -> bytes:
    """The answer to bytes of any kind, to the end of the connection."""
    with socket.create_connection((guarded.served.host, guarded.served.port), PATIENCE_S) as peer:
        peer.sendall(request)
        return b"".join(iter(lambda: peer.recv(65536), b""))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/embeddings", 404, "not_found"),
        ("DELETE", "/v1/", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/sdk/nothing.js", 404, "not_found"),
        ("GET", "/vendor/uplot/LICENSE", 404, "not_found"),
        ("POST", "/v1/completions/", 404, "not_found"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
    ],
)
def test_a_path_or_method_that_is_not_there_is_refused_in_json(
    guarded: Guarded, method: str, path: str, status: int, code: str
) -> None:
    before = guarded.refusals()
    answer = guarded.ask(method, path, guarded.alice)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["code"], error["status"], error["retryable"]) == (code, status, False)
    assert error["message"]
    assert ("Allow" in answer.headers) == (status == 405)
    assert guarded.refusals() - before == {(code, "none"): 1}


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/models", "GET, HEAD"),
        ("/v1/models/toy", "GET, HEAD, POST"),
        ("/v1/streams/x", "GET, POST"),
        ("/v1/chat/completions", "POST"),
        ("/healthz", "GET, HEAD"),
    ],
)
def test_whoever_asks_by_another_method_is_told_all_that_a_path_takes(
    guarded: Guarded, path: str, allowed: str
) -> None:
    answer = guarded.ask("DELETE", path, guarded.alice)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
    assert answer.json()["error"]["message"] == f"What is at this path takes {allowed} alone."


def test_what_is_refused_over_http_is_counted_where_it_was_asked(guarded: Guarded) -> None:
    before = guarded.refusals()
    for method, path, key, body in (
        ("GET", "/v1/streams", {}, None),
        ("GET", "/v1/streams?limit=0", guarded.alice, None),
        ("GET", "/metrics", guarded.alice, None),
        ("GET", "/v1/models", guarded.scraper, None),
        ("GET", "/v1/models/gpt", guarded.alice, None),
        ("POST", "/v1/completions", guarded.alice, {"promt": "Once"}),
        ("POST", "/v1/completions", guarded.alice, {"prompt": "Once", "priority": 8}),
        ("POST", "/v1/streams/nobody/control", guarded.alice, {"type": "pause"}),
        ("POST", "/v1/streams/nobody/control", guarded.alice, {"type": "dance"}),
        ("GET", "/v1/streams/nobody", guarded.alice, None),
        ("GET", "/v1/realtime", guarded.alice, None),
        ("POST", "/v1/realtime/client_secrets", guarded.alice, {"origin": 1}),
    ):
        assert guarded.ask(method, path, key, body).status_code >= 400, path
    assert guarded.refusals() - before == {
        ("unauthenticated", "/v1/streams"): 1,
        ("invalid_params", "/v1/streams"): 1,
        ("forbidden", "/metrics"): 1,
        ("forbidden", "/v1/models"): 1,
        ("unknown_model", "/v1/models/{model}"): 1,
        ("unsupported", "/v1/completions"): 1,
        ("forbidden", "/v1/completions"): 1,
        ("unknown_request", CONTROL): 1,
        ("invalid_frame", CONTROL): 1,
        ("unknown_request", "/v1/streams/{request_id}"): 1,
        ("upgrade_required", REALTIME): 1,
        ("invalid_frame", "/v1/realtime/client_secrets"): 1,
    }


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        (
            "GET",
            "/v1/streams?tenant=acme",
            "`tenant` is unknown in the query of this path, which has `limit`, `state`.",
        ),
        ("GET", "/v1/streams?limit=5&limit=9", "`limit` is in the query more than once."),
        (
            "GET",
            "/v1/streams/x?tenant=acme",
            "`tenant` is unknown in the query of this path, which has `after`.",
        ),
        ("POST", "/v1/streams/x?since=5", "`since` is unknown in the query of this path, which has `after`."),
        (
            "POST",
            "/v1/streams/x/control?tenat=acme",
            "`tenat` is unknown in the query of this path, which has `tenant`.",
        ),
        ("POST", "/v1/streams/x/control?tenant=acme&tenant=bob", "`tenant` is in the query more than once."),
    ],
)
def test_what_a_query_says_is_heard_or_refused(guarded: Guarded, method: str, path: str, says: str) -> None:
    answer = guarded.ask(method, path, guarded.root, {"type": "cancel"} if method == "POST" else None)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["message"]) == (400, "invalid_params", says)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/streams/nobody/control",
        "/v1/realtime/client_secrets",
        "/v1/models/toy",
    ],
)
def test_a_compressed_body_is_refused_as_what_it_is(guarded: Guarded, path: str) -> None:
    gzip = guarded.root | {"Content-Encoding": "gzip"}
    error = guarded.ask("POST", path, gzip, {}).json()["error"]
    assert (error["status"], error["code"]) == (400, "invalid_frame")
    assert error["message"] == 'The body has a `Content-Encoding`, "gzip": send it as it is, without one.'
    as_it_is = guarded.root | {"Content-Encoding": "identity"}
    assert "Encoding" not in guarded.ask("POST", path, as_it_is, {}).text


async def test_what_is_refused_on_a_websocket_is_counted_too(guarded: Guarded) -> None:
    before = guarded.refusals()
    for url in (guarded.served.url, guarded.served.url + "x", guarded.served.url + "/%0Ax"):
        with pytest.raises(InvalidStatus):
            async with connect(url):
                pass
    async with client_of(guarded.served.url, additional_headers=guarded.bob) as client:
        for kind in ("dance", "pause"):
            await client.send(kind, request_id="nobody")
            assert (await client.next("nobody"))["type"] == "error"
        await client.websocket.send("x" * (2**20 + 1))
        with pytest.raises(ConnectionClosed):
            await client.next()
    assert guarded.refusals() - before == {
        ("unauthenticated", REALTIME): 1,
        ("not_found", "/{path}"): 2,
        ("invalid_frame", REALTIME): 1,
        ("unknown_request", REALTIME): 1,
        ("too_large", REALTIME): 1,
    }


@pytest.mark.parametrize("code", [1002, 1007, 1008, 1009, 1011, 1013, 4401, 4409])
async def test_with_whatever_code_a_client_goes_it_was_not_refused(guarded: Guarded, code: int) -> None:
    """A library says 1009 of what is too large for itself, and 1011 of its own mistakes."""
    before = guarded.refusals(), guarded.disconnects()
    async with client_of(guarded.served.url, additional_headers=guarded.bob) as client:
        stream = await client.start(f"left {code}", params={"ignore_eos": True}, on_disconnect="cancel")
        await stream.next()
        await client.websocket.close(code)
    while guarded.disconnects() == before[1]:
        pass  # the server has yet to hear of it
    assert guarded.disconnects() - before[1] == {"closed": 1}
    assert guarded.refusals() == before[0]


def test_what_never_became_a_request_is_counted_and_logged_with_its_address(guarded: Guarded) -> None:
    before = guarded.refusals()
    assert said(guarded, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 17_000).startswith(b"HTTP/1.1 431 ")
    assert said(guarded, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert guarded.refusals() - before == {("head_too_large", "none"): 1, ("bad_request", "none"): 1}
    assert said(guarded, upgrade(REALTIME).replace(b": 13", b": 12")).startswith(b"HTTP/1.1 400 ")
    assert said(guarded, upgrade(REALTIME, "Content-Length: 1")).startswith(b"HTTP/1.1 400 ")
    assert said(guarded, upgrade(REALTIME).replace(b"GET", b"POST")).startswith(b"HTTP/1.1 405 ")
    assert guarded.refusals() - before == {
        ("head_too_large", "none"): 1,
        ("bad_request", "none"): 3,
        ("method_not_allowed", "none"): 1,
    }
    (line,) = (line for line in guarded.lines() if line["code"] == "head_too_large")
    assert (line["address"], line["key"]) == ("127.0.0.1", None)


def test_a_refusal_is_logged_with_the_keys_name_and_no_key(guarded: Guarded) -> None:
    guarded.ask("GET", "/v1/streams?state=CANARY", guarded.alice)
    told = [line for line in guarded.lines() if line["code"] == "invalid_params"]
    assert {
        "endpoint": "/v1/streams",
        "key": "alice",
        "tenant": "acme",
        "address": "127.0.0.1",
    }.items() <= told[0].items()
    assert "CANARY" not in guarded.served.log()
    assert "ms_" not in guarded.served.log()


def test_what_a_proxy_calls_an_address_fills_no_line(guarded: Guarded) -> None:
    asked = {"origin": "https://elsewhere.example"}
    key = guarded.alice | {"X-Forwarded-For": "x" * 9000}
    assert guarded.ask("POST", "/v1/realtime/client_secrets", key, asked).status_code == 403
    (line,) = (line for line in guarded.lines() if (line["code"], line["endpoint"]) == ("forbidden", SECRETS))
    assert line["address"] == "x" * 128 + "…"


def test_a_key_that_is_not_for_a_route_is_named_where_that_is_logged(guarded: Guarded) -> None:
    guarded.ask("GET", "/metrics", guarded.alice)
    told = [line for line in guarded.lines() if line["code"] == "forbidden"]
    assert {"endpoint": "/metrics", "key": "alice", "tenant": "acme"}.items() <= told[0].items()


async def test_the_line_of_a_request_has_the_name_of_its_key(guarded: Guarded) -> None:
    async with client_of(guarded.served.url, additional_headers=guarded.bob) as client:
        stream = await client.start("whose", params={"max_tokens": 2, "ignore_eos": True})
        await stream.rest()
    asked = {"prompt": "Once", "max_tokens": 2, "request_id": "hers"}
    assert guarded.ask("POST", "/v1/completions", guarded.alice, asked).status_code == 200
    lines = [json.loads(line) for line in guarded.served.log().splitlines()]
    keys = {line["request_id"][:5]: line["key"] for line in lines if line["logger"] == "midstream.requests"}
    assert (keys["whose"], keys["hers"]) == ("bob", "alice")


# -- an admin and the streams of others --------------------------------------------------------------


async def test_an_admin_cancels_anybodys_stream_and_does_nothing_else_to_it(guarded: Guarded) -> None:
    async with client_of(guarded.served.url, additional_headers=guarded.alice) as client:
        client.mark = ""
        stream = await client.start("runs on", params={"ignore_eos": True})
        (listed,) = guarded.ask("GET", "/v1/streams", guarded.root).json()["streams"]
        assert (listed["tenant"], listed["request_id"]) == ("acme", "runs on")
        path = f"/v1/streams/{listed['request_id']}/control"
        anybodys = f"{path}?tenant={listed['tenant']}"
        for key, where, frame, status in (
            (guarded.bob, path, "cancel", 404),
            (guarded.bob, anybodys, "cancel", 403),
            (guarded.root, path, "cancel", 404),
            (guarded.root, anybodys, "pause", 403),
            (guarded.root, f"{path}?tenant=nobody", "cancel", 404),
            (guarded.alice, anybodys, "pause", 200),
        ):
            answer = guarded.ask("POST", where, key, {"type": frame})
            assert answer.status_code == status, (where, frame, answer.text)
        answer = guarded.ask("POST", anybodys, guarded.root, {"type": "cancel"})
        assert (answer.status_code, answer.json()["finish_reason"]) == (200, "cancelled")
        assert (await stream.rest())["finish_reason"] == "cancelled"
