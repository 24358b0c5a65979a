"""What pages of other origins may read over HTTP: those of `--allowed-origins` all of it, others nothing."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from realtime.http.cors import shared_with
from realtime.hub.observers import Caller, Observer

APP, EVIL = "https://app.example", "https://evil.example"


async def fail(request: Request) -> Response:
    raise RuntimeError("on purpose")


async def stream(request: Request) -> Response:
    return StreamingResponse(iter([b"data: 1\n\n"]), media_type="text/event-stream")


class Refusals(Observer):
    def __init__(self) -> None:
        self.all: list[tuple[str, Caller]] = []

    def refused(self, code: str, caller: Caller) -> None:
        self.all.append((code, caller))


def client(*origins: str, observer: Observer | None = None) -> TestClient:
    app = Starlette(routes=[Route("/fails", fail), Route("/streams", stream)])
    return TestClient(shared_with(origins, app, observer or Observer()), raise_server_exceptions=False)


def preflight(origin: str, method: str, *headers: str) -> dict[str, str]:
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    return asked | ({"Access-Control-Request-Headers": ", ".join(headers)} if headers else {})


@pytest.mark.parametrize(("path", "status"), [("/streams", 200), ("/fails", 500), ("/nothing", 404)])
def test_an_allowed_page_reads_answers_streams_and_failures(path: str, status: int) -> None:
    answer = client(APP).get(path, headers={"Origin": APP})
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, APP)
    assert answer.headers["Vary"] == "Origin"
    exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"X-Request-Id", "Retry-After", "X-Should-Retry"} <= {*exposed}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_allowed_page_is_told_before_it_asks(method: str) -> None:
    said = ("authorization", "content-type", "last-event-id", "x-stainless-lang")
    answer = client(APP).options("/anywhere", headers=preflight(APP, method, *said))
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, APP)
    assert method in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Headers"] == ", ".join(said)
    assert "Access-Control-Allow-Credentials" not in answer.headers, "there is no cookie to be sent"


@pytest.mark.parametrize("origins", [(), (APP,)])
@pytest.mark.parametrize("origin", [EVIL, "null", "http://[", "https://app.example.evil.example"])
def test_any_other_page_is_not(origins: tuple[str, ...], origin: str) -> None:
    before = client(*origins).options("/streams", headers=preflight(origin, "POST"))
    answer = client(*origins).get("/streams", headers={"Origin": origin})
    assert before.status_code == 400
    assert "Access-Control-Allow-Origin" not in {**before.headers, **answer.headers}


def test_a_preflight_that_is_refused_is_counted_and_no_other() -> None:
    refusals = Refusals()
    asking = client(APP, observer=refusals)
    asking.options("/streams", headers=preflight(APP, "POST"))
    asking.options("/streams", headers={"Origin": EVIL})  # no preflight: the router says no
    asking.options("/streams", headers=preflight(EVIL, "POST"))
    assert refusals.all == [("forbidden", Caller("http", "none", "testclient"))]
