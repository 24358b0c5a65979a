"""The state machine of one stream: frames and engine news in, events and commands out. Pure.

The protocol's rules about a single stream live here and in the rooms beside it, each of which knows one
thing, and nowhere else. A stream knows its text, its credit, who still waits for which reply, and how it
ended. It does not know who listens, has no clock of its own, and waits for nothing: events pile up in its
outbox, and commands go to whatever `send` is.

Every steering frame has one reply, in the order of the frames: the engine replies to its commands in order,
so the frames that wait are a queue. The reply to a cancel is `final`.

A stream outlives its listener and its engine. To a new listener it repeats what was missed; for a new engine
it is its own record: prompt, output, and the commands that had no reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec

from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import GuardAction, Params, PauseReason
from realtime.guards.guards import Verdict
from realtime.refusal import Refusal
from realtime.stream.amendment import checked
from realtime.stream.answers import answer
from realtime.stream.cancelling import Cancelling, End
from realtime.stream.context import Context
from realtime.stream.counts import Counts
from realtime.stream.credit import Credit
from realtime.stream.effects import Effects
from realtime.stream.ending import Ending
from realtime.stream.engine_commands import (
    SteeringFrame,
    check_index,
)
from realtime.stream.grants import Grants
from realtime.stream.guarding import Guarding
from realtime.stream.keeping import Keeping
from realtime.stream.later_commands import LaterCommands
from realtime.stream.memory import Holding, MemoryAccount
from realtime.stream.outbox import Outbox, OutgoingEvent
from realtime.stream.owner import Owner
from realtime.stream.pausing import Pausing
from realtime.stream.pending_commands import (
    CallFrame,
    Computing,
    Owe,
    PendingCommand,
    PendingCommands,
    SendReply,
)
from realtime.stream.reading_on import ReadingOn, RestOfNews
from realtime.stream.results import Results
from realtime.stream.states import State, check_transition
from realtime.stream.steering import Steering
from realtime.stream.stopwatch import Stopwatch
from realtime.stream.terms import terms_of
from realtime.stream.told_output import ToldOutput
from realtime.stream.tool_loop import ResultInject, ToolLoop
from realtime.text.decoded_turn import DecodedTurn
from realtime.text.served_model import ServedModel
from realtime.tools.parts import Lengths

STREAM_BYTES = 6300  # as measured
LEAST_HISTORY_BYTES = 4 << 10  # of events that nobody is known to have read, where the account is full
WEIGHED_EVERY = 16  # events that are given out, one token each: about what was promised for them
UNREAD_LIMIT = 512 << 10  # bytes that may wait to be given out before nothing more may be asked for
LEAST_UNREAD_BYTES = 4 << 10  # and so many where the account is full: a connection has a thousand streams


P = ParamSpec("P")


def once_read(tell: Callable[Concatenate[Stream, P], None]) -> Callable[Concatenate[Stream, P], None]:
    """Of what a stream hears once it has read what was injected: nobody has to wait, or to refuse it."""

    @wraps(tell)
    def told(stream: Stream, /, *what: P.args, **more: P.kwargs) -> None:
        if stream.reads_injected:
            stream._reading_on.tell_later(partial(tell, stream, *what, **more))
        else:
            tell(stream, *what, **more)

    return told


class Stream:
    def __init__(
        self,
        number: int,
        start: protocol.Start,
        context: Context,
        *,
        model: ServedModel,
        owner: Owner,
        window: int,
        engine: Computing | None,
        memory: MemoryAccount,
        now: float,
        eta_ms: int | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        """Without an `engine` it waits for its model to be loaded, which takes so long. `keeping`: where
        somebody may adopt it."""
        self.number = number
        self.request_id = start.request_id
        self.terms = terms_of(start)
        self.counts = Counts(context)
        self.context = context
        self.output = context.output
        self.credit = Credit(start.credit, window=window)
        self.credit.acknowledge(context.inherited)
        self.outbox = Outbox(
            start.request_id, self.credit, interval=start.stream_interval, tokens=start.return_tokens
        )
        self._memory = Holding(memory)
        self.model = model
        self.keeping = keeping
        self.owner = owner
        self._tools = ToolLoop(start, context.output.spans)
        self._told = ToldOutput(context, self.outbox, self._tools, whole_arguments=start.whole_arguments)
        self._decoded_turns: list[DecodedTurn] = []
        self._commands = PendingCommands()
        self._grants = Grants(number, self.credit, context, self.outbox, self._commands, self._memory)
        self._grants.expect(context.params.reasoning_tokens)
        self._cancelling = Cancelling()
        self._stopwatch = Stopwatch(now)
        self._guarding = Guarding(number, context, self.outbox, self._told, self._commands, self._grants)
        self._pausing = Pausing(
            number,
            self.outbox,
            context.output,
            self._commands,
            self._tools,
            self._guarding,
            self._stopwatch,
            model.fingerprint,
        )
        self._reading_on = ReadingOn(context, self._told, self._guarding, self._commands)
        self._results = Results(number, context, model, self._tools, self._commands, self._pausing)
        self._later = LaterCommands(
            number,
            context,
            model,
            self.outbox,
            self._tools,
            self._commands,
            self._grants,
        )
        self._steering = Steering(
            number,
            context,
            model,
            self._commands,
            self._pausing,
            self._guarding,
            self._grants,
            self._results,
            hold_at_eos=self._tools.holds_at_eos,
        )
        self._effects = Effects(
            self.request_id,
            context,
            self._commands,
            self._guarding,
            self._told,
            self._tools,
            self._pausing,
        )
        self._ending = Ending(
            context,
            self.outbox,
            self._told,
            self._commands,
            self._reading_on,
            self._cancelling,
            self.counts,
            self._stopwatch,
        )
        self._checked_state: State = "queued"
        self.outbox.put(
            protocol.Started(
                request_id=self.request_id,
                ref=start.ref,
                model=model.name,
                prompt_tokens=self.prompt_tokens,
                params=context.params,
                fingerprint=model.fingerprint,
                exact=model.exact,
            )
        )
        if start.past is not None and start.past.waits and self._tools.missing:
            self._pausing.wait_on(now)
        if start.fork is not None or start.past is not None:
            self.outbox.begin_with(*self._snapshot(context.inherited))
        self._grants.begin()
        if engine is not None:
            self.submit(engine, now)
        elif not self._pausing.holds:
            self._pausing.pause("loading", len(self.output), now, eta_ms=eta_ms)
        self._check_transition()
        self._close_reasoning()
        self._update_memory()

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def final(self) -> protocol.Final | None:
        """There is one once it has ended."""
        return self._ending.final

    @property
    def ended(self) -> bool:
        return self.final is not None

    @property
    def all_delivered(self) -> bool:
        """Whether it has ended, and its listener has been given all of it."""
        return self.final is not None and not self.outbox.waiting

    @property
    def state(self) -> State:
        """What is seen of it from outside; `realtime.stream.states` says which state may follow which."""
        if self.final is not None:
            return "finished"
        if self._pausing.reason:
            return "paused"
        if not self._stopwatch.admitted:
            return "queued"
        return "running" if self.wants_tokens else "stalled"

    def _check_transition(self) -> None:
        state = self.state
        if state != self._checked_state:
            check_transition(self._checked_state, state)
            self._checked_state = state

    @property
    def fingerprint(self) -> str | None:
        """Of the engine that computed it last, if one has."""
        return self._pausing.fingerprint

    @property
    def num_waiting(self) -> int:
        """How many of the commands that were asked for have no reply: its end answers all of them."""
        return len(self._commands.waiting)

    @property
    def is_kept(self) -> bool:
        """Whether its engine has all that another gateway would build it from, or will when it hears it."""
        return self.keeping is not None and self.keeping.is_there

    @property
    def outlives_us(self) -> bool:
        """Whether another gateway may go on with it, and is to."""
        return self.is_kept and self.terms.on_disconnect != "cancel"

    @property
    def may_be_left(self) -> bool:
        """Whether it may be left to another at once: another may reach its engine sooner than what was said
        here, and would hear that there is no such stream."""
        return self.outlives_us and self.keeping is not None and self.keeping.is_found

    @property
    def paused(self) -> PauseReason | None:
        return self._pausing.reason

    @property
    def released(self) -> bool:
        """Whether what was computed of it was given up, as was asked or since results are long in coming: to
        go on it is computed again."""
        return self._pausing.released

    @property
    def wants_tokens(self) -> bool:
        """Whether it lacks nothing but the engine's time."""
        return not (self._pausing.holds or self.concluded or self.out_of_credit)

    @property
    def needs_compute(self) -> bool:
        """Whether a new engine has something to compute for it: without credit, only its first prompt."""
        if self._pausing.holds or self.concluded or self._reading_on.finish is not None:
            return False
        return not self.out_of_credit or (self.prompt_tokens > 1 and not len(self.output))

    @property
    def needs_engine(self) -> bool:
        """Whether there has to be an engine for it: it does not wait for somebody to have it go on, or
        something was asked that only an engine answers."""
        asked = bool(self._commands.waiting) or self._cancelling.asked
        return not self.concluded and (asked or not self._pausing.holds)

    @property
    def out_of_credit(self) -> bool:
        """Whether it lacks credit; perhaps not that alone."""
        return len(self.output.tokens) >= self.credit.granted

    @property
    def concluded(self) -> bool:
        """Whether it has come to its end, delivered or not: no engine need know it any more."""
        return self._ending.concluded

    @property
    def bytes(self) -> int:
        """About how much memory it takes here: tokens, parameters, and events, unread or to be asked for
        again."""
        kept = 0 if self.keeping is None else self.keeping.history_bytes
        told = self.outbox.bytes + self._waiting_bytes + self._tools.bytes
        return STREAM_BYTES + self.context.bytes + told + kept

    @property
    def _waiting_bytes(self) -> int:
        """Of what was asked for and waits for its answer."""
        return self._commands.bytes + self._cancelling.bytes

    @property
    def prompt_tokens(self) -> int:
        return len(self.context.prompt)

    # -- credit ----------------------------------------------------------------------------------

    def grant(self, limit: int, now: float) -> None:
        """The client is ready for output up to `limit`; no grant is too late."""
        self.credit.grant(limit)
        self._send_grant()
        if self.concluded:
            self._ending.deliver(now)
            self._check_transition()
            self._update_memory()

    def acknowledge(self, index: int, seq: int) -> None:
        """The reader has taken output up to `index`, and events up to `seq`."""
        self.outbox.acknowledge(seq)
        if not self.ended:
            self.credit.acknowledge(index)
            self._send_grant()
        self._update_memory()

    def take_events(self) -> list[OutgoingEvent]:
        """Everything that may go out now."""
        outbox = self.outbox
        events = outbox.take()
        if self.credit.granted < self.credit.decode_limit:
            self._send_grant()
        if self.final is not None or outbox.items or outbox.seq >= outbox.weighed_seq + WEIGHED_EVERY:
            self._update_memory()
        return events

    def _send_grant(self) -> None:
        if self.final is None and self._grants.send():
            self._update_memory()
            self._check_transition()

    # -- reasoning that has an end ---------------------------------------------------------------

    def _close_reasoning(self) -> None:
        """Where it has as many tokens as it may: the model's own end of it stands there, and it goes on."""
        if not self._grants.counts_reasoning or self.concluded or self._cancelling.asked:
            return
        if self.reads_injected or not self._grants.knows_reasoning:
            return
        if (room := self._grants.reasoning_room) is None:
            return
        if room == 0:
            end = api.Append(self.number, list(self.model.tokenizer.reasoning_end))
            self._commands.request(PendingCommand(end, None, 0))
        else:
            self._send_grant()

    # -- memory ----------------------------------------------------------------------------------

    def _update_memory(self) -> None:
        self.outbox.weighed_seq = self.outbox.seq
        if self.outbox.history_bytes > LEAST_HISTORY_BYTES and self._memory.account.full:
            self.outbox.shorten_history(LEAST_HISTORY_BYTES)
        self._memory.update(self.bytes, 0 if self.concluded else self._grants.promised_bytes)

    def use_account(self, account: MemoryAccount) -> None:
        """Whoever reads it, or nobody, holds its memory from now on."""
        self._memory.move(account)
        self._update_memory()

    def go(self) -> None:
        """It is another gateway's, and with it what was asked for here: whoever waits for that, and does not
        listen, hears so."""
        taken = Refusal(
            "request_taken",
            f'Request "{self.request_id}" is another server\'s now: what came of this is told there.',
        ).event(self.request_id)
        for pending in self._commands.clear():
            if pending.send_reply is not None and pending.wants_reply:
                pending.send_reply(replace(taken, ref=pending.ref))
        self._cancelling.answer(taken)
        self._reading_on.forget()
        self.release_memory()

    def release_memory(self) -> None:
        """It has ended, and whoever keeps it now has limits of its own."""
        self._memory.close()

    def _check_unread(self) -> None:
        """Whoever does not read what was asked for may not ask for more."""
        unread = self.outbox.unread_bytes + self._waiting_bytes
        if unread > LEAST_UNREAD_BYTES:
            self._memory.account.check()
        if unread > UNREAD_LIMIT:
            raise Refusal(
                "rate_limited",
                f"Request {self.request_id} has reached the limit of {UNREAD_LIMIT >> 10} KiB of events that "
                "wait to be read: read them first.",
                retry_after_ms=1000,
            )

    # -- frames ----------------------------------------------------------------------------------

    def _check_steerable(self, *, adds: bool = True, stops: bool = False) -> None:
        """`adds`: whether it is for more to be held. `stops`: what was not asked to stop before."""
        if self.concluded:
            raise Refusal(
                "request_finished", f"Request {self.request_id} has ended: there is nothing to steer."
            )
        if not stops:
            self._check_unread()
        if adds:
            self._memory.account.check()

    def steer(
        self,
        frame: SteeringFrame,
        step: int,
        now: float,
        send_reply: SendReply | None = None,
        owe: Owe | None = None,
    ) -> None:
        """Ask for something that takes effect at a token. `Inject` comes as tokens; `send_reply` is for
        whoever steers and does not listen, `owe` for whoever steers."""
        self._read_all()
        self._check_steerable(
            adds=not isinstance(frame, protocol.Pause | protocol.Resume),
            stops=isinstance(frame, protocol.Pause) and not self._pausing.asked,
        )
        check_index(frame, self.outbox.sent)
        if self._steering.ask(frame, step, now, send_reply, owe):
            self._later.make()
        self._update_memory()

    def steer_call(
        self,
        frame: CallFrame,
        step: int,
        now: float,
        send_reply: SendReply | None = None,
        owe: Owe | None = None,
    ) -> None:
        """Approve a call, or amend it: as it stands when all that was asked before has taken effect."""
        self._read_all()
        self._check_steerable()
        if isinstance(frame, protocol.Amend):
            frame = checked(frame)
        asked = PendingCommand(None, frame, step, received_s=now, send_reply=send_reply, owe=owe)
        self._commands.request(asked)
        self._later.make()
        self._update_memory()

    def take_in_vain(self) -> int:
        """Tokens that were made of texts since this was asked last, and are not put in."""
        tokens, self._commands.in_vain = self._commands.in_vain, 0
        return tokens

    def inject_of(self, result: protocol.ToolResult) -> ResultInject:
        """What a call's result puts into the stream."""
        self._read_all()
        self._check_steerable()
        return self._results.inject_of(result)

    def has_result(self, call_id: str) -> bool:
        """That waits: another that comes for this call takes its place."""
        return self._tools.has_result(call_id)

    def take_result_to_tell(self) -> protocol.ToolResult | None:
        """One that is to be told once more, unless the stream ends."""
        busy = self._cancelling.asked or self.reads_injected or self.concluded
        return None if busy else self._results.take_to_tell()

    @once_read
    def release_kv(self, step: int) -> None:
        """It waits for results for longer than its memory is to be held, if there is any."""
        waits = self.paused == "tool_call" and not self._commands.resumes
        if waits and self._commands.engine is not None:
            self._commands.request(PendingCommand(api.Pause(self.number, True), None, step))
            self._pausing.released = True

    @once_read
    def cancel(
        self, now: float, step: int, ref: str | None = None, send_reply: SendReply | None = None
    ) -> None:
        """End it now; again, or too late, is no mistake. Only one that ends nothing can be refused."""
        if self.ended:
            return
        if send_reply is not None and ref is not None:
            if self._cancelling.asked:
                self._check_unread()
            self._cancelling.told_to(ref, send_reply)
            self._update_memory()
            ref = None
        if self._cancelling.asked and ref is None:
            return
        frame = protocol.Cancel(request_id=self.request_id, ref=ref)
        self._cancelling.command = PendingCommand(api.Cancel(self.number), frame, step, received_s=now)
        if self.concluded or self._commands.engine is None:
            self._end_cancelled(now)
        else:
            self._commands.send(api.Cancel(self.number))

    @once_read
    def time_out(self, now: float, step: int) -> None:
        self._cancelling.ends_by(("length", "timeout"))
        self.cancel(now, step)

    # -- forks -----------------------------------------------------------------------------------

    def fork(self, request_id: str, at: int | None, asked: Params) -> Context:
        """What another begins with that goes on as this one stands before output token `at`, or behind all
        that was sent."""
        self._read_all()
        sent = self.outbox.sent
        index = sent if at is None else at
        if index > sent:
            raise Refusal(
                "invalid_params",
                f"`fork.at` is {index}, but only {sent} tokens of request {self.request_id} have been sent.",
            )
        return self.context.fork(request_id, index, asked, self.model)

    # -- listeners -------------------------------------------------------------------------------

    @once_read
    def detach(self, now: float, step: int) -> None:
        """Nobody listens any more."""
        self.outbox.drop_replay()
        self._tools.leave()
        if self.terms.on_disconnect == "cancel":
            self.abandon(now, step)
        elif self.terms.on_disconnect == "pause" and not self.concluded:
            self._pausing.leave(step)

    @once_read
    def abandon(self, now: float, step: int) -> None:
        """Nobody will come back: what is decoded from now on is not delivered. What has ended stays so."""
        if self.ended:
            return
        self._cancelling.ends_by(("cancelled", "detached"))
        self.credit.withdraw(self.outbox.sent)
        self.cancel(now, step)

    def attach(
        self, after: int, step: int, ref: str | None = None, *, anew: bool = True, epoch: int = 0
    ) -> None:
        """Somebody listens, `anew` or again, and has all events up to `after`: the others come again. Nobody
        knows which those are that were counted in another `epoch`: a snapshot stands for all of them."""
        self._read_all()  # a snapshot says what is told, and the rest is told behind it
        is_ours = epoch == self.outbox.epoch or after < 0
        if not anew:
            self._check_unread()
        if not is_ours:
            self.outbox.count_from_behind(after)
        last = self.outbox.seq - 1
        if after > last:
            raise Refusal(
                "invalid_params", f"`after` is {after}, but the last event of the stream so far is {last}."
            )
        if anew:
            self.outbox.drop_replay()
        else:
            after = self.outbox.replayed_from(after)
        missed = self.outbox.since(after) if is_ours else None
        if missed is None:
            snapshot, lengths = self._snapshot(self.outbox.sent)
            snapshot.answered = self.outbox.answers_since(after if is_ours else None)
            missed = self.outbox.with_snapshot(snapshot, lengths)
        attached = protocol.Attached(
            request_id=self.request_id, pending=self._pending_refs(), ref=ref, epoch=self.outbox.epoch
        )
        self.outbox.replay([*missed, attached])
        if not self.concluded:  # nobody keeps what an end is told
            self._pausing.come_back()
            self._settle()
        self._update_memory()

    def _pending_refs(self) -> list[str]:
        """Refs of frames whose replies are still to come."""
        refs = [pending.ref for pending in self._commands] + [None if self.ended else self._cancelling.ref]
        return [ref for ref in refs if ref is not None] + self.outbox.pending_refs

    def _snapshot(self, count: int) -> tuple[protocol.Snapshot, Lengths]:
        return self._told.snapshot(count, model=self.model.name, fingerprint=self._pausing.told_fingerprint)

    # -- engines ---------------------------------------------------------------------------------

    def submit(self, engine: Computing, now: float, *, yields: bool = False) -> None:
        """To an engine that does not know it: all that stands, and the commands that had no reply. `yields`:
        to others."""
        self._pausing.move_to(engine.fingerprint, now)
        self._check_transition()
        keep = None if self.keeping is None else self.keeping.submitted(engine.fingerprint)
        if keep is None:
            self.keeping = None
        if self.context.had_stopped:
            self._ending.refuse_pending()  # it had ended before any of that was asked
        self._commands.submit(
            self.context.submission(
                self.number,
                credit=self.credit.granted,
                priority=self.terms.priority,
                owner=self.owner,
                paused=self._pausing.rests or self.context.had_stopped,  # nothing is sampled behind that
                hold_at_eos=self._tools.holds_at_eos,
                yields=yields,
                keep=keep,
            ),
            engine,
        )
        if self.context.had_stopped:
            self._cancelling.ends_by(("stop", self.output.stopped or None))
            self.cancel(now, 0)

    def adopt(
        self,
        engine: Computing,
        unsaid: Sequence[api.AnyCommand],
        credit: int,
        epoch: int,
        keeping: Keeping,
    ) -> None:
        """It is what it was at another gateway, but for whom it speaks to: an engine that knows it, and has
        heard all that was commanded but what is `unsaid`."""
        self.outbox.epoch, self.keeping = epoch, keeping
        if self.concluded:
            return
        self._commands.adopt(engine, unsaid)
        self._grants.go_on(credit)
        self._send_grant()
        self._update_memory()
        self._check_transition()

    @property
    def under_way(self) -> int:
        """Commands that its engine was sent, and has not answered."""
        return self._commands.under_way

    def have_under_way(self, least: int) -> None:
        """So many commands were at another gateway, at least."""
        self._commands.send_more(least)

    def tell_loading(self, eta_ms: int | None) -> None:
        """It is to go on, and its model is loaded for it."""
        if self._commands.resumes and self._pausing.holds:
            self._pausing.tell_loading(eta_ms)

    def lose_engine(self, now: float, *, lacked_credit: bool | None = None) -> None:
        """The engine is gone, and what it knew of this stream with it. Another will have it anew.
        `lacked_credit`: as it was, for who builds it again, and does not know what was granted when."""
        self._read_all()  # what it has answered is asked of no other
        self._commands.engine = None
        lacks_credit = self.out_of_credit if lacked_credit is None else lacked_credit
        if self.keeping is not None:
            self.keeping.lost(lacks_credit=lacks_credit)
        if self._cancelling.asked and not self.ended:
            self._end_cancelled(now)
        elif not (self._pausing.reason or self.concluded or lacks_credit) and self._stopwatch.admitted:
            self._pausing.pause("engine", len(self.output), now)
            self._check_transition()
        elif self._pausing.reason == "memory":
            self._pausing.reason = "engine"  # what it waits for now; it knows already that it waits

    def fail(self, why: str, now: float) -> None:
        """It has failed somewhere."""
        if not self.ended:
            self._ending.fail(why, now)
            self._check_transition()

    # -- news from the engine --------------------------------------------------------------------

    def receive_tokens(self, news: api.News, now: float) -> list[PendingCommand]:
        """News that are tokens alone, as nearly all are, of one that is not dear."""
        if self._commands.waiting or self._ending.concluded:
            return self.receive_news(news, now)
        self.counts.decoded += len(news.tokens)
        self.counts.forced += news.forced
        if self._receive_tokens(news, now) or len(self.outbox.items) != 1:
            self._update_memory()  # else it weighs about what was promised for it
        elif len(self.output.tokens) >= self.credit.granted:
            self._check_transition()  # they change its state only where they are the last that it may have
        if self.output.spans is not None:
            self._close_reasoning()
        return []

    def receive_news(self, news: api.News, now: float) -> list[PendingCommand]:
        """Take in a step's news, or read on behind the last; returns the commands that took effect."""
        has_read = not self.reads_injected
        reads_on = has_read or news == api.News(news.stream)
        effective = [] if reads_on else self._read_all()
        effective += self._receive_news(news, now)
        if self._commands.waiting:
            if self._reading_on.waits is None:
                self._later.make()
            self._commands.send_more()
        self._settle()
        if self.output.spans is not None:
            self._close_reasoning()
        if not self.reads_injected:
            if self.context.guards is not None or not has_read:
                self._send_grant()
            self._reading_on.tell_now()
        self._update_memory()
        return effective

    def _settle(self) -> None:
        """Once all that was asked but parameters is answered, and read, what follows by itself is clear."""
        if self.reads_injected or self.concluded or self._cancelling.asked or not self._commands.settled:
            return
        self._results.put_in_due()
        if self._commands.settled:
            self._pausing.settle()
            self._check_transition()

    @property
    def reads_injected(self) -> bool:
        """Whether it has yet to read what was injected, or its guards what the next token says, or to take in
        what came in the same news behind that, or to do what was asked of calls behind that. Which calls
        there are, what is still to be answered, and whether it reasons, hangs on nothing that may take more
        or less time: so whoever tells it anything finds all of it read, and waits for that, or else everybody
        does."""
        return self._reading_on.waits is not None or self._commands.to_make is not None

    def _read_all(self) -> list[PendingCommand]:
        """Returns the commands that took effect behind it."""
        effective: list[PendingCommand] = []
        while self.reads_injected:
            waits = self._reading_on.waits
            now = 0.0 if waits is None else waits.now  # what is asked of calls is done at no time
            effective += self.receive_news(api.News(self.number), now)
        return effective

    def _receive_news(self, news: api.News, now: float) -> list[PendingCommand]:
        if self.output.spans is not None or self.context.guards is not None:
            self._reading_on.read_on()
        self.counts.decoded += len(news.tokens)
        put_off, self._reading_on.put_off = self._reading_on.put_off, None
        if self._ending.concluded:
            return []  # before the engine heard that a stop string was met
        if news.admitted is not None:
            self._receive_admission(news.admitted, now)
        self.counts.forced += news.forced
        for change in news.early:
            self._receive_memory_change(change, now)
        if put_off is not None:
            news, now = put_off.news, put_off.now
        if self._receive_tokens(news, now):
            return []
        if self._reading_on.waits is None and (news.changes or news.finish is not None):
            self._begin_changes(news, now)
        rest = self._reading_on.rest
        effective = [] if rest is None else self._receive_changes(rest)
        self._check_transition()
        return effective

    def _begin_changes(self, news: api.News, now: float) -> None:
        """What commands did, and how it ended, comes behind its tokens."""
        if news.finish is not None and news.finish.held and self._foresees_end(news.finish):
            self._reading_on.put_off_from(news, len(news.tokens), now)
            return
        self._keep_turn(news.finish)
        steered = any(isinstance(change, api.Truncated | api.Appended) for change in news.changes)
        end_is_held = news.finish is not None and news.finish.held
        ends = end_is_held and not steered and self._ends_at_held_end(now)
        if self.concluded:  # a guard has ended it
            return
        withheld = self._guarding.withholds
        held = end_is_held and bool(self._tools.missing) and not (withheld or ends)
        if held or (end_is_held and self._stands_behind_end(news)):
            self._told.take_back(len(self.output) - 1, by_guard=False)  # the end token: the turn is open yet
        if end_is_held:
            self._pausing.rests = True
        if held:  # before what commands did: they came behind that token
            self._pausing.await_results(now)
            self._check_transition()
        is_void = withheld or (end_is_held and steered)  # the engine goes on from there, once it is let
        changes = () if ends else news.changes  # overtaken by the end, as where the engine does not hold it
        self._reading_on.rest = RestOfNews(deque(changes), news.finish, held, is_void, now)

    def _ends_at_held_end(self, now: float) -> bool:
        """Whether nobody has it go on from there: it had stopped there, or no result is missing, and no guard
        acts."""
        if self.context.had_stopped:
            return True
        if self._guarding.withholds or self._tools.missing:
            return False
        return not self._guard_acts_at_end(now)

    def _receive_changes(self, rest: RestOfNews) -> list[PendingCommand]:
        """As far as what they put in is read in this turn."""
        effective: list[PendingCommand] = []
        while rest.changes and not self.concluded:  # by a reply: what came behind it is nothing any more
            if self._reading_on.has_read_enough or self._reading_on.reads_spans:
                return effective
            pending = self._receive_reply(rest.changes.popleft(), rest.now)
            self._guarding.has_withheld &= self._commands.goes_back
            if pending is not None and pending.wants_reply:
                effective.append(pending)
        if self._reading_on.reads_spans:
            return effective
        if rest.finish is not None and not rest.finish.held and self._foresees_end(rest.finish):
            return effective
        self._reading_on.rest = None
        if not self.concluded:
            effective += self._receive_end(rest)
        return effective

    def _receive_end(self, rest: RestOfNews) -> list[PendingCommand]:
        """Of its turn, or its own. Returns the command that it answers."""
        finish, now = rest.finish, rest.now
        if finish is None or rest.held:
            return []
        if self._is_void(finish, withheld=rest.withheld):
            if not finish.held:  # else it is let go on
                self._go_on_before(now, self._most_before(finish))
            return []
        self._finish(finish, now)
        return [self._cancelling.command] if self._cancelling.command else []

    def _stands_behind_end(self, news: api.News) -> bool:
        """Whether something is to stand where the end token was taken in: what was put there in that step, or
        what comes where a guard goes back to that has just read it. Without tokens it is its past's last."""
        taken_in = not news.tokens or len(self.output) == news.index + len(news.tokens)
        put_in = any(isinstance(change, api.Appended) for change in news.changes)
        return taken_in and (put_in or self._guarding.withholds)

    def _keep_turn(self, finish: api.Finish | None) -> None:
        """Where its model has ended a turn with calls: whoever tells it again may spell it otherwise."""
        if finish is None or finish.reason != "eos" or self._guarding.withholds:
            return
        turn = self.context.decoded_turn()
        if turn is not None:
            self._decoded_turns.append(turn)

    def take_decoded_turns(self) -> list[DecodedTurn]:
        """The turns with calls that have ended since this was asked last."""
        turns, self._decoded_turns = self._decoded_turns, []
        return turns

    def _receive_tokens(self, news: api.News, now: float) -> bool:
        """Returns whether the stream has come to its end with one of them."""
        output, logprobs, told = self.output, news.logprobs, None
        is_plain = output.spans is None and self.context.guards is None
        for at, token in enumerate(news.tokens):
            if self._commands.waiting and self._guarding.withholds:
                self._guarding.has_withheld = True
                return False
            if not is_plain and self.context.foresees(token):
                self._reading_on.put_off_from(news, at, now)
                return False
            index = len(output.tokens)
            delta = output.add(token)
            if logprobs:
                told = protocol.TokenLogprob(token, logprobs[at].logprob, logprobs[at].top)
            if self._stopwatch.first is None:
                self._stopwatch.token(now)
            if is_plain:
                self.outbox.put_token(index, delta, token, told)
            else:
                self._receive_more(index, delta, token, told, now)
            if output.reader.stopped is not None:
                self._stop(now)
            elif is_plain:
                continue
            if self._ending.concluded:
                return True
        return False

    def _stop(self, now: float) -> None:
        """A stop string was met; it ends nothing that will be void."""
        why = self.output.stopped
        if not (self._guarding.withholds or self.concluded or self._guard_acts_at_end(now)):
            self._commands.send(api.Cancel(self.number))
            self._conclude(("stop", why or None), now)

    def _receive_admission(self, found: int, now: float) -> None:
        """It runs for the first time: in its life, or in this engine, which found so much computed."""
        if not self._stopwatch.admitted:
            self.counts.cached = min(found, self.prompt_tokens)  # not what was injected since
            self._stopwatch.admit(now)
        if self._pausing.reason in ("engine", "loading"):
            self._pausing.resume(len(self.output), len(self.context) - 1 - found, now)
        self._check_transition()

    def _receive_more(
        self, index: int, delta: str, token: int, told: protocol.TokenLogprob | None, now: float
    ) -> None:
        """A token beside which there may be something, and of which guards may have something to say."""
        beside = self._told.take_beside()
        verdicts: list[Verdict] = []
        if self.context.guards is not None:
            verdicts = self.context.judge(delta, beside, self._stopwatch.running_s(now))
        if not verdicts or verdicts[-1].do == "tell":
            self._told.put(index, delta, token, told, beside)
        if verdicts:
            self._act(verdicts, now)

    def _receive_memory_change(self, change: api.AnyChange, now: float) -> None:
        if isinstance(change, api.Paused):
            self._pausing.pause("memory", change.index, now)
        elif isinstance(change, api.Resumed):
            self._pausing.resume(change.index, change.recomputed, now)
        self._check_transition()

    def _receive_reply(self, change: api.AnyChange, now: float) -> PendingCommand | None:
        """Returns what took effect."""
        pending = self._commands.pop_replied()
        if isinstance(change, api.Paused | api.Resumed):
            self._pausing.take(change, pending, now)
            self._check_transition()
            return pending
        if pending.verdict is not None:
            self._guarding.gone_back(pending.verdict, change.index)
            return pending
        if isinstance(change, api.Refused) and pending.frame is None:  # no room for the end of reasoning
            self._commands.send(api.Cancel(self.number))
            self._conclude(("length", None), now)
            return None
        event = self._effects.take(pending, change)
        if event is None:
            return None
        answer(self.outbox, pending, event)
        self._reading_on.put_beside(change.index, "")
        return pending

    @property
    def to_make(self) -> PendingCommand | None:
        """What was asked of a call, and is to be done now."""
        return self._commands.to_make

    def is_dear(self) -> bool:
        """Whether its news may take long: guards read what comes, or what was injected is still being read.
        Asked with every token."""
        if self.output.spans is None and not self._commands.waiting:
            return self.context.guards is not None
        return self.context.guards is not None or self.reading

    @property
    def reading(self) -> bool:
        """Whether it has not read all of what was injected, or of what it is to amend, or its guards of what
        stands: with its next news, of whatever, it reads on."""
        guards = self.context.guards
        return self.reads_injected or (guards is not None and guards.reading)

    @property
    def takes_runs(self) -> bool:
        """Whether tokens that came one by one may be told it at once: it does nothing between them."""
        return self.context.guards is None and not (self._grants.counts_reasoning or self.reading)

    # -- guards ----------------------------------------------------------------------------------

    def _act(self, verdicts: list[Verdict], now: float) -> None:
        end = self._guarding.act(verdicts)
        if end is not None:
            self._commands.send(api.Cancel(self.number))
            self._conclude(("guard", end.guard.name), now)

    def _guard_acts_at_end(self, now: float, finish: api.Finish | None = None) -> bool:
        """What is known of the text's end, before that is the stream's. `finish`: the engine's."""
        verdicts = [] if self._cancelling.asked else self.context.judge_end()
        if finish is not None and verdicts and verdicts[-1].do in ("rewind", "pause"):
            self._go_on_before(now, len(self.output) - 1)
        self._act(verdicts, now)
        return bool(verdicts) and verdicts[-1].do != "tell"

    def _foresees_end(self, finish: api.Finish) -> bool:
        """Whether they have yet to read what is said then, if they are to judge it."""
        is_judged = finish.reason in ("eos", "length") and not self._cancelling.asked
        return is_judged and not (self.concluded or self._guarding.withholds) and self.context.foresees_end()

    def _is_void(self, finish: api.Finish, *, withheld: bool) -> bool:
        """Whether what is to be taken back yet has come to this end. `withheld`: whether anything was before
        what commands did, behind which it has come, unless the engine waits there."""
        withheld = withheld if finish.held else self._guarding.withholds
        return withheld and finish.reason in ("eos", "length")

    def _most_before(self, finish: api.Finish) -> int:
        """Of the output, with which an engine would not be at this end again at once."""
        most, longest = len(self.output), self.context.params.max_tokens
        if finish.reason == "length":
            assert isinstance(longest, int), "they are complete"
            most = min(most - (len(self.context) >= self.model.context), longest - 1)
        return most

    def _go_on_before(self, now: float, most: int) -> None:
        """The engine has come to an end that will be void: it goes on before, with so much output at most."""
        if self._cancelling.asked:  # of an engine that knows it no more, and would not do it again
            self._end_cancelled(now)
            return
        self._told.take_back(max(0, min(self.outbox.known, most)), by_guard=False)
        assert self._commands.engine is not None, "it has just said so"
        self.submit(self._commands.engine, now)

    def take_acted(self) -> list[GuardAction]:
        """What guards did since this was asked last."""
        return self._guarding.take_acted()

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self, finish: api.Finish, now: float) -> None:
        match finish.reason:
            case "eos" | "length" if self.context.had_stopped:
                self._conclude(self._cancelling.end, now)
            case "eos" | "length" if not finish.held and self._guard_acts_at_end(now, finish):
                return  # of one that is held they have judged before
            case "eos":
                if finish.held:
                    self._commands.send(api.Cancel(self.number))
                self._conclude(("stop", "eos"), now)
            case "length":
                self._conclude(("length", None), now)
            case "error" if not self._cancelling.asked or self._stopwatch.admitted:
                self._ending.end(("error", finish.detail), now)
                self._check_transition()
            case "cancelled" | "error":  # before it began: others may have its place
                self._end_cancelled(now)

    def _conclude(self, end: End, now: float) -> None:
        self._ending.conclude(end, now)
        self._check_transition()

    def _end_cancelled(self, now: float) -> None:
        self._ending.cancel(now)
        self._check_transition()
