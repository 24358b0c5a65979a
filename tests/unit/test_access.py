"""Who may do what: every route and every frame has an answer, and tenants are not there for one another."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message
from starlette.websockets import WebSocket

from midstream import protocol
from midstream.protocol import Credit, Params, StreamFrame
from realtime.access.authentication import Credentials
from realtime.access.client_secrets import LIFE_S
from realtime.access.connection_limits import OpenConnections
from realtime.access.key_file import digest
from realtime.access.keyring import Keyring
from realtime.access.revocation import revoke
from realtime.app import Endpoints, application, guarded_routes
from realtime.background_tasks import BackgroundTasks
from realtime.http.guard import Access, Guard
from realtime.hub.listener import Payer
from realtime.hub.observers import Caller
from realtime.hub.starting import tenant_number
from realtime.keys_command import main
from realtime.observability.listing import ListingObserver
from realtime.observability.metrics import Metrics
from realtime.refusal import Refusal
from realtime.stream.stream import Stream
from realtime.tenants.allowance import LOCAL, Holder
from realtime.transport.asgi_websocket_extension import PeerGone
from realtime.websocket.connection import ConnectionLimits
from tests.fakes.checking_client import Reader
from tests.fakes.credentials import credentials, own_secrets
from tests.fakes.simulated_server import Clock, EngineSize, SimulatedServer
from tests.fakes.work_clock import a_millisecond_a_piece

LIMITS = ConnectionLimits(
    max_message_bytes=1024, streams_per_connection=10, auto_credit_window=64, ack_every=16
)
ROOM = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=8)
HOST = "steer.example"
OWN, APP, EVIL = f"https://{HOST}", "https://app.example", "https://evil.example"
LOOPBACK = "http://127.0.0.1:8000"


class Locked:
    """A server's locks: a key file with two tenants, and an admin."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "keys.toml"
        self._capsys = capsys
        self.clock = Clock()
        self.alice, self.bob = self.add("alice"), self.add("bob")
        self.admin = self.add("root", "--admin")
        self.ring = Keyring(self.file)
        self.credentials = Credentials(own_secrets(self.clock), self.ring, (APP,))

    def add(self, *words: str) -> str:
        assert main(["add", *words, "--file", str(self.file)], {}) == 0
        return self._capsys.readouterr().out.strip()

    def revoke(self, name: str) -> None:
        assert main(["revoke", name, "--file", str(self.file)], {}) == 0

    async def upgrade(self, *subprotocols: str, **headers: str) -> Holder:
        return await self.credentials.of_upgrade(Headers({"host": HOST, **headers}), subprotocols)

    async def secret(self, origin: str | None = OWN) -> str:
        holder = await self.credentials.of_request(Headers({"authorization": f"Bearer {self.alice}"}))
        return await self.credentials.secrets.issue(holder, origin)


@pytest.fixture
def locked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Locked:
    return Locked(tmp_path, capsys)


def bearer(key: str) -> str:
    return "bearer." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def app_of(credentials: Credentials) -> ASGIApp:
    return application(endpoints_of(credentials))


def endpoints_of(credentials: Credentials, background: BackgroundTasks | None = None) -> Endpoints:
    metrics = Metrics()
    background = background or BackgroundTasks()
    return Endpoints(
        SimulatedServer(ROOM).hub,
        metrics,
        LIMITS,
        credentials=credentials,
        connections=OpenConnections(10),
        listings=ListingObserver(),
        background=background,
        observer=metrics,
    )


# -- routes ----------------------------------------------------------------------------------------

DECISIONS = {
    "/v1/realtime": Access.HOLDERS,
    "/v1/realtime/client_secrets": Access.HOLDERS,
    "/v1/chat/completions": Access.HOLDERS,
    "/v1/completions": Access.HOLDERS,
    "/v1/models": Access.HOLDERS,
    "/v1/streams": Access.HOLDERS,
    "/v1/models/{model:name}": Access.HOLDERS,
    "/v1/streams/{request_id:name}/control": Access.HOLDERS,
    "/v1/streams/{request_id:name}": Access.HOLDERS,
    "/metrics": Access.METRICS,
    "/asyncapi.json": Access.EVERYBODY,
    "/openapi.json": Access.EVERYBODY,
    "/healthz": Access.EVERYBODY,
    "/readyz": Access.EVERYBODY,
    "/sdk/{path:path}": Access.EVERYBODY,
    "/{path:page}": Access.EVERYBODY,
    "/{path:name}": Access.EVERYBODY,
}


def test_it_was_decided_of_every_route_for_whom_it_is() -> None:
    decided = {}
    for route in guarded_routes(endpoints_of(credentials())):
        guard: Any = getattr(route, "app", None)
        assert isinstance(guard, Guard), f"{route} lets in whoever comes"
        decided[getattr(route, "path", None)] = guard.access
    assert decided == DECISIONS


@pytest.mark.parametrize("path", [path for path, whom in DECISIONS.items() if whom is not Access.EVERYBODY])
def test_nobody_comes_in_without_a_key(locked: Locked, path: str) -> None:
    client = TestClient(app_of(locked.credentials))
    for headers in ({}, {"Authorization": "Bearer ms_wrong"}, {"Authorization": f"Basic {locked.admin}"}):
        answer = _ask(client, path, headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert error["code"] in ("unauthenticated", "invalid_api_key"), "the latter in OpenAI's words"
        assert (error["status"], error["retryable"]) == (401, False)
        assert "ms_" not in answer.text
    assert _ask(client, f"{path}?key={locked.admin}", {}).status_code == 401, "never in a URL"


def _ask(client: TestClient, path: str, headers: dict[str, str]) -> Any:
    if not path.startswith("/v1/realtime") or "client_secrets" in path:
        posted = any(word in path for word in ("secrets", "completions", "control"))
        return client.request("POST" if posted else "GET", path, headers=headers)
    with pytest.raises(Exception) as caught, client.websocket_connect(path, headers=headers):  # noqa: PT011
        pass
    return caught.value


def test_the_servers_numbers_are_for_admins_once_there_are_keys(locked: Locked) -> None:
    client = TestClient(app_of(locked.credentials))
    answers = [
        client.get("/metrics", headers={"Authorization": f"Bearer {key}"})
        for key in (locked.bob, locked.admin)
    ]
    assert [answer.status_code for answer in answers] == [403, 200]
    assert answers[0].json()["error"]["code"] == "forbidden"
    assert TestClient(app_of(credentials()), base_url=LOOPBACK).get("/metrics").status_code == 200


def test_while_the_servers_numbers_are_read_again_and_again_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = TestClient(app_of(credentials()), base_url=LOOPBACK)
    slept = a_millisecond_a_piece(monkeypatch)
    for path, paid in (("/healthz", False), ("/metrics", True)):
        for _ in range(10):
            assert client.get(path).status_code == 200
        assert bool(slept) == paid


# -- ways ------------------------------------------------------------------------------------------

FOR_SOMEBODY = [path for path, whom in DECISIONS.items() if whom is not Access.EVERYBODY]


@pytest.mark.parametrize("path", [path for path, whom in DECISIONS.items() if whom is Access.HOLDERS])
def test_a_key_for_the_metrics_opens_nothing_else(locked: Locked, path: str) -> None:
    client = TestClient(app_of(locked.credentials))
    scraper = {"Authorization": f"Bearer {locked.add('scraper', '--metrics')}"}
    assert client.get("/metrics", headers=scraper).status_code == 200
    answer = _ask(client, path, scraper)
    assert answer.status_code == 403
    assert "/metrics" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", FOR_SOMEBODY)
@pytest.mark.parametrize(
    "said",
    [{"Origin": EVIL}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://["}, {"Origin": "null"}],
    ids=str,
)
def test_a_page_from_elsewhere_reads_and_writes_nothing_with_or_without_keys(
    locked: Locked, path: str, said: dict[str, str]
) -> None:
    for locks in (locked.credentials, credentials()):
        client = TestClient(app_of(locks), base_url=LOOPBACK)
        answer = _ask(client, path, {"Authorization": f"Bearer {locked.admin}", **said})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("path", FOR_SOMEBODY)
@pytest.mark.parametrize(
    "said", [{"Host": "evil.example:8000"}, {"X-Forwarded-For": "198.51.100.7"}], ids=str
)
async def test_without_keys_a_name_that_is_not_known_and_a_proxy_are_refused_and_with_keys_they_are_nothing(
    locked: Locked, path: str, said: dict[str, str]
) -> None:
    answer = _ask(TestClient(app_of(credentials()), base_url=LOOPBACK), path, said)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    await locked.credentials.of_request(Headers({"authorization": f"Bearer {locked.alice}", **_lower(said)}))
    await locked.credentials.of_upgrade(Headers(_lower(said)), [bearer(locked.alice)])


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_come_by_whatever_name_and_way(path: str) -> None:
    client = TestClient(app_of(credentials()), base_url="http://midstream.default.svc:8000")
    answer = client.get(path, headers={"X-Forwarded-For": "10.0.0.1", "Sec-Fetch-Site": "cross-site"})
    assert answer.json()["status"] in ("ok", "ready")


async def test_the_server_is_not_well_while_one_of_its_tasks_is_dead() -> None:
    async def die() -> None:
        raise OSError

    background = BackgroundTasks()
    client = TestClient(application(endpoints_of(credentials(), background)), base_url=LOOPBACK)
    assert client.get("/healthz").status_code == 200
    background.start("the watch", die)
    await asyncio.sleep(0)
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (
        503,
        "the watch has died and is being started anew",
    )
    await background.stop()


@pytest.mark.parametrize("path", DECISIONS)
@pytest.mark.parametrize("name", ["Host", "Origin"])
def test_no_host_and_no_origin_makes_a_route_fail(locked: Locked, path: str, name: str) -> None:
    for locks in (locked.credentials, credentials(), credentials(None, ("http://[",))):
        client = TestClient(app_of(locks), base_url=LOOPBACK)
        for said in ("http://[", "[", "]", "[::1", "a b", "http://[:::]:99999999", "@", ":", "//", "%00"):
            answer = _ask(client, path, {name: said})
            assert answer.status_code != 500


# -- who is there ----------------------------------------------------------------------------------


async def refused(locked: Locked, *subprotocols: str, **headers: str) -> str:
    with pytest.raises(Refusal) as caught:
        await locked.upgrade(*subprotocols, **headers)
    return caught.value.code


async def test_a_key_opens_the_door_as_header_or_subprotocol(locked: Locked) -> None:
    alice = Holder("alice", digest(locked.alice), name="alice")
    assert await locked.upgrade(authorization=f"Bearer {locked.alice}") == alice
    assert await locked.upgrade(authorization=f"bearer {locked.alice}", origin=OWN) == alice
    assert await locked.upgrade("midstream.v1.json", bearer(locked.alice)) == alice
    assert (await locked.upgrade(bearer(locked.bob), origin=APP)).tenant == "bob"


async def test_whatever_is_no_key_does_not(locked: Locked) -> None:
    for shown in (
        "bearer.",
        "bearer.%%%",
        "bearer.w6g",
        "bearer.gA",
        bearer("ms_wrong"),
        "midstream.v1.json",
    ):
        assert await refused(locked, shown) == "unauthenticated"
        assert await refused(locked, shown, origin=OWN) == "unauthenticated"
    assert await refused(locked, bearer(locked.alice), authorization="Bearer wrong") == "unauthenticated"
    assert await refused(locked, bearer(locked.alice), origin=EVIL) == "forbidden"
    locked.revoke("alice")
    assert await refused(locked, bearer(locked.alice)) == "unauthenticated"


async def test_without_keys_everybody_is_local_whatever_they_show() -> None:
    locks = credentials()
    assert await locks.of_upgrade(Headers({"host": "localhost"}), [bearer("any")]) == Holder(LOCAL)
    assert await locks.of_request(Headers({"authorization": "Bearer any"})) == Holder(LOCAL)


async def test_a_secret_opens_the_door_once_to_a_page_of_its_origin(locked: Locked) -> None:
    alice = Holder("alice", digest(locked.alice), name="alice")
    for made_for, page in ((OWN, OWN), (APP, APP), (None, OWN)):
        secret = bearer(await locked.secret(made_for))
        assert await locked.upgrade(secret, origin=page) == alice
        assert await refused(locked, secret, origin=page) == "unauthenticated"


async def test_a_secret_is_worth_nothing_elsewhere_later_or_without_its_key(locked: Locked) -> None:
    assert await refused(locked, bearer(await locked.secret())) == "unauthenticated", (
        "whoever is no page needs a key"
    )
    assert await refused(locked, bearer(await locked.secret(OWN)), origin=APP) == "unauthenticated"
    assert await refused(locked, bearer(await locked.secret(None)), origin=APP) == "unauthenticated"
    assert await refused(locked, authorization=f"Bearer {await locked.secret()}") == "unauthenticated"
    spent = bearer(await locked.secret(OWN))
    assert await refused(locked, spent, origin=APP) == "unauthenticated"
    assert await refused(locked, spent, origin=OWN) == "unauthenticated", "it was shown once, and is spent"
    late = bearer(await locked.secret())
    locked.clock.advance(LIFE_S)
    assert await refused(locked, late, origin=OWN) == "unauthenticated"
    orphan = bearer(await locked.secret())
    locked.revoke("alice")
    assert await refused(locked, orphan, origin=OWN) == "unauthenticated"


async def test_a_secret_is_made_for_the_page_that_was_named_or_asks_or_our_own(locked: Locked) -> None:
    client = TestClient(app_of(locked.credentials), base_url=OWN)
    client.headers["Authorization"] = f"Bearer {locked.alice}"
    for body, asking, page in (
        (b'{"origin": "https://app.example"}', {}, APP),
        (b"", {"Origin": OWN}, OWN),
        (b"{}", {}, OWN),
    ):
        answer = client.post("/v1/realtime/client_secrets", content=body, headers=asking)
        made = answer.json()
        assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
        assert (sorted(made), made["expires_in_s"]) == (["expires_at", "expires_in_s", "secret"], LIFE_S)
        assert (await locked.upgrade(bearer(made["secret"]), origin=page)).tenant == "alice"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"origin": "https://evil.example"}', 403, "forbidden"),
        (b'{"origin": "http://["}', 403, "forbidden"),
        (b'{"origin": 1}', 400, "invalid_frame"),
        (b'{"orign": "https://app.example"}', 400, "invalid_frame"),
        (b"[]", 400, "invalid_frame"),
        (b"{", 400, "invalid_frame"),
        (b"\xff", 400, "invalid_frame"),
        (b" " * 4097, 413, "too_large"),
    ],
)
def test_a_request_for_a_secret_that_is_not_right_is_refused(
    locked: Locked, body: bytes, status: int, code: str
) -> None:
    client = TestClient(app_of(locked.credentials), base_url=OWN)
    headers = {"Authorization": f"Bearer {locked.alice}"}
    answer = client.post("/v1/realtime/client_secrets", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


BODIES = ("/v1/realtime/client_secrets", "/v1/streams/x/control", "/v1/completions", "/v1/chat/completions")


@pytest.mark.parametrize("path", BODIES)
async def test_whoever_goes_away_in_the_middle_of_a_body_makes_no_route_fail(
    locked: Locked, path: str
) -> None:
    came: list[Message] = [
        {"type": "http.request", "body": b'{"origin"', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return came.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError("nobody is there")

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {locked.alice}".encode())],
    }
    await app_of(locked.credentials)(scope, receive, send)
    assert not came


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/streams/x/control", b'{"type": "cancel"}'),
        ("/v1/completions", b'{"prompt": "Once"}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Hello"}]}'),
        ("/v1/realtime/client_secrets", b""),
        ("/v1/models/toy", b'{"do": "load"}'),
    ],
)
async def test_a_key_that_is_revoked_while_a_body_comes_does_nothing(
    locked: Locked, path: str, body: bytes
) -> None:
    key = locked.add("leaver", "--tenant", "alice", "--admin")
    endpoints = endpoints_of(locked.credentials)
    came: list[Message] = [{"type": "http.request", "body": body}]
    statuses = []

    async def receive() -> Message:
        if not came:
            await asyncio.Event().wait()
        locked.revoke("leaver")
        await locked.ring.reload()
        return came.pop()

    async def send(message: Message) -> None:
        statuses.append(message.get("status"))

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {key}".encode())],
    }
    await application(endpoints)(scope, receive, send)
    assert statuses[0] == 401


# -- tenants ---------------------------------------------------------------------------------------

ABOUT: dict[type[protocol.Frame], StreamFrame] = {
    protocol.Grant: protocol.Grant(request_id="x", limit=100),
    protocol.Pause: protocol.Pause(request_id="x"),
    protocol.Resume: protocol.Resume(request_id="x"),
    protocol.Adjust: protocol.Adjust(request_id="x", params=Params(temperature=0)),
    protocol.Inject: protocol.Inject(request_id="x", text="hello"),
    protocol.ToolResult: protocol.ToolResult(request_id="x", call_id="y", content="hello"),
    protocol.Approve: protocol.Approve(request_id="x", call_id="y"),
    protocol.Amend: protocol.Amend(request_id="x", call_id="y", arguments={}),
    protocol.Rewind: protocol.Rewind(request_id="x", to=0),
    protocol.Cancel: protocol.Cancel(request_id="x"),
    protocol.Attach: protocol.Attach(request_id="x", after=-1),
}
# A start makes a stream of one's own (below); `replace` ends connections of one's own (tests/server), and a
# ping is about nothing.
ABOUT_NOBODY_ELSE: set[type[protocol.Frame]] = {protocol.Start, protocol.Replace, protocol.Ping}


def test_it_was_decided_of_every_frame_whose_streams_it_reaches() -> None:
    assert set(get_args(protocol.ClientFrame)) == {*ABOUT, *ABOUT_NOBODY_ELSE}


class Stranger:
    """A listener that knows no stream, and keeps what it is refused."""

    gone = False
    takes_over = True
    caller = Caller("websocket", tenant="stranger")
    number = tenant_number("stranger")

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self.memory = server.hub.accounts.of_listener("stranger")
        self.refusals: list[protocol.Error] = []

    def send(self, frame: StreamFrame) -> None:
        self._server.hub.receive_frame("stranger", frame, self)

    def send_refusal(self, refusal: Refusal, frame: StreamFrame) -> None:
        self.refusals.append(refusal.event(frame.request_id, frame.ref))

    @property
    def payer(self) -> Payer:
        return self

    @property
    def debt_s(self) -> float:
        return 0.0

    def owe(self, work_s: float) -> None:
        pass

    async def pay(self, work_s: float) -> None:
        pytest.fail("it sends no long texts")

    def wake(self, stream: Stream) -> None:
        pytest.fail("a stream of another's has something to say to it")

    def forget(self, stream: Stream) -> None:
        pytest.fail("it never had a stream")

    def lose(self, stream: Stream) -> None:
        pytest.fail("it never had a stream")

    def send_reply(self, event: Any) -> None:
        pytest.fail(f"{event} tells it of a stream of another's")

    def flush(self) -> None:
        pass


def start(**fields: Any) -> protocol.Start:
    prompt = "Once upon a time, there was a model"
    return protocol.Start(request_id="x", prompt=prompt, return_tokens=True, **fields)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("kind", ABOUT)
def test_anothers_stream_is_as_one_that_never_was(kind: type[protocol.Frame], ended: bool) -> None:
    def told(of_another: bool) -> list[protocol.Error]:
        server = SimulatedServer(ROOM)
        if of_another:
            owner = Reader(server, "owner")
            owner.send(start(params=Params(max_tokens=1 if ended else 500, ignore_eos=True)))
            while ended and owner.accounts[0].final is None:
                server.tick()
        stranger = Stranger(server)
        stranger.send(ABOUT[kind])
        server.tick()
        return stranger.refusals

    (error,) = told(of_another=True)
    assert [error] == told(of_another=False)
    assert error.code == "unknown_request"


def test_a_prompt_that_another_tenant_sent_is_found_computed_by_its_own_tenant_only() -> None:
    server = SimulatedServer(ROOM)

    def cached(tenant: str, request_id: str = "x") -> int:
        reader = Reader(server, tenant)
        reader.send(replace(start(params=Params(max_tokens=1)), request_id=request_id))
        while reader.accounts[0].final is None:
            server.tick()
        return reader.accounts[0].final.usage.cached_tokens

    assert cached("a") == 0
    assert cached("b") == 0
    assert cached("a", "again") > 0
    assert cached("b", "again") > 0


async def test_streams_of_a_tenant_whose_last_key_was_revoked_end_and_others_go_on(locked: Locked) -> None:
    server = SimulatedServer(ROOM)
    readers = {tenant: Reader(server, tenant) for tenant in ("alice", "bob")}
    for reader in readers.values():
        reader.send(start(params=Params(ignore_eos=True), credit=Credit(limit=2)))
    server.tick()
    locked.revoke("alice")
    await locked.ring.reload()
    await revoke(locked.ring, OpenConnections(10), server.hub)
    server.tick()
    finals = {tenant: reader.accounts[0].final for tenant, reader in readers.items()}
    assert finals["bob"] is None
    assert finals["alice"] is not None
    assert finals["alice"].finish_reason == "cancelled"


async def test_a_connection_that_fails_to_end_keeps_no_stream_of_a_revoked_key_alive(
    locked: Locked, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise OSError("of the transport")

    server, connections = SimulatedServer(ROOM), OpenConnections(10)
    reader = Reader(server, "alice")
    reader.send(start(params=Params(ignore_eos=True), credit=Credit(limit=2)))
    server.tick()
    connections.open("", Holder("alice", digest(locked.alice))).revoke = fail
    locked.revoke("alice")
    await locked.ring.reload()
    await revoke(locked.ring, connections, server.hub)
    assert "of the transport" in caplog.text
    server.tick()
    assert reader.accounts[0].final is not None


async def test_a_peer_that_has_closed_already_is_no_news_to_the_watch_over_keys(
    locked: Locked, caplog: pytest.LogCaptureFixture
) -> None:
    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        if message["type"] == "websocket.close":
            raise PeerGone("the websocket is closed")

    websocket = WebSocket({"type": "websocket"}, receive, send)
    await websocket.accept()
    connections = OpenConnections(10)
    connections.open("", Holder("alice", digest(locked.alice))).revoke = websocket.close
    locked.revoke("alice")
    await locked.ring.reload()
    await revoke(locked.ring, connections, SimulatedServer(ROOM).hub)
    assert not caplog.records
