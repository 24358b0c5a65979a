"""The starting of a stream: a `start` frame becomes a stream, or a refusal as early as there is a reason.

It knows the server's own limits and asks the quotas about the tenant's. It knows neither the streams that
live nor whoever listens.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from midstream import protocol
from realtime.hub.frame_tokenizing import (
    Opening,
    Tokenized,
    check_tools,
    checked_params,
    opening,
    start_digest,
    text_length,
    tokenize,
)
from realtime.hub.keeping import Keeping
from realtime.hub.listener import Listener
from realtime.hub.registry import LiveStream
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.stream_key import StreamKey
from realtime.hub.stream_record import keep
from realtime.refusal import Refusal
from realtime.stream.context import Context
from realtime.stream.owner import Owner
from realtime.stream.stream import Stream
from realtime.stream.terms import terms_of
from realtime.tenants.quota import Quotas, StreamQuota
from realtime.text.decoded_turn import Turns
from realtime.text.served_model import ServedModel

UNREACHABLE = (".", "..")  # over HTTP: clients take these out of a path


class StreamStarter:
    def __init__(
        self,
        quotas: Quotas,
        choose: Callable[[str, Context, int], ServingEngine | None],
        *,
        window: int,
        max_streams: int,
        max_grace_ms: int,
        max_timeout_ms: int,
        next_number: Callable[[], int],
        wall: Callable[[], float],
    ) -> None:
        """`choose`: the engine for a stream, by its model, its context and its tenant's number.
        `next_number`: for a stream. `wall`: the time that all gateways have."""
        self._quotas = quotas
        self._choose = choose
        self._window = window
        self._max_streams = max_streams
        self._max_grace_ms = max_grace_ms
        self._max_timeout_ms = max_timeout_ms
        self._next_number = next_number
        self._wall = wall

    def check(self, tenant: str, frame: protocol.Start, *, others: int, awaited: int) -> None:
        """Refuse what can be refused before anything is tokenized; `others` are streams that there are, and
        `awaited` those of them of this tenant that are still tokenized."""
        if sum(given is not None for given in (frame.messages, frame.prompt, frame.fork)) != 1:
            raise Refusal("invalid_frame", "A start has one of `messages`, `prompt` and `fork`.")
        if frame.request_id in UNREACHABLE:
            raise Refusal(
                "invalid_frame",
                f'`request_id` is "{frame.request_id}", which clients of HTTP take out of a path: it must be'
                " another.",
            )
        if frame.past is not None and frame.fork is not None:
            raise Refusal(
                "invalid_frame", "`past` is of a stream that has a prompt: a fork has what it forks."
            )
        check_tools(frame)
        _check_limit("grace_ms", frame.grace_ms, self._max_grace_ms)
        _check_limit("timeout_ms", frame.timeout_ms, self._max_timeout_ms)
        if self.is_full(others):
            raise Refusal(
                "overloaded",
                f"The server's limit of {self._max_streams} streams is reached.",
                retry_after_ms=1000,
            )
        self._quotas.check(tenant, frame, awaited)

    def is_full(self, streams: int) -> bool:
        return streams >= self._max_streams

    def timeout_s(self, frame: protocol.Start) -> float:
        """How long a stream may live. None lives for ever, whatever its start says or does not say."""
        return (self._max_timeout_ms if frame.timeout_ms is None else frame.timeout_ms) / 1000

    def make(
        self,
        key: StreamKey,
        frame: protocol.Start,
        tokens: Tokenized | None,
        model: ServedModel,
        listener: Listener,
        now: float,
        parent: Stream | None,
        turns: Turns,
        eta_ms: int | None,
    ) -> LiveStream:
        """`tokens` are the prompt, or all that a stream with tools or a past begins with, where that was
        tokenized before, and `turns` those of it that were decoded here; `parent` is what it forks.
        `eta_ms`: until its model is loaded, if that is known."""
        if parent is not None and frame.fork is not None:
            context = parent.fork(frame.request_id, frame.fork.at, frame.params)
            opening = Opening(context.params, context)
            quota = self._quotas.admit(key.tenant, frame, len(context))
        else:
            opening, quota = self._of_prompt(key.tenant, frame, tokens, model, turns)
            context = opening.context
        try:
            number = tenant_number(key.tenant)
            engine = self._choose(model.name, context, number)
            model = model if engine is None else engine.model
            stream = Stream(
                self._next_number(),
                frame,
                context,
                model=model,
                owner=Owner(number, listener.payer.number),
                window=self._window,
                engine=engine,
                memory=listener.memory,
                now=now,
                eta_ms=eta_ms,
                keeping=self._keeping(key, frame, opening, model, engine, parent),
            )
            return LiveStream(key, stream, start_digest(frame), quota, engine)
        except BaseException:  # it has no place that would be given back at its end
            quota.end()
            raise

    def _keeping(
        self,
        key: StreamKey,
        frame: protocol.Start,
        opening: Opening,
        model: ServedModel,
        engine: ServingEngine | None,
        parent: Stream | None,
    ) -> Keeping | None:
        if engine is not None and not engine.keeps:
            return None
        grace_s = min(terms_of(frame).grace_s, self._max_grace_ms / 1000)
        kept = keep(
            key,
            frame,
            opening,
            grace_s=grace_s,
            deadline=self._wall() + self.timeout_s(frame),
            fingerprint=model.fingerprint,
            waits=engine is None,
            parent=parent,
        )
        if kept is None:
            return None
        prompt_tokens = len(opening.context.prompt)
        return Keeping(kept, self._wall, prompt_tokens=prompt_tokens, waits=engine is None)

    def _of_prompt(
        self,
        tenant: str,
        frame: protocol.Start,
        tokens: Tokenized | None,
        model: ServedModel,
        turns: Turns,
    ) -> tuple[Opening, StreamQuota]:
        known = tokens if tokens is not None else tokenize(frame, model, turns, brief=True) or []
        try:
            if not isinstance(known, Opening):
                known = opening(frame, known, checked_params(frame, known, model), model)
            quota = self._quotas.admit(tenant, frame, len(known))
        except Refusal:
            if text_length(frame):
                self._quotas.count(tenant, len(known))
            raise
        return known, quota


def tenant_number(tenant: str) -> int:
    """By which engines know it, whichever gateway it comes to: they keep what they have computed for one, and
    no other may find it there."""
    return int.from_bytes(blake2b(tenant.encode(), digest_size=8).digest()) >> 1


def _check_limit(field: str, asked_ms: int | None, limit_ms: int) -> None:
    if asked_ms is not None and asked_ms > limit_ms:
        raise Refusal(
            "invalid_params",
            f"`{field}` is {asked_ms}; this server's limit is {limit_ms} (`max_{field}` in `ready.limits`).",
        )
