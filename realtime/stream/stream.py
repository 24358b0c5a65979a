"""One stream's life, as a pure state machine: frames and engine news in, events and commands out.

The protocol's rules about a single stream live here and nowhere else. A stream knows its text, its credit,
who still waits for which answer, and how it ended. It does not know who listens, has no clock of its own,
and waits for nothing: events pile up in its outbox, and commands go to whatever `send` is.

Every steering frame is answered once, in the order of the frames: the engine answers its commands in order,
so the frames that wait are a queue. A cancel is answered by `final`.

A stream outlives its listener and its engine. To a new listener it repeats what was missed; for a new engine
it is its own record: prompt, output, and what was asked and not answered.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import FinishReason, Params, PauseReason, Usage
from realtime.refusal import Refusal
from realtime.stream.engine_commands import Steering, asked_of_the_engine, check_index, too_long
from realtime.stream.outbox import Outbox, Piece
from realtime.stream.output import Output
from realtime.stream.params import merged, sampling, stops
from realtime.stream.pending_commands import Answer, Asked, Hear, Orders
from realtime.stream.states import State
from realtime.stream.stopwatch import Stopwatch
from realtime.text.served_model import ServedModel

GRACE_MS = 30_000  # that a stream waits for somebody to attach
STREAM_BYTES, TOKEN_BYTES = 4096, 12  # as measured; a token is an id and the end of its text


class Stream:
    def __init__(
        self,
        number: int,
        start: protocol.Start,
        prompt: list[int],
        params: Params,
        *,
        model: ServedModel,
        tenant: int,
        window: int,
        send: Callable[[api.AnyCommand], None],
        now: float,
    ) -> None:
        self.number = number
        self.request_id = start.request_id
        self.automatic = start.credit is None
        self.on_disconnect = start.on_disconnect
        self.grace_s = (GRACE_MS if start.grace_ms is None else start.grace_ms) / 1000
        self.ended = False
        self.final: protocol.Final | None = None  # there is one once it has ended
        self.discarded = 0
        self.output = Output(model.tokenizer, stops(params), params.min_tokens or 0)
        self._prompt = array("i", prompt)
        self._cached_tokens = 0
        self._model = model
        self._priority = start.priority
        self._tenant = tenant
        self._params = params  # in force
        self._latest = params  # when everything asked for has taken effect
        self._window = window
        self._prefetch = 0 if start.credit is None else start.credit.prefetch
        granted = window if start.credit is None else start.credit.limit + start.credit.prefetch
        self._orders = Orders(number, granted, send)
        self._told_the_end: list[tuple[str, Hear]] = []  # who else cancelled, each with a ref
        self._cancelled: Asked | None = None
        self._cause: tuple[FinishReason, str | None] = ("cancelled", None)  # how a cancel ends it
        self._paused: PauseReason | None = None  # in force
        self._held = False  # what the client asked for last: pause, or resume
        self._detached = False  # paused by us, until somebody attaches
        self._due: tuple[FinishReason, str | None] | None = None  # how it ended, while tokens wait for credit
        self._watch = Stopwatch(now)
        self.outbox = Outbox(
            start.request_id,
            limit=window if start.credit is None else start.credit.limit,
            interval=start.stream_interval,
            tokens=start.return_tokens,
        )
        self._say(
            protocol.Started(
                request_id=self.request_id,
                ref=start.ref,
                model=model.name,
                prompt_tokens=len(prompt),
                params=params,
            )
        )
        self.submit()

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def all_told(self) -> bool:
        """Whether it has ended, and its listener has been given all of it."""
        return self.ended and not self.outbox.waiting

    @property
    def state(self) -> State:
        """What is seen of it from outside; `realtime.stream.states` says which state may follow which."""
        if self.ended:
            return "finished"
        if self._paused:
            return "paused"
        if not self._watch.admitted:
            return "queued"
        return "running" if self.wants_tokens else "stalled"

    @property
    def paused(self) -> PauseReason | None:
        return self._paused

    @property
    def wants_tokens(self) -> bool:
        """Whether it lacks nothing but the engine's time."""
        held = self._paused in ("client", "detached")
        return not (self.ended or self._due or held) and len(self.output) < self._orders.granted

    @property
    def costs(self) -> bool:
        """Whether a new engine has something to compute for it: without credit, only its first prompt."""
        held = self.concluding or self._paused in ("client", "detached")
        first = not len(self.output) and self.prompt_tokens > 1
        return not held and (first or self.wants_tokens)

    @property
    def stalled(self) -> bool:
        """Whether it lacks credit; perhaps not that alone."""
        return len(self.output) >= self._orders.granted

    @property
    def concluding(self) -> bool:
        """Whether it has come to its own end: no engine need know it any more."""
        return self.ended or self._due is not None

    @property
    def decoded(self) -> int:
        """Output tokens that were made for it, whatever became of them."""
        return len(self.output) + self.discarded

    @property
    def bytes(self) -> int:
        """About how much memory it takes here: its tokens, and the events that may be asked for again."""
        return STREAM_BYTES + TOKEN_BYTES * (self.prompt_tokens + len(self.output)) + self.outbox.bytes

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt)

    # -- frames ----------------------------------------------------------------------------------

    def credit(self, limit: int, now: float) -> None:
        """The client is ready for output up to `limit`. Grants never shrink, and none is too late."""
        self.outbox.limit = max(self.outbox.limit, limit)
        if not self.ended:
            self._orders.grant(limit + self._prefetch)
        if self._due and not self.outbox.blocked:
            self._end(*self._due, now)

    def taken(self, index: int, seq: int) -> None:
        """The peer has taken output up to `index`, and events up to `seq`: automatic credit moves on."""
        self.outbox.read(seq)
        if self.automatic and not self.ended:
            self._orders.grant(index + self._window)
            self.outbox.limit = max(self.outbox.limit, index + self._window)

    def steer(self, frame: Steering, step: int, now: float, hear: Hear | None = None) -> None:
        """Ask for something that takes effect at a token. `Inject` comes as tokens; `hear` is for whoever
        asks and does not listen."""
        if self.ended or self._due:
            raise Refusal(
                "request_finished", f"Request {self.request_id} has ended: there is nothing to steer."
            )
        check_index(frame, self.outbox.sent)
        params = self._checked(frame)
        match frame:
            case protocol.Pause():
                self._held, self._detached = True, False
            case protocol.Resume():
                self._held = self._detached = False
            case protocol.Adjust():
                assert params is not None
                self._latest = params
        commands = asked_of_the_engine(self.number, frame, params)
        for command in commands:
            first = command is not commands[-1]
            self._orders.ask(Asked(command, frame, step, params, came_s=now, first=first, hear=hear))

    def cancel(self, now: float, step: int, ref: str | None = None, hear: Hear | None = None) -> None:
        """End it now; again, or too late, is no mistake."""
        if hear is not None and ref is not None:
            self._told_the_end.append((ref, hear))
            ref = None
        if self.ended or (self._cancelled and ref is None):
            return
        frame = protocol.Cancel(request_id=self.request_id, ref=ref)
        self._cancelled = Asked(api.Cancel(self.number), frame, step, came_s=now)
        if self._due or not self._orders.known:
            self._finish(api.Finish("cancelled"), now)
        else:
            self._orders.tell(self._cancelled.command)

    def time_out(self, now: float, step: int) -> None:
        if not self._cancelled:
            self._cause = ("length", "timeout")
        self.cancel(now, step)

    # -- listeners -------------------------------------------------------------------------------

    def detach(self, now: float, step: int) -> None:
        """Nobody listens any more."""
        self.outbox.forget_repeats()
        if self.on_disconnect == "cancel":
            self.forsake(now, step)
        elif self.on_disconnect == "pause" and not (self._held or self._detached or self.ended or self._due):
            self._detached = True
            self._orders.ask(Asked(api.Pause(self.number), None, step))

    def forsake(self, now: float, step: int) -> None:
        """Nobody will come back: what is decoded from now on is not delivered. What has ended stays so."""
        if self.ended:
            return
        if not self._cancelled:
            self._cause = ("cancelled", "detached")
        self.outbox.limit = self.outbox.sent
        self.cancel(now, step)

    def attach(self, after: int, step: int, ref: str | None = None, *, anew: bool = True) -> None:
        """Somebody listens, `anew` or again, and has all events up to `after`: the others come again."""
        last = self.outbox.seq - 1
        if after > last:
            raise Refusal(
                "invalid_params", f"`after` is {after}, but the last event of the stream so far is {last}."
            )
        if anew:
            self.outbox.forget_repeats()
        missed = self.outbox.since(after)
        if missed is None:
            missed = self.outbox.stand_in(self._snapshot())
        attached = protocol.Attached(request_id=self.request_id, pending=self._pending(), ref=ref)
        self.outbox.repeat([*missed, attached])
        if self._detached:
            self._detached = False
            self._orders.ask(Asked(api.Resume(self.number), None, step))

    def _pending(self) -> list[str]:
        """Refs of frames whose answers are still to come."""
        asked = [*self._orders] if self._cancelled is None or self.ended else [*self._orders, self._cancelled]
        return [one.ref for one in asked if one.ref is not None] + self.outbox.refs

    def _snapshot(self) -> protocol.Snapshot:
        count = self.outbox.sent
        return protocol.Snapshot(
            request_id=self.request_id,
            index=count,
            text=self.output.text(count, flushed=self.outbox.concluded),
            tokens=list(self.output.tokens[:count]) if self.outbox.shows_tokens else None,
            model=self._model.name,
            prompt_tokens=self.prompt_tokens,
            params=self._params,
            paused=self.outbox.paused,
        )

    # -- engines ---------------------------------------------------------------------------------

    def submit(self) -> None:
        """To an engine that does not know it: all that stands, and what was asked and not answered."""
        self._orders.submit(
            api.Submit(
                self.number,
                [*self._prompt, *self.output.context()],
                sampling(self._params),
                credit=self._orders.granted,
                priority=self._priority,
                tenant=self._tenant,
                prompt=self.prompt_tokens,
                injections=[(index, len(tokens)) for index, tokens in self.output.injections],
                paused=self._paused in ("client", "detached"),
            )
        )

    def lose_engine(self, now: float) -> None:
        """The engine is gone, and what it knew of this stream with it. Another will have it anew."""
        self._orders.known = False
        if self._cancelled and not self.ended:
            self._finish(api.Finish("cancelled"), now)
        elif self.wants_tokens and self._paused is None and self._watch.admitted:
            self._pause("engine", len(self.output), now)
        elif self._paused == "memory":
            self._paused = "engine"  # what it waits for now; it knows already that it waits

    def fail(self, why: str, now: float) -> None:
        if not self.ended:
            self._end("error", why, now)

    def _checked(self, frame: Steering) -> Params | None:
        if isinstance(frame, protocol.Adjust):
            return merged(self._latest, frame.params, vocab=self._model.vocab)
        if isinstance(frame, protocol.Inject):
            assert frame.tokens is not None
            kept = len(self.output) if frame.at is None else frame.at
            used = self.prompt_tokens + self.output.injected(before=kept) + kept
            if used + len(frame.tokens) >= self._model.context:
                raise too_long(used, len(frame.tokens), self._model.context)
        return None

    # -- news from the engine --------------------------------------------------------------------

    def hear(self, news: api.News, now: float) -> list[Asked]:
        """Take in a step's news; returns the frames that took effect in it."""
        if self.ended or self._due:
            self.discarded += len(news.tokens)  # decoded before the engine heard that a stop string was met
            return []
        if news.admitted is not None:
            self._admit(news.admitted, now)
        for change in news.early:
            self._by_memory(change, now)
        for at, token in enumerate(news.tokens):
            self._token(token, news.logprobs[at] if news.logprobs else None, now)
            if self.output.stopped is not None:
                self.discarded += len(news.tokens) - at - 1
                self._orders.tell(api.Cancel(self.number))
                self._conclude("stop", self.output.stopped, now)
                return []
        asked = [self._answer(change, now) for change in news.changes]
        answered = [one for one in asked if one.owed]
        if news.finish is not None:
            self._finish(news.finish, now)
            answered += [self._cancelled] if self._cancelled else []
        return answered

    def _admit(self, found: int, now: float) -> None:
        """It runs for the first time: in its life, or in this engine, which found so much computed."""
        if not self._watch.admitted:
            self._cached_tokens = min(found, self.prompt_tokens)  # not what was injected since
            self._watch.admit(now)
        if self._paused == "engine":
            known = self.prompt_tokens + len(self.output) + self.output.injected()
            self._resume(len(self.output), known - 1 - found, now)

    def _token(self, token: int, logprob: api.Logprob | None, now: float) -> None:
        index = len(self.output)
        delta = self.output.add(token)
        told = None if logprob is None else protocol.TokenLogprob(token, logprob.logprob, logprob.top)
        self.outbox.put(Piece(index, delta, token, told))
        self._watch.token(now)

    def _by_memory(self, change: api.AnyChange, now: float) -> None:
        if isinstance(change, api.Paused):
            self._pause("memory", change.index, now)
        elif isinstance(change, api.Resumed):
            self._resume(change.index, change.recomputed, now)

    def _pause(self, reason: PauseReason, index: int, now: float, asked: Asked | None = None) -> None:
        self._paused = reason
        self._watch.pause(now)
        ref = None if asked is None else asked.ref
        self._say(protocol.Paused(request_id=self.request_id, ref=ref, index=index, reason=reason), asked)

    def _resume(self, index: int, recomputed: int, now: float, asked: Asked | None = None) -> None:
        self._paused = None
        self._watch.resume(now)
        ref = None if asked is None else asked.ref
        self._say(
            protocol.Resumed(request_id=self.request_id, ref=ref, index=index, recomputed_tokens=recomputed),
            asked,
        )

    def _say(self, event: Answer, asked: Asked | None = None) -> None:
        elsewhere = asked.hear if asked is not None and asked.owed else None
        if elsewhere is not None:
            elsewhere(replace(event))
        if elsewhere is None or not isinstance(event, protocol.Error):  # mistakes concern whoever made them
            self.outbox.put(event)

    def _answer(self, change: api.AnyChange, now: float) -> Asked:
        asked = self._orders.answered()
        ref, request_id, index = asked.ref, self.request_id, change.index
        event: Answer
        match asked.command, change:
            case api.Pause(), api.Paused():
                self._pause("client" if asked.frame else "detached", index, now, asked)
                return asked
            case api.Resume(), api.Resumed(recomputed=recomputed):
                self._resume(index, recomputed, now, asked)
                return asked
            case api.Append(tokens=tokens), api.Refused(known=known, context=context):
                # It fitted when it came; the tokens that were under way took the room.
                event = too_long(known, len(tokens), context).event(request_id, ref)
            case api.Append(tokens=tokens), api.Appended(count=count):
                self.output.inject(tokens)
                event = protocol.Injected(request_id=request_id, ref=ref, index=index, count=count)
            case api.Adjust(), api.Adjusted():
                assert asked.params is not None
                self._params = asked.params
                self.output.set_stop(stops(asked.params), asked.params.min_tokens or 0)
                event = protocol.Adjusted(request_id=request_id, ref=ref, index=index, params=asked.params)
            case api.Truncate(), api.Truncated():
                self._cut(index, stops(self._params))
                length = self.output.text_length
                event = protocol.Rewound(request_id=request_id, ref=ref, index=index, text_length=length)
            case unexpected:
                raise AssertionError(f"not an answer: {unexpected}")
        self._say(event, asked)
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
            case "cancelled":
                self._end(*self._cause, now)

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
        self.ended, self._due = True, None
        stuck = self.outbox.stuck
        if stuck:
            self._cut(stuck[0].index, stop=())  # nothing that was sent can be taken back any more
        rest = self.output.flush()
        if rest:
            self.outbox.put(Piece(len(self.output), rest, None))
        self._refuse_asked()
        self.final = protocol.Final(
            request_id=self.request_id,
            ref=self._cancelled.ref if self._cancelled else None,
            index=len(self.output),
            finish_reason=reason,
            stop_reason=why,
            usage=self._usage(),
            timing=self._watch.timing(len(self.output), now),
        )
        self._say(self.final)
        for ref, hear in self._told_the_end:
            hear(replace(self.final, ref=ref))

    def _refuse_asked(self) -> None:
        """Frames that came too late for the engine: each is answered once, if it asked for two things too."""
        for asked in self._orders.clear():
            if asked.owed:
                refusal = Refusal(
                    "request_finished", f"Request {self.request_id} ended before this could take effect."
                )
                self._say(refusal.event(self.request_id, asked.ref), asked)

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.output),
            total_tokens=self.prompt_tokens + len(self.output),
            cached_tokens=self._cached_tokens,
            injected_tokens=self.output.injected(),
            discarded_tokens=self.discarded,
        )
