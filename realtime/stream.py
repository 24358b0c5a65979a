"""One stream's life, as a pure state machine: frames and engine news in, events and commands out.

The protocol's rules about a single stream live here and nowhere else. A stream knows its text, its credit,
who still waits for which answer, and how it ended. It does not know who listens, has no clock of its own,
and waits for nothing: events pile up in its outbox, and commands go to whatever `send` is.

Every steering frame is answered once, in the order of the frames: the engine answers its commands in order,
so the frames that wait are a queue. A cancel is answered by `final`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from engine import api
from midstream import protocol
from midstream.protocol import FinishReason, Params, Usage
from realtime.clock import Stopwatch
from realtime.outbox import Outbox, Piece
from realtime.output import Output
from realtime.params import merged, sampling, stops
from realtime.prompts import Model
from realtime.refusal import Refusal

Send = Callable[[api.AnyCommand], None]
Steering = protocol.Pause | protocol.Resume | protocol.Adjust | protocol.Inject | protocol.Rewind


class Asked(Struct):
    """A frame, or its `at`, that waits for the engine's answer."""

    answer: type[api.Change]
    frame: Steering | protocol.Cancel
    step: int  # the engine's last step when it came
    params: Params | None = None
    first: bool = False  # the rewinding that `at` asks for: the frame itself is answered by what follows

    @property
    def kind(self) -> str:
        return type(self.frame).__name__.lower()


class Stream:
    def __init__(
        self,
        number: int,
        start: protocol.Start,
        prompt: list[int],
        params: Params,
        *,
        model: Model,
        tenant: int,
        window: int,
        send: Send,
        now: float,
    ) -> None:
        self.number = number
        self.request_id = start.request_id
        self.automatic = start.credit is None
        self.ended = False
        self.finish_reason: FinishReason = "error"  # means something once it has ended
        self.discarded = 0
        self.output = Output(model.tokenizer, stops(params), params.min_tokens or 0)
        self._prompt_tokens = len(prompt)
        self._cached_tokens = 0
        self._model = model
        self._params = params  # in force
        self._latest = params  # when everything asked for has taken effect
        self._window = window
        self._prefetch = 0 if start.credit is None else start.credit.prefetch
        self._granted = window if start.credit is None else start.credit.limit + start.credit.prefetch
        self._asked: deque[Asked] = deque()
        self._cancelled: Asked | None = None
        self._timed_out = False
        self._due: tuple[FinishReason, str | None] | None = None  # how it ended, while tokens wait for credit
        self._send = send
        self._watch = Stopwatch(now)
        self.outbox = Outbox(
            start.request_id,
            limit=window if start.credit is None else start.credit.limit,
            interval=start.stream_interval,
            tokens=start.return_tokens,
        )
        self.outbox.put(
            protocol.Started(
                request_id=self.request_id,
                ref=start.ref,
                model=model.name,
                prompt_tokens=len(prompt),
                params=params,
            )
        )
        send(
            api.Submit(
                number,
                prompt,
                sampling(params),
                credit=self._granted,
                priority=start.priority,
                tenant=tenant,
            )
        )

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def state(self) -> Literal["queued", "running", "paused", "stalled", "finished"]:
        if self.ended:
            return "finished"
        if self._watch.paused:
            return "paused"
        if not self._watch.admitted:
            return "queued"
        return "stalled" if len(self.output) >= self._granted else "running"

    # -- frames ----------------------------------------------------------------------------------

    def credit(self, limit: int, now: float) -> None:
        """The client is ready for output up to `limit`. Grants never shrink, and none is too late."""
        self.outbox.limit = max(self.outbox.limit, limit)
        self._grant(limit + self._prefetch)
        if self._due and not self.outbox.blocked:
            self._end(*self._due, now)

    def taken(self, index: int) -> None:
        """The peer has taken output up to `index`: automatic credit moves on."""
        if self.automatic:
            self._grant(index + self._window)
            self.outbox.limit = max(self.outbox.limit, index + self._window)

    def steer(self, frame: Steering, step: int) -> None:
        """Ask for something that takes effect at a token. `Inject` comes here as tokens."""
        if self.ended or self._due:
            raise Refusal(
                "request_finished", f"Request {self.request_id} has ended: there is nothing to steer."
            )
        at = frame.to if isinstance(frame, protocol.Rewind) else getattr(frame, "at", None)
        if at is not None and at > self.outbox.sent:
            field = "to" if isinstance(frame, protocol.Rewind) else "at"
            raise Refusal(
                "invalid_params",
                f"`{field}` is {at}, but only {self.outbox.sent} output tokens have been sent: "
                f"it must be an index that has been seen, 0 to {self.outbox.sent}.",
            )
        params = self._checked(frame)
        if at is not None:
            first = not isinstance(frame, protocol.Rewind)
            self._ask(Asked(api.Truncated, frame, step, first=first), api.Truncate(self.number, at))
        match frame:
            case protocol.Pause(kv=kv):
                self._ask(Asked(api.Paused, frame, step), api.Pause(self.number, kv == "release"))
            case protocol.Resume():
                self._ask(Asked(api.Resumed, frame, step), api.Resume(self.number))
            case protocol.Adjust():
                assert params is not None
                self._latest = params
                self._ask(Asked(api.Adjusted, frame, step, params), api.Adjust(self.number, sampling(params)))
            case protocol.Inject(tokens=tokens):
                assert tokens is not None
                self._ask(Asked(api.Appended, frame, step), api.Append(self.number, tokens))

    def cancel(self, now: float, step: int, ref: str | None = None) -> None:
        """End it now; again, or too late, is no mistake."""
        if self._cancelled and ref is None:
            return
        self._cancelled = Asked(api.Change, protocol.Cancel(request_id=self.request_id, ref=ref), step)
        if self._due:
            self._finish(api.Finish("cancelled"), now)
        elif not self.ended:
            self._send(api.Cancel(self.number))

    def forsake(self, now: float, step: int) -> None:
        """Nobody listens any more: what is decoded from now on is not delivered."""
        self.outbox.limit = self.outbox.sent
        self.cancel(now, step)

    def time_out(self, now: float, step: int) -> None:
        self._timed_out = not self._cancelled
        self.cancel(now, step)

    def _checked(self, frame: Steering) -> Params | None:
        if isinstance(frame, protocol.Adjust):
            return merged(self._latest, frame.params, vocab=self._model.vocab)
        if isinstance(frame, protocol.Inject):
            assert frame.tokens is not None
            kept = len(self.output) if frame.at is None else frame.at
            used = self._prompt_tokens + self.output.injected(before=kept) + kept
            if used + len(frame.tokens) >= self._model.context:
                raise _too_long(used, len(frame.tokens), self._model.context)
        return None

    def _ask(self, asked: Asked, command: api.AnyCommand) -> None:
        self._asked.append(asked)
        self._send(command)

    def _grant(self, credit: int) -> None:
        if credit > self._granted and not self.ended:
            self._granted = credit
            self._send(api.Grant(self.number, credit))

    # -- news from the engine --------------------------------------------------------------------

    def hear(self, news: api.News, now: float) -> list[Asked]:
        """Take in a step's news; returns the frames that took effect in it."""
        if self.ended or self._due:
            self.discarded += len(news.tokens)  # decoded before the engine heard that a stop string was met
            return []
        if news.admitted is not None:
            self._cached_tokens = min(news.admitted, self._prompt_tokens)  # not what was injected since
            self._watch.admit(now)
        for change in news.early:
            self._by_memory(change, now)
        for at, token in enumerate(news.tokens):
            self._token(token, news.logprobs[at] if news.logprobs else None, now)
            if self.output.stopped is not None:
                self.discarded += len(news.tokens) - at - 1
                self._send(api.Cancel(self.number))
                self._conclude("stop", self.output.stopped, now)
                return []
        answered = [
            asked for asked in [self._answer(change, now) for change in news.changes] if not asked.first
        ]
        if news.finish is not None:
            self._finish(news.finish, now)
            answered += [self._cancelled] if self._cancelled else []
        return answered

    def lost(self, now: float) -> None:
        """The engine is gone, and what it knew of this stream with it."""
        if not self.ended:
            self._end("error", "the engine failed", now)

    def _token(self, token: int, logprob: api.Logprob | None, now: float) -> None:
        index = len(self.output)
        delta = self.output.add(token)
        told = None if logprob is None else protocol.TokenLogprob(token, logprob.logprob, logprob.top)
        self.outbox.put(Piece(index, delta, token, told))
        self._watch.token(now)

    def _by_memory(self, change: api.AnyChange, now: float) -> None:
        if isinstance(change, api.Paused):
            self._watch.pause(now)
            self.outbox.put(protocol.Paused(request_id=self.request_id, index=change.index, reason="memory"))
        elif isinstance(change, api.Resumed):
            self._watch.resume(now)
            self.outbox.put(
                protocol.Resumed(
                    request_id=self.request_id, index=change.index, recomputed_tokens=change.recomputed
                )
            )

    def _answer(self, change: api.AnyChange, now: float) -> Asked:
        asked = self._asked.popleft()
        ref, request_id, index = None if asked.first else asked.frame.ref, self.request_id, change.index
        match change:
            case api.Refused(known=known, context=context):
                # It fitted when it came; the tokens that were under way took the room.
                assert isinstance(asked.frame, protocol.Inject) and asked.frame.tokens is not None
                refusal = _too_long(known, len(asked.frame.tokens), context)
                self.outbox.put(refusal.event(request_id, ref))
                return asked
            case api.Paused():
                self._watch.pause(now)
                self.outbox.put(protocol.Paused(request_id=request_id, ref=ref, index=index, reason="client"))
            case api.Resumed(recomputed=recomputed):
                self._watch.resume(now)
                self.outbox.put(
                    protocol.Resumed(
                        request_id=request_id, ref=ref, index=index, recomputed_tokens=recomputed
                    )
                )
            case api.Adjusted():
                assert asked.params is not None
                self._params = asked.params
                self.output.set_stop(stops(asked.params), asked.params.min_tokens or 0)
                self.outbox.put(
                    protocol.Adjusted(request_id=request_id, ref=ref, index=index, params=asked.params)
                )
            case api.Appended(count=count):
                self.output.inject(count)
                self.outbox.put(protocol.Injected(request_id=request_id, ref=ref, index=index, count=count))
            case api.Truncated():
                self._cut(index, stops(self._params))
                length = self.output.text_length
                self.outbox.put(
                    protocol.Rewound(request_id=request_id, ref=ref, index=index, text_length=length)
                )
        assert asked.answer is type(change), f"{asked.answer} was due, {change} came"
        return asked

    def _cut(self, index: int, stop: tuple[str, ...]) -> None:
        """Output from `index` on is void."""
        self.outbox.drop_from(index)
        self.discarded += len(self.output) - index
        self.output.cut(index, stop)

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self, finish: api.Finish, now: float) -> None:
        match finish.reason:
            case "eos":
                self._conclude("stop", "eos", now)
            case "length":
                self._conclude("length", None, now)
            case "error":
                self._end("error", finish.detail, now)
            case "cancelled" if self._timed_out:
                self._end("length", "timeout", now)
            case "cancelled":
                self._end("cancelled", None, now)

    def _conclude(self, reason: FinishReason, why: str | None, now: float) -> None:
        """It came to its own end; what was decoded ahead of the client's credit is still to be delivered."""
        if not self.outbox.blocked:
            self._end(reason, why, now)
        elif self._cancelled:
            self._finish(api.Finish("cancelled"), now)
        else:
            self._due = (reason, why)
            self._refuse_asked()

    def _end(self, reason: FinishReason, why: str | None, now: float) -> None:
        """Exactly one `final`, behind everything that the client still gets."""
        self.ended, self._due, self.finish_reason = True, None, reason
        stuck = self.outbox.stuck
        if stuck:
            self._cut(stuck[0].index, stop=())  # nothing that was sent can be taken back any more
        rest = self.output.flush()
        if rest:
            self.outbox.put(Piece(len(self.output), rest, None))
        self._refuse_asked()
        self.outbox.put(
            protocol.Final(
                request_id=self.request_id,
                ref=self._cancelled.frame.ref if self._cancelled else None,
                index=len(self.output),
                finish_reason=reason,
                stop_reason=why,
                usage=self._usage(),
                timing=self._watch.timing(len(self.output), now),
            )
        )

    def _refuse_asked(self) -> None:
        """Frames that came too late for the engine: each is answered once, if it asked for two things too."""
        for asked in self._asked:
            if not asked.first:
                refusal = Refusal(
                    "request_finished", f"Request {self.request_id} ended before this could take effect."
                )
                self.outbox.put(refusal.event(self.request_id, asked.frame.ref))
        self._asked.clear()

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self.output),
            total_tokens=self._prompt_tokens + len(self.output),
            cached_tokens=self._cached_tokens,
            injected_tokens=self.output.injected(),
            discarded_tokens=self.discarded,
        )


def _too_long(used: int, more: int, context: int) -> Refusal:
    return Refusal(
        "context_too_long",
        f"{used} tokens stand and {more} more were to be injected, but the model's context holds {context}, "
        "and one must be left for output.",
    )
