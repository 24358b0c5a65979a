"""The outbox of one stream: tokens and events that wait for its listener, in order, and those sent again.

Tokens are no events until somebody takes them: what has piled up while the listener was busy goes out as one
event, so the outbox never holds more than credit allows, and a slow reader gets fewer, larger events. The
outbox knows how far the listener is ready to read (its credit), and that nothing follows `paused` but what is
no token. It numbers the events as it gives them out, and keeps them until they are known to have been read:
whoever comes back gets again what was lost. It knows no socket, and neither text nor token beyond what it
carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from sys import getsizeof

from msgspec import Struct
from msgspec.structs import replace

from midstream.protocol import (
    MAX_ANSWERED,
    Adjusted,
    AnyPauseReason,
    Approved,
    Attached,
    Beside,
    Error,
    Final,
    Injected,
    Params,
    Paused,
    Reasoning,
    Resumed,
    Rewound,
    Snapshot,
    StreamEvent,
    Token,
    TokenLogprob,
    ToolArguments,
)
from realtime.stream.credit import Credit
from realtime.stream.memory import LOGPROB_BYTES, REFERENCE_BYTES, TOKEN_BYTES, Weighed, event_bytes
from realtime.stream.span_events import joined, least, lengths_of, tell_lengths, with_beside
from realtime.stream.weights import text_bytes
from realtime.tools.parts import Lengths

HISTORY_LIMIT = 512  # events that nobody is known to have read; whoever needs older ones gets a snapshot
HISTORY_BYTES = 256 << 10  # and so many bytes of them
SHORT = 88  # bytes of a text, that are counted with its token


NONE_BESIDE = Lengths()


class PendingToken(Struct, gc=False):
    """One output token on its way out, and what is known with it beside content; `token` is None for what was
    held back, or injected into a call, and has no token to go with. That is known behind so many tokens that
    were `injected`, and `behind` so much that was."""

    index: int
    delta: str
    token: int | None
    logprob: TokenLogprob | None = None
    beside: Sequence[Beside] = ()
    injected: int = 0
    behind: Lengths = NONE_BESIDE
    bytes: int = TOKEN_BYTES  # as which it is counted while it waits

    def weigh(self) -> None:
        self.bytes = TOKEN_BYTES + (LOGPROB_BYTES * (1 + len(self.logprob.top)) if self.logprob else 0)
        if self.token is None or getsizeof(self.delta) > SHORT:
            self.bytes += text_bytes(self.delta)
        if self.beside:
            self.bytes += sum(map(event_bytes, self.beside))


Item = PendingToken | StreamEvent | Error
OutgoingEvent = StreamEvent | Error | Attached
Answer = Paused | Resumed | Adjusted | Injected | Rewound | Approved | Error


class Outbox:
    def __init__(self, request_id: str, credit: Credit, *, interval: int = 1, tokens: bool = False) -> None:
        self.request_id = request_id
        self.credit = credit
        self.sent = 0  # output tokens given out, that still stand
        self._listener_index = 0  # the same as the listener knows it: what is void it hears later
        self._listener_length = 0  # and its text, in code points
        self._listener_lengths = NONE_BESIDE  # and of what it has beside
        self.seq = 0  # of the next event
        self.weighed_seq = 0  # the same, when it was last looked at how much memory its stream takes
        self.epoch = 0  # in which events are counted: how often another gateway has adopted the stream
        self._history = Weighed[StreamEvent]()  # not known to have been read
        self._replay: list[OutgoingEvent] = []  # to be given out before anything else
        self.interval = interval  # tokens an event
        self.shows_tokens = tokens
        self.paused: AnyPauseReason | None = None  # as the listener knows it
        self.items: list[Item] = []  # that wait; tokens among them follow each other
        self._waiting_bytes = 0
        self._weights: list[int] = []  # of the events among them, which go out in their order
        self._waiting_tokens = 0
        self._without_token: list[PendingToken] = []  # of those that wait, and say something
        self._left = 0  # of the items the first so many, which were left when events were given out last
        self._replay_bytes = 0
        self._answers = Weighed[Answer]()  # the last that were given out

    @property
    def waiting(self) -> bool:
        return bool(self.items or self._replay)

    @property
    def known(self) -> int:
        """Output tokens that were given out, or wait for it."""
        return self.sent + self._waiting_tokens

    @property
    def unsent(self) -> list[PendingToken]:
        return [item for item in self.items if isinstance(item, PendingToken)]

    @property
    def beyond_credit(self) -> list[PendingToken]:
        """Tokens decoded ahead of the listener's credit."""
        return [
            pending
            for pending in self.unsent
            if pending.index >= self.credit.limit and pending.token is not None
        ]

    @property
    def undeliverable(self) -> list[PendingToken]:
        """Tokens that cannot go out as things stand: ahead of credit, or behind `paused`."""
        stuck: list[PendingToken] = []
        held = self.paused is not None
        for item in self.items:
            if isinstance(item, PendingToken):
                if item.token is None:
                    continue
                if held or stuck or item.index >= self.credit.limit:
                    stuck.append(item)
            elif isinstance(item, Paused):
                held = True
            elif isinstance(item, Resumed):
                held, stuck = False, [pending for pending in stuck if pending.index >= self.credit.limit]
        return stuck

    def begin_with(self, snapshot: Snapshot, lengths: Lengths) -> None:
        """Output that stands already, which nobody need be given token by token."""
        self.sent = snapshot.index
        self._know_by(snapshot, lengths)
        self.put(snapshot)

    def put_token(self, index: int, delta: str, token: int, logprob: TokenLogprob | None = None) -> None:
        """With which nothing else is known."""
        self.items.append(pending := PendingToken(index, delta, token, logprob))
        self._waiting_tokens += 1
        if logprob is not None or getsizeof(delta) > SHORT:
            pending.weigh()
        self._waiting_bytes += pending.bytes

    def put(self, item: Item) -> None:
        self.items.append(item)
        if isinstance(item, PendingToken):
            item.weigh()
            self._waiting_bytes += item.bytes
            self._waiting_tokens += item.token is not None
            if item.token is None:
                self._without_token.append(item)
        else:
            self._weights.append(event_bytes(item))
            self._waiting_bytes += self._weights[-1]

    def _silence(self, index: int, injected: int | None) -> None:
        """What is known behind that says nothing any more: a snapshot may have come before it."""
        waiting = self._without_token
        while waiting and (
            waiting[-1].index > index or (injected is not None and waiting[-1].injected >= injected)
        ):
            void = waiting.pop()
            self._waiting_bytes -= void.bytes
            void.delta, void.beside = "", ()
            void.weigh()
            self._waiting_bytes += void.bytes

    def drop_from(self, index: int, injected: int | None = None) -> None:
        """Tokens from `index` on are void; `injected`: and all that were injected behind so many. Those that
        wait follow what was sent one by one, so it is known how many of them are, and no more is looked at,
        however many events wait."""
        self._silence(index, injected)
        void = self._waiting_tokens - max(0, index - self.sent)
        passed: list[Item] = []
        while void > 0:
            item = self.items.pop()
            if isinstance(item, PendingToken) and (item.token is not None or item.index > index):
                void -= item.token is not None
                self._waiting_tokens -= item.token is not None
                self._waiting_bytes -= item.bytes
            else:
                passed.append(item)
        self._left = min(self._left, len(self.items))
        self.items.extend(reversed(passed))
        self.sent = min(self.sent, index)

    def _waits_no_more(self, item: Item) -> None:
        """It is given out."""
        self._waiting_bytes -= item.bytes if isinstance(item, PendingToken) else self._weights.pop(0)
        self._waiting_tokens -= _is_token(item)
        if self._without_token and self._without_token[0] is item:
            del self._without_token[0]

    @property
    def unread_bytes(self) -> int:
        """About how much memory everything takes that is still to be given out."""
        return self._waiting_bytes + self._replay_bytes

    @property
    def bytes(self) -> int:
        """The same, with the events that may have to be told again."""
        return self._waiting_bytes + self._replay_bytes + self._history.bytes + self._answers.bytes

    @property
    def history_bytes(self) -> int:
        return self._history.bytes

    # -- again -----------------------------------------------------------------------------------

    def acknowledge(self, seq: int) -> None:
        """The listener has read all events up to `seq`, perhaps fewer than are forgotten already. How it
        ended may be asked for again all the same."""
        known = self._history.things
        if known and seq >= self._seq_of(0):
            self._forget(min(seq + 1 - self._seq_of(0), len(known) - self.final_sent))

    def shorten_history(self, most_bytes: int) -> None:
        """The oldest are forgotten, but never the last."""
        while len(self._history.things) > 1 and self._history.bytes > most_bytes:
            self._forget(1)

    def _forget(self, count: int) -> None:
        """So many of the oldest. Those that are to be told again are held for that."""
        gone = self._history.drop(count)
        if self._replay:
            self._replay_bytes += gone

    def since(self, after: int) -> list[StreamEvent] | None:
        """The events given out after event `after`; None where some of them are forgotten."""
        missed, known = self.seq - 1 - after, self._history.things
        return known[len(known) - missed :] if missed <= len(known) else None

    def answers_since(self, after: int | None) -> list[Answer]:
        """To frames, of those that were given out behind event `after`, or of all, the last."""
        return [
            event
            for event in self._answers.things
            if after is None or isinstance(event, Error) or (isinstance(event.seq, int) and event.seq > after)
        ]

    def count_from_behind(self, seq: int) -> None:
        """Whoever comes has events up to `seq` from elsewhere: a snapshot and what follows it are counted
        behind those, and nothing that was given out before is told again but how it ended."""
        final = self._final
        self.seq = max(self.seq, seq + 2)
        self._forget(len(self._history.things))
        for event in final:
            self._send([], replace(event))

    @property
    def told_behind(self) -> Lengths | None:
        """How much is told with the tokens that were sent, where more waits that has no token to go with."""
        return next((one.behind for one in self._without_token if one.index == self.sent), None)

    def with_snapshot(self, snapshot: Snapshot, lengths: Lengths = NONE_BESIDE) -> list[StreamEvent]:
        """A snapshot for all that was given out, and the final behind it if that was, too. `lengths`: of what
        it has beside the text."""
        self._know_by(snapshot, lengths)
        final = self._final
        snapshot.seq = self.seq - 1 - len(final)
        return [snapshot, *final]

    def _know_by(self, snapshot: Snapshot, lengths: Lengths) -> None:
        self._listener_index, self._listener_length = snapshot.index, len(snapshot.text)
        self._listener_lengths = lengths

    @property
    def pending_refs(self) -> list[str]:
        """Of frames whose answers wait here."""
        events = (item for item in self.items if not isinstance(item, PendingToken))
        return [event.ref for event in events if event.ref is not None]

    @property
    def _final(self) -> list[Final]:
        """The last event, if it was given out."""
        return [event for event in self._history.things[-1:] if isinstance(event, Final)]

    @property
    def final_sent(self) -> bool:
        return bool(self._final)

    def replay(self, events: list[OutgoingEvent]) -> None:
        """Give these out next, as they are. What was to be replayed before is not, but for the replies to
        whoever asked for it."""
        replies = [event for event in self._replay if isinstance(event, Attached)]
        *missed, attached = events
        self._set_replay([*missed, *replies, attached])

    def replayed_from(self, after: int) -> int:
        """`after`, or the event before what is still to be replayed, if that is earlier."""
        seqs = [event.seq for event in self._replay if isinstance(event, StreamEvent)]
        return min([after, *(seq - 1 for seq in seqs[:1] if isinstance(seq, int))])

    def drop_replay(self) -> None:
        """Whoever asked for it is gone."""
        self._set_replay([])

    def _set_replay(self, events: list[OutgoingEvent]) -> None:
        """Events of the history are counted there."""
        self._replay = events
        self._replay_bytes = sum(
            event_bytes(event) if isinstance(event, Snapshot | Attached) else REFERENCE_BYTES
            for event in events
        )

    def _seq_of(self, at: int) -> int:
        seq = self._history.things[at].seq
        assert isinstance(seq, int)
        return seq

    # -- out -------------------------------------------------------------------------------------

    def take(self) -> list[OutgoingEvent]:
        """Everything that may go out now. What is no token passes those that wait for credit. These are not
        looked at again, but as far as they go out: there may be very many, and a stream is asked with every
        token."""
        count = len(self.items)
        if self._waiting_tokens == count and not self._replay:
            events = self._take_tokens(count)
        else:
            events, self._replay, self._replay_bytes = self._replay, [], 0
            self._take_items(events)
        self._left = len(self.items)
        return events

    def _take_items(self, events: list[OutgoingEvent]) -> None:
        coming = self.items[self._left :]
        del self.items[self._left :]
        kept: list[PendingToken] = self.items  # type: ignore[assignment]
        ready = list(takewhile(self._may_be_sent, kept))
        del kept[: len(ready)]
        for item in coming:
            if isinstance(item, PendingToken):
                (kept if kept or not self._may_be_sent(item) else ready).append(item)
            else:
                self._give_out(events, ready)
                ready = []
                self._waits_no_more(item)
                self._send_event(events, item)
                if kept and self._may_be_sent(kept[0]):  # it has just been resumed
                    ready = list(takewhile(self._may_be_sent, kept))
                    del kept[: len(ready)]
        if ready:
            # What has no token waits for none more: perhaps none comes. Of those behind whole intervals go.
            behind = sum(1 for _ in takewhile(_is_token, reversed(ready)))
            whole = len(ready) - behind + self._whole_intervals(behind, ready[-1].index + 1)
            kept[:0] = ready[whole:]
            self._give_out(events, ready[:whole])

    def _give_out(self, events: list[OutgoingEvent], batch: list[PendingToken]) -> None:
        for pending in batch:
            self._waits_no_more(pending)
        self._send_tokens(events, batch)

    def _take_tokens(self, count: int) -> list[OutgoingEvent]:
        """The same where nothing else waits: it is known without a look at all of them which may go out."""
        events: list[OutgoingEvent] = []
        waiting: list[PendingToken] = self.items  # type: ignore[assignment]
        if not count or self.paused is not None:
            return events
        first, ready = waiting[0].index, count
        if first + count > self.credit.limit:
            ready = self.credit.limit - first
        if self.interval != 1:
            ready = self._whole_intervals(ready, first + ready)
        if ready == count:
            self.items, self._waiting_bytes, self._waiting_tokens = [], 0, 0
            (self._send_piece if count == 1 else self._send_tokens)(events, waiting)
        elif ready > 0:
            batch = waiting[:ready]
            del waiting[:ready]
            self._waiting_tokens -= ready
            self._waiting_bytes -= sum(pending.bytes for pending in batch)
            self._send_tokens(events, batch)
        return events

    def _may_be_sent(self, pending: PendingToken) -> bool:
        return pending.token is None or (self.paused is None and pending.index < self.credit.limit)

    def _whole_intervals(self, count: int, end: int) -> int:
        """How many of `count` tokens before index `end` go out now: whole intervals; all, where no more may
        come before a grant."""
        if self.interval == 1 or end >= min(self.credit.limit, self.credit.granted):
            return count
        return count - count % self.interval

    def _send_tokens(self, events: list[OutgoingEvent], batch: list[PendingToken]) -> None:
        """As one event; as several where something else is known with the tokens, or where some have a log
        probability and some have none."""
        begin = 0
        for at in range(1, len(batch)):
            if not _go_together(batch[begin], batch[at]):
                self._send_piece(events, batch[begin:at])
                begin = at
        if batch:
            self._send_piece(events, batch[begin:])

    def _send_piece(self, events: list[OutgoingEvent], batch: list[PendingToken]) -> None:
        first = batch[0]
        if len(batch) == 1:
            delta, count = first.delta, int(first.token is not None)
        else:
            delta = "".join([pending.delta for pending in batch])
            count = len(batch) - [pending.token for pending in batch].count(None)
        event = Token(request_id=self.request_id, index=first.index, count=count, delta=delta)
        if self.shows_tokens:
            event.tokens = [pending.token for pending in batch if pending.token is not None]
        if first.logprob is not None:  # then all that are tokens have one
            event.logprobs = [pending.logprob for pending in batch if pending.logprob is not None]
        if count:  # what has no token may be void by now, with those before it
            self.sent = self._listener_index = first.index + count
        self._listener_length += len(delta)
        if count or delta:
            self._keep(event)
            events.append(event)
        if first.beside:  # and of one kind
            for beside in joined([one for pending in batch for one in pending.beside]):
                self._listener_lengths = with_beside(self._listener_lengths, beside)
                self._send(events, beside)

    def _send_event(self, events: list[OutgoingEvent], event: StreamEvent | Error) -> None:
        if isinstance(event, Paused | Resumed):
            self.paused = event.reason if isinstance(event, Paused) else None
            # What was decoded ahead of credit comes later, or was rewound since.
            event.index = self._listener_index
        elif isinstance(event, Rewound):
            # A snapshot has told of a later rewinding already, or the tokens before it wait for credit.
            if event.index > self._listener_index:
                event.index, event.text_length = self._listener_index, self._listener_length
                tell_lengths(event, self._listener_lengths)
            else:  # or of other calls, which stand there now
                event.text_length = min(event.text_length, self._listener_length)
                tell_lengths(event, least(lengths_of(event), self._listener_lengths))
            self._listener_index, self._listener_length = event.index, event.text_length
            self._listener_lengths = lengths_of(event)
        self._send(events, event)

    def _send(self, events: list[OutgoingEvent], event: StreamEvent | Error) -> None:
        if not isinstance(event, Error):  # which answers a frame: it is no part of the stream's history
            self._keep(event)
        if event.ref is not None and isinstance(event, Answer):
            answer = replace(event, params=Params()) if isinstance(event, Adjusted) else event
            self._answers.append(answer, event_bytes(answer))
            self._answers.drop(max(0, len(self._answers.things) - MAX_ANSWERED))
        events.append(event)

    def _keep(self, event: StreamEvent) -> None:
        """Under its number, until it is known to have been read."""
        event.seq = self.seq
        self.seq += 1
        history = self._history
        history.append(event, event_bytes(event))
        if len(history.things) > HISTORY_LIMIT:
            self._forget(1)
        if history.bytes > HISTORY_BYTES:
            self.shorten_history(HISTORY_BYTES)


def _go_together(first: PendingToken, pending: PendingToken) -> bool:
    """Whether they are told by one event."""
    if pending.token is not None and (pending.logprob is None) != (first.logprob is None):
        return False
    return not (first.beside or pending.beside) or _kind(first) == _kind(pending)


def _kind(pending: PendingToken) -> object:
    """What is known with it: of one kind and one call alone, tokens are told together."""
    match pending.beside:
        case []:
            return None
        case [Reasoning()]:
            return Reasoning
        case [ToolArguments(call_id=call_id)]:
            return call_id
    return pending.index, pending.token


def _is_token(item: Item) -> bool:
    """And not the text that is left in the end, which has none."""
    return isinstance(item, PendingToken) and item.token is not None
