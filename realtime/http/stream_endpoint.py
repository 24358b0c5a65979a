"""`/v1/streams/{request_id}`: any stream of one's own over HTTP, followed as server-sent events, and steered.

Both speak the wire's own words: events as they are on a WebSocket, and one control frame a request. It knows
HTTP and frames; what a frame does is the streams' business.
"""

from __future__ import annotations

import secrets

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from midstream import protocol
from midstream.protocol import MAX_INDEX, StreamFrame
from realtime.codec import Codec
from realtime.http import sse
from realtime.http.guard import answer, holder_of
from realtime.http.listener import Ear, Hearing
from realtime.http.request_io import body_of, named
from realtime.http.sse import SLOW, Patience
from realtime.hub.hub import Hub
from realtime.refusal import Refusal
from realtime.stream.outbox import Told
from realtime.stream.pending_commands import Answer

NO_STEERING = protocol.Start | protocol.Attach

_codec = Codec(None)


class StreamDoor:
    def __init__(self, hub: Hub, most_bytes: int, patience: Patience) -> None:
        self._hub = hub
        self._most_bytes = most_bytes
        self._patience = patience

    async def follow(self, request: Request) -> Response:
        if request.method == "HEAD":
            return Response(
                status_code=405, headers={"Allow": "GET"}
            )  # it would take the stream from its reader
        tenant, request_id = holder_of(request).tenant, request.path_params["request_id"]
        try:
            after = _after(request)
        except Refusal as refusal:
            return answer(refusal)
        return Followed(
            self._hub, tenant, protocol.Attach(request_id=request_id, after=after), self._patience
        )

    async def control(self, request: Request) -> Response:
        tenant, request_id = holder_of(request).tenant, request.path_params["request_id"]
        try:
            frame = _frame(await body_of(request, self._most_bytes), request_id)
        except Refusal as refusal:
            return answer(refusal)
        except ClientDisconnect:
            return Response()  # to nobody
        return Steered(self._hub, tenant, frame)


def routes(hub: Hub, most_bytes: int, patience: Patience) -> list[Route]:
    door = StreamDoor(hub, most_bytes, patience)
    return [
        Route("/v1/streams/{request_id:name}/control", door.control, methods=["POST"]),
        Route("/v1/streams/{request_id:name}", door.follow),
    ]


def _after(request: Request) -> int:
    """A browser's EventSource that comes again says by itself what it has; its URL is still the first."""
    said = request.headers.get("last-event-id") or request.query_params.get("after", "-1")
    if not (
        said == "-1" or (said.isascii() and said.isdigit() and len(said) <= 10 and int(said) <= MAX_INDEX)
    ):
        raise Refusal(
            "invalid_params", "`after` must be the `seq` of the last event that you have, or -1 for none."
        )
    return int(said)


def _frame(body: bytes, request_id: str) -> StreamFrame:
    """One control frame; its `request_id` may be left out, as the path says it."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refusal("invalid_frame", "The body is not valid JSON.") from None
    if not isinstance(said, dict):
        raise Refusal("invalid_frame", "The body must be one control frame: a JSON object with a `type`.")
    if said.setdefault("request_id", request_id) != request_id:
        raise Refusal("invalid_frame", "`request_id` is another one in the body than in the path.")
    frame = _codec.decode(msgspec.json.encode(said))
    if isinstance(frame, NO_STEERING | protocol.Ping | protocol.Replace):
        raise Refusal("invalid_frame", "`type` must be that of a frame that steers a stream.")
    return frame


class Steered(Response):
    """What answers a frame, when that is known."""

    def __init__(self, hub: Hub, tenant: str, frame: StreamFrame) -> None:
        super().__init__()
        self._hub = hub
        self._tenant = tenant
        self._frame = frame

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ear = Ear(self._hub, keeps=False)
        async with sse.watched(receive, ear.leave):
            answered = self._is_answered()
            # A ref of our own: those of other connections are not known here.
            self._hub.receive(self._tenant, replace(self._frame, ref=secrets.token_hex(8)), ear)
            while answered and not (ear.answered or ear.failure or ear.gone):
                await ear.news()
        await _response(ear, self._frame)(scope, receive, send)

    def _is_answered(self) -> bool:
        """Grants never are, nor is the cancelling of what has ended."""
        if isinstance(self._frame, protocol.Cancel):
            return self._hub.runs(self._tenant, self._frame.request_id)
        return not isinstance(self._frame, protocol.Grant)


def _response(ear: Ear, frame: StreamFrame) -> Response:
    headers = named(frame.request_id)
    if ear.failure is not None:
        return answer(ear.failure)
    if ear.answered is None:
        return Response(status_code=204, headers=headers)
    event: Answer = replace(ear.answered, ref=frame.ref)
    if isinstance(event, protocol.Error):
        return answer(Refusal(event.code, event.message, retry_after_ms=event.retry_after_ms))
    return Response(_codec.encode(event), media_type="application/json", headers=headers)


class Followed(Response):
    """A stream's events, from one that the reader names, to its end."""

    def __init__(self, hub: Hub, tenant: str, attach: protocol.Attach, patience: Patience) -> None:
        super().__init__()
        self._hub = hub
        self._tenant = tenant
        self._attach = attach
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ear = Ear(self._hub, keeps=True)
        following = Following(ear)
        async with sse.watched(receive, ear.leave):
            self._hub.receive(self._tenant, self._attach, ear)
            while not (ear.failure or ear.waiting or ear.gone):
                await ear.news()
            if ear.failure is None and following.begin():
                await sse.tell(following, send, named(self._attach.request_id), self._patience)
                return
        # 204 tells an EventSource that has had all of it to come no more.
        none = Response(status_code=204) if ear.failure is None else answer(ear.failure)
        await none(scope, receive, send)


class Following(Hearing):
    """A stream's events as the wire has them, each under its `seq`."""

    def __init__(self, ear: Ear) -> None:
        super().__init__(ear)
        self._said = b""

    def begin(self) -> bool:
        """Whether there is anything to say to this reader, now or later."""
        missed = self._take()
        return not self._ended or any(isinstance(told, protocol.StreamEvent) for told in missed)

    def take(self) -> bytes:
        self._take()
        if self._ear.failure is not None:
            self._ended = True
            self._said += _event(self._ear.failure.event())
        said, self._said = self._said, b""
        return said

    def excuse(self) -> bytes:
        return _event(SLOW.event())

    def _take(self) -> list[Told]:
        taken = self._ear.take()
        told = [event for _, events in taken for event in events]
        self._said += b"".join(map(_event, told))
        self._ended = self._ended or any(stream.all_told for stream, _ in taken)
        return told


def _event(told: Told) -> bytes:
    seq = told.seq if isinstance(told, protocol.StreamEvent) and isinstance(told.seq, int) else None
    return sse.event(_codec.encode(told), seq)
