"""The endpoints of one stream, `/v1/streams/{request_id}`: followed as server-sent events, and steered.

Both speak the protocol: events as they are on a WebSocket, and one control frame a request. It knows
HTTP and frames; what a frame does is the streams' business.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from midstream import protocol
from midstream.protocol import MAX_INDEX, StreamFrame
from realtime.access.authentication import Credentials
from realtime.access.connection_limits import OpenConnections
from realtime.codec import UNREADABLE, Codec
from realtime.http import sse
from realtime.http.bodies_and_headers import fields_of, query_of, read_body, request_id_header
from realtime.http.guard import caller_of, holder_of, refusal_response
from realtime.http.held_bodies import SMALL, held_body, holding_bodies
from realtime.http.listener import HttpListener, ListenerSource
from realtime.http.long_lived_routes import ends_with_its_key, lasting
from realtime.http.request_work import RequestWork
from realtime.http.sse import TOO_SLOW, SseTimeouts
from realtime.hub.frame_tokenizing import text_length
from realtime.hub.hub import Hub
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Reply
from realtime.tenants.allowance import Holder
from realtime.work_budget import steering_s
from realtime.work_ledger import PayerWork

NOT_STEERING = protocol.Start | protocol.Attach
# Of the last event for a reader whose stream has ended, or is another's now. A `seq` would not tell that
# it has had all of it wherever it comes again: whoever takes a stream over counts its events anew.
ENDED_ID, TAKEN_ID = "ended", "taken"
TAKEN = Refusal("request_taken", "Somebody else reads this stream: a POST to the same path takes it over.")
NOT_HERE = Refusal(
    "unknown_request",
    "There is no such request here. Where several servers share engines, a POST to the same path takes over "
    "one that is at another.",
)

_codec = Codec(None)


class _Kind(msgspec.Struct):
    """Of a frame, and nothing else of it."""

    type: str = ""


class StreamEndpoint:
    def __init__(
        self,
        hub: Hub,
        credentials: Credentials,
        work: RequestWork,
        most_bytes: int,
        timeouts: SseTimeouts,
    ) -> None:
        self._hub = hub
        self._credentials = credentials
        self._work = work
        self._most_bytes = most_bytes
        self._timeouts = timeouts

    async def follow(self, request: Request) -> Response:
        if request.headers.get("last-event-id") in (ENDED_ID, TAKEN_ID):
            return Response(status_code=204)  # an EventSource comes again by itself, and would take it back
        name, after, takes_over = request.path_params["request_id"], _after(request), _takes_over(request)
        if not takes_over:
            self._credentials.check_page(request.headers)
        attach = _codec.decode(msgspec.json.encode(protocol.Attach(request_id=name, after=after)))
        assert isinstance(attach, protocol.Attach)
        caller = caller_of(request)
        work = self._work.of(caller)
        listener = HttpListener(self._hub, caller, work, keeps_events=True, takes_over=takes_over)
        return FollowResponse(self._hub, holder_of(request).tenant, attach, listener, work, self._timeouts)

    async def control(self, request: Request) -> Response:
        body = await read_body(request, self._most_bytes, held_body(request.scope).grow)
        work = self._work.of(caller_of(request))
        waiting = partial(self._work.waiting, work, is_stop=_is_stop(body))

        def said() -> Response:
            frame, holder = read_frame(body, request.path_params["request_id"]), holder_of(request)
            tenant = query_of(request, "tenant").get("tenant") or holder.tenant
            self._credentials.check_held(holder)
            self._check_tenant(tenant, holder, frame)
            listener = HttpListener(self._hub, caller_of(request), work, keeps_events=False)
            return ControlResponse(self._hub, tenant, frame, listener, waiting)

        with waiting():
            return await self._work.response(request, said)

    def _check_tenant(self, tenant: str, holder: Holder, frame: StreamFrame) -> None:
        """An admin may end what another tenant runs, and neither change it nor hear what it says."""
        if tenant == holder.tenant:
            return
        if not self._credentials.are_admins(holder):
            raise Refusal("forbidden", "Streams of other tenants are for an admin's key: leave out `tenant`.")
        if not isinstance(frame, protocol.Cancel):
            raise Refusal("forbidden", "A stream of another tenant can be sent a `cancel`, and nothing else.")


def routes(
    hub: Hub,
    credentials: Credentials,
    connections: OpenConnections,
    work: RequestWork,
    most_bytes: int,
    timeouts: SseTimeouts,
) -> list[Route | WebSocketRoute]:
    endpoint = StreamEndpoint(hub, credentials, work, most_bytes, timeouts)
    follow = Route("/v1/streams/{request_id:name}", endpoint.follow, methods=["GET", "POST"])
    (follow.methods or set()).discard("HEAD")  # which goes with GET elsewhere: here it would begin to follow
    return [
        holding_bodies(
            most_bytes, Route("/v1/streams/{request_id:name}/control", endpoint.control, methods=["POST"])
        ),
        *lasting(connections, follow),
    ]


def _takes_over(request: Request) -> bool:
    """Pages of other sites can have a browser GET anything, as an image, but neither POST unseen nor say what
    they had last. An EventSource that comes again does: it may not be known here yet that it was cut off."""
    return request.method == "POST" or bool(request.headers.get("last-event-id"))


def _after(request: Request) -> int:
    """A browser's EventSource that comes again says by itself what it has; its URL is still the first."""
    query = query_of(request, "after")
    said = request.headers.get("last-event-id") or query.get("after", "-1")
    if not (
        said == "-1" or (said.isascii() and said.isdigit() and len(said) <= 10 and int(said) <= MAX_INDEX)
    ):
        raise Refusal(
            "invalid_params", "`after` must be the `seq` of the last event that you have, or -1 for none."
        )
    return int(said)


def _is_stop(body: bytes) -> bool:
    """Whether it says so, as is seen in microseconds: a stop is never refused for how much else was asked,
    also before it is its turn to be read."""
    with suppress(*UNREADABLE):
        return len(body) <= SMALL and msgspec.json.decode(body, type=_Kind).type == "cancel"
    return False


def read_frame(body: bytes, request_id: str) -> StreamFrame:
    """One control frame; its `request_id` may be left out, as the path says it."""
    said = fields_of(body)
    if "request_id" in said and not _is(said["request_id"], request_id):
        raise Refusal("invalid_frame", "`request_id` is another one in the body than in the path.")
    frame = _codec.decode(msgspec.json.encode(said | {"request_id": request_id}))
    if isinstance(frame, NOT_STEERING | protocol.Ping | protocol.Replace):
        raise Refusal("invalid_frame", "`type` must be that of a frame that steers a stream.")
    return frame


def _is(value: Raw, text: str) -> bool:
    with suppress(msgspec.ValidationError):
        return msgspec.json.decode(value, type=str) == text
    return False


class ControlResponse(Response):
    """What answers a frame, when that is known."""

    def __init__(
        self,
        hub: Hub,
        tenant: str,
        frame: StreamFrame,
        listener: HttpListener,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`waiting`: as one of those of its payer, which are so many at most."""
        super().__init__()
        self._hub = hub
        self._tenant = tenant
        self._frame = frame
        self._listener = listener
        self._waiting = waiting
        self._unanswered = False  # it has been acted on, and no answer will come

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listener = self._listener
        try:
            with self._waiting():
                await self._wait(receive, listener)
        except Refusal as refusal:
            await refusal_response(refusal)(scope, receive, send)
        else:
            await _response(listener, self._frame)(scope, receive, send)

    async def _wait(self, receive: Receive, listener: HttpListener) -> None:
        async with sse.watched_for_disconnect(receive, listener.leave):
            await listener.payer.do(self._say, steering_s(text_length(self._frame)))
            while not (self._unanswered or listener.reply or listener.failure or listener.gone):
                await listener.wait_for_news()

    def _say(self) -> None:
        # A ref of our own: those of other connections are not known here.
        frame = replace(self._frame, ref=secrets.token_hex(8))
        self._hub.receive_frame(self._tenant, frame, self._listener, self._acted)

    def _acted(self) -> None:
        """Grants are never answered, nor is the cancelling of what has ended."""
        match self._frame:
            case protocol.Grant():
                self._unanswered = True
            case protocol.Cancel(request_id=request_id):
                self._unanswered = not self._hub.is_live(self._tenant, request_id)
        self._listener.flush()


def _response(listener: HttpListener, frame: StreamFrame) -> Response:
    headers = request_id_header(frame.request_id)
    if listener.failure is not None:
        return refusal_response(listener.failure)
    if listener.reply is None:
        return Response(status_code=204, headers=headers)
    event: Reply = replace(listener.reply, ref=frame.ref)
    if isinstance(event, protocol.Error):
        return refusal_response(Refusal(event.code, event.message, retry_after_ms=event.retry_after_ms))
    return Response(_codec.encode(event), media_type="application/json", headers=headers)


class FollowResponse(Response):
    """A stream's events, from one that the reader names, to its end."""

    def __init__(
        self,
        hub: Hub,
        tenant: str,
        attach: protocol.Attach,
        listener: HttpListener,
        work: PayerWork,
        timeouts: SseTimeouts,
    ) -> None:
        super().__init__()
        self._hub = hub
        self._tenant = tenant
        self._attach = attach
        self._listener = listener
        self._work = work
        self._timeouts = timeouts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        listener = self._listener
        ends_with_its_key(scope, listener.revoke)
        following = FollowSource(listener)
        async with sse.watched_for_disconnect(receive, listener.leave):
            await self._work.do(lambda: self._hub.receive_frame(self._tenant, self._attach, listener))
            while not (listener.failure or listener.waiting or listener.gone):
                await listener.wait_for_news()
            if listener.failure is None and await self._work.do(following.begin):
                await sse.stream_events(
                    following, send, request_id_header(self._attach.request_id), self._timeouts
                )
                return
        # 204 tells an EventSource that has had all of it to come no more.
        none = Response(status_code=204) if listener.failure is None else _refused(listener.failure, listener)
        await none(scope, receive, send)


def _refused(refusal: Refusal, listener: HttpListener) -> Response:
    if refusal.code == TAKEN.code:
        refusal = TAKEN
    elif refusal.code == NOT_HERE.code and not listener.takes_over:
        refusal = NOT_HERE
    return refusal_response(refusal)


class FollowSource(ListenerSource):
    """A stream's events as the protocol has them, each under its `seq`."""

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self._unsent = b""

    def begin(self) -> bool:
        """Whether there is anything to say to this reader, now or later."""
        missed = self._take()
        return not self._ended or any(isinstance(event, protocol.StreamEvent) for event in missed)

    async def take(self) -> bytes:
        self._take()
        if self._listener.failure is not None:
            self._ended = True
            taken = self._listener.failure.code == TAKEN.code
            self._unsent += _event(self._listener.failure.event(), TAKEN_ID if taken else None)
        said, self._unsent = self._unsent, b""
        return said

    def too_slow_event(self) -> bytes:
        return _event(TOO_SLOW.event())

    def _take(self) -> list[OutgoingEvent]:
        taken = self._listener.take()
        event = [event for _, events in taken for event in events]
        self._unsent += b"".join(map(_event, event))
        self._ended = self._ended or any(stream.all_delivered for stream, _ in taken)
        return event


def _event(event: OutgoingEvent, event_id: int | str | None = None) -> bytes:
    if isinstance(event, protocol.Final):
        event_id = ENDED_ID
    elif isinstance(event, protocol.StreamEvent) and isinstance(event.seq, int):
        event_id = event.seq
    return sse.format_event(_codec.encode(event), event_id)
