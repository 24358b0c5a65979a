"""The sequence: a stream's tokens in the engine, and how many of them are computed.

    p  p  p  p  p  o  o  o  i  i  o  o  ?  ?
    [- num_prompt ]
    [----------- num_tokens -----------][----]  num_placeholders
    [--------- num_computed --------][----][-]  num_uncomputed
                                     |     ^ next_position
                                     num_in_flight

p: prompt, o: output, i: injected, ?: sampled by steps in flight, and not known to the host yet

- `num_prompt`: tokens of the prompt.
- `num_outputs`: output tokens, without what was injected among them.
- `num_tokens`: all tokens that the host knows. They are numbers of 32 bits, and no objects: a fork of a very
  long context costs who asks for it a line.
- `num_computed`: tokens whose keys and values stand in the KV cache.
- `num_in_flight`: tokens behind those that the rows in flight compute.
- `num_placeholders`: tokens that the rows in flight sample, which the host does not know yet.
- `next_position`: where computing goes on, num_computed + num_in_flight.
- `num_uncomputed`: tokens, placeholders included, that no step has been planned for.
- `num_to_compute`: how many of them the next step should compute; 0 for a sequence that is to wait.
- `num_writable`: up to here what is computed next goes to a block that it has, and that nobody else reads or
  may find. Where it is not so, or not known to be, no more than `next_position`.
- `num_yielding`: tokens that came with it from an engine that is gone, to others that were here before.

A sequence whose output has a grammar holds its constraint, and tells it of every change of the tokens. One
that waits for what the constraint has to say samples nothing meanwhile, as if it had no credit. A token that
is banned at an output index is not chosen there; bans stay with the tokens before them, and go with those.

Prefill, decode, resumption after an eviction, injection and rewind are one thing then: `num_computed` catches
up with `num_tokens`.

It knows no scheduler, no model and no tensor. Its tables of blocks, `slot`, `num_computed` and `num_writable`
are written by those who own the memory behind them.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Several
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import accumulate, compress
from operator import itemgetter
from typing import TYPE_CHECKING

from engine.api import Logprob, Sampling
from engine.schedule.windows import GONE, first_held

if TYPE_CHECKING:
    from engine.schedule.batch import Row
    from engine.structure.constraint import Constraint

ALL = -1  # of the tokens
OWN = -1  # the number of no tenant
NOT_YET = 1 << 62  # a step that none comes to
REMEMBERED = 16  # changes of tokens, each behind the one before


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Sequence:
    """A stream's tokens, in the order that the model sees them: prompt, then output with injections among
    it."""

    stream: int
    known: InitVar[Several[int]]
    sampling: Sampling
    _: KW_ONLY
    credit: int
    context: int
    priority: int = 0
    tenant: int = 0
    num_prompt: int = ALL
    injections: list[tuple[int, int]] = field(default_factory=list)  # (output index, how many tokens)
    known_bans: InitVar[Several[tuple[int, int]]] = ()  # (output index, token), in order of indices
    cache_of: int = OWN  # whose computed blocks it finds: its tenant's, mostly
    tokens: array[int] = field(init=False)
    ban_indices: array[int] = field(init=False)
    banned: array[int] = field(init=False)  # the token of each
    num_outputs: int = field(init=False)
    injection_starts: list[int] = field(init=False)  # how many tokens behind the prompt stand before each
    paused: bool = False  # by the client
    preempted: bool = False  # told that it waits for memory
    num_computed: int = 0
    num_had: int = 0  # of its first tokens, that it had computed when it lost memory last
    lost_to_own: bool = False  # by its client's doing, or to another of its tenant's
    num_writable: int = 0
    num_in_flight: int = 0
    num_placeholders: int = 0
    num_yielding: int = 0
    in_flight: list[Row] = field(default_factory=list)  # in the order in which they complete
    blocks: list[int] = field(default_factory=list)  # the block table, of the first group of layers
    other_blocks: list[list[int]] = field(default_factory=list)  # the tables of the other groups
    block_hashes: list[bytes] = field(default_factory=list)  # of its full computed blocks
    token_hashes: list[bytes] = field(default_factory=list)  # of its first full blocks, as far as was asked
    num_hashed: int = sys.maxsize  # up to here at most those are of the tokens that stand
    num_offered: int = 0  # of its full computed blocks, offered to the host cache
    pending_load: object | None = None  # computed blocks that are on their way from the host's memory
    constraint: Constraint | None = None  # of a grammar
    awaited_outlook: object | None = None  # of the constraint: nothing is sampled before it is there
    slot: int = -1  # row of the sampler's parameter tensors; -1 while it has none
    admitted: bool = False  # whether it ever held memory
    last_served: int = 0  # the scheduler's step in which it last had a row
    memory_since: int = 0  # and since which it waits for memory, or has tokens of what it has
    tokens_version: int = 0  # times that tokens changed otherwise than by sampling one more
    stood: list[tuple[int, int]] = field(default_factory=list)  # (version, tokens that stood), ever more
    blocks_version: int = 0  # times that blocks changed otherwise than by adding some behind the last

    def __post_init__(self, known: Several[int], known_bans: Several[tuple[int, int]]) -> None:
        self.tokens = array("i", known)
        self.injections = list(self.injections)
        self.ban_indices = array("i", (index for index, _ in known_bans))
        self.banned = array("i", (token for _, token in known_bans))
        if self.num_prompt == ALL:
            self.num_prompt = len(self.tokens)
        if self.cache_of == OWN:
            self.cache_of = self.tenant
        injected = list(accumulate((count for _, count in self.injections), initial=0))
        self.injection_starts = [
            index + before for (index, _), before in zip(self.injections, injected, strict=False)
        ]
        self.num_outputs = len(self.tokens) - self.num_prompt - injected[-1]
        self.num_had = len(self.tokens) if self.num_outputs else 0  # in an engine that is gone

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def next_position(self) -> int:
        return self.num_computed + self.num_in_flight

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) + self.num_placeholders - self.num_computed - self.num_in_flight

    @property
    def num_to_compute(self) -> int:
        """The last known token is computed only together with sampling what follows it: its logits are needed
        then, and nothing keeps them. So a sequence without credit is ready when all but its last token are
        computed; if it is evicted meanwhile, it takes no memory before it has credit.
        """
        if self.paused or self.pending_load or (self.evicted and not self.may_sample):
            return 0
        return max(0, self.num_uncomputed - (0 if self.may_sample else 1))

    @property
    def num_recomputed(self) -> int:
        """How many that it had computed it computes again."""
        return max(0, min(self.num_had, self.num_tokens - 1) - self.num_computed)

    @property
    def yields(self) -> bool:
        """Whether those who decode are to keep their pace beside what it has to compute."""
        return self.next_position < self.num_yielding

    @property
    def next_index(self) -> int:
        """Of the output token that is sampled next, counting placeholders."""
        return self.num_outputs + self.num_placeholders

    @property
    def may_sample(self) -> bool:
        if self.paused or self.awaited_outlook:
            return False
        more, sampling = self.num_placeholders, self.sampling
        index = self.num_outputs + more
        return index < self.credit and index < sampling.max_tokens and len(self.tokens) + more < self.context

    @property
    def most_drafts(self) -> int:
        """How many more tokens it might sample behind those that are planned."""
        index, known = self.next_index, len(self.tokens) + self.num_placeholders
        return max(0, min(self.credit - index, self.sampling.max_tokens - index, self.context - known))

    @property
    def length_reached(self) -> bool:
        return self.num_outputs >= self.sampling.max_tokens or len(self.tokens) >= self.context

    @property
    def tables(self) -> list[list[int]]:
        """The block table of each group of layers."""
        return [self.blocks, *self.other_blocks]

    @property
    def held_tables(self) -> list[list[int]]:
        """What its tables still hold."""
        return [table[first_held(table) :] for table in self.tables]

    @property
    def held_blocks(self) -> list[int]:
        """All blocks of its memory."""
        if not self.other_blocks and (not self.blocks or self.blocks[0] != GONE):
            return self.blocks
        return [number for table in self.tables for number in table[first_held(table) :]]

    @property
    def evicted(self) -> bool:
        """Whether it had memory, here or in an engine that is gone, and has none now."""
        return not self.blocks and (self.admitted or self.num_outputs > 0)

    @property
    def lost(self) -> bool:
        """Whether it goes on, but for the memory that it had."""
        return self.admitted and not self.blocks and self.num_to_compute > 0

    @property
    def decoding(self) -> bool:
        """Whether all that is missing is the row that samples its next token."""
        known = len(self.tokens) + self.num_placeholders
        at_last = known - self.num_computed - self.num_in_flight == 1
        return at_last and bool(self.blocks) and not self.pending_load and self.may_sample

    @property
    def idle(self) -> bool:
        """Whether it holds memory for nothing that is to be done."""
        return bool(self.blocks) and not (self.num_to_compute or self.num_in_flight or self.pending_load)

    @property
    def stalled(self) -> bool:
        """Whether nothing but credit is missing."""
        return not self.paused and self.num_outputs >= self.credit and not self.length_reached

    # -- rows in flight --------------------------------------------------------------------------

    def launch(self, row: Row) -> None:
        """The row continues what is planned already, and has no drafts yet."""
        self.in_flight.append(row)
        self.num_in_flight += row.count
        self.num_placeholders += row.samples

    def complete(self, row: Row) -> None:
        """What is left of the row, the oldest in flight, stands computed."""
        self.in_flight.remove(row)
        self.num_in_flight -= row.kept
        self.num_computed += row.kept
        self.num_placeholders -= row.num_awaited

    def lose_computed(self, keep: int = 0) -> None:
        """Only so many of its tokens stand computed: others were."""
        self.num_had = max(self.num_had, self.num_computed)
        self.num_computed = min(self.num_computed, keep)
        self.num_writable = 0

    def draft(self, row: Row, drafts: tuple[int, ...]) -> None:
        """The row, the last in flight, has these drafts behind its known tokens, and no others."""
        more = len(drafts) - len(row.drafts)
        row.drafts = drafts
        row.count += more
        self.num_in_flight += more
        self.num_placeholders += more

    def give_up_in_flight(self, position: int = 0) -> None:
        """Whatever is in flight counts only up to this position: what is computed behind it, and what is
        sampled there, is void. It is as if no more had been planned."""
        self.num_had = max(self.num_had, self.next_position)  # what is computed in vain is, too
        for row in self.in_flight:
            given_up = min(row.count, row.end - position)
            if given_up > row.given_up:
                awaited, was_void = row.num_awaited, row.void
                self.num_in_flight -= given_up - row.given_up
                row.given_up = given_up
                self.num_placeholders -= awaited - row.num_awaited
                if row.void and not was_void:  # what was counted of it is void
                    self._changed(self.num_tokens)
        self.in_flight = [row for row in self.in_flight if not row.discarded]
        if self.constraint is not None:
            self.constraint.truncate(self.num_tokens + self.num_placeholders)

    # -- tokens ----------------------------------------------------------------------------------

    def _changed(self, stand: int) -> None:
        """Otherwise than by one more, and not the first of them, so many."""
        self.tokens_version += 1
        while self.stood and self.stood[-1][1] >= stand:
            self.stood.pop()
        self.stood.append((self.tokens_version, stand))
        if len(self.stood) > REMEMBERED:
            (_, least), (version, _) = self.stood[:2]
            self.stood[:2] = [(version, least)]

    def stood_since(self, version: int) -> int:
        """How many of the tokens that it had then, the first of them, are as they were; or fewer."""
        return next((stand for at, stand in self.stood if at > version), self.num_tokens)

    def append_output(self, token: int) -> None:
        self._tell_constraint([token])
        self.tokens.append(token)
        self.num_outputs += 1

    def force(self, tokens: list[int]) -> None:
        """These come next, without being sampled: a row that was launched to sample the first of them does
        not."""
        for row in self.in_flight:
            if row.samples and not row.void:
                assert not row.drafts, "they are sampled behind"
                row.samples, row.forced = False, True
                self.num_placeholders -= 1
        self._tell_constraint(tokens)
        self.tokens.extend(tokens)
        self.num_outputs += len(tokens)

    def _tell_constraint(self, tokens: list[int]) -> None:
        if self.constraint is not None:
            self.constraint.append(tokens, self.num_tokens)

    def output_position(self, index: int) -> int:
        """Where output token `index` stands, or would stand, among the tokens."""
        number = bisect_right(self.injections, index, key=itemgetter(0))
        if not number:
            return self.num_prompt + index
        before, count = self.injections[number - 1]
        return self.num_prompt + self.injection_starts[number - 1] + count + index - before

    def output_marks(self, since: int = 0) -> bytearray:
        """Of each token from that position on whether it is output. There may be very many injections before
        it."""
        marks, at = bytearray(max(0, self.num_prompt - since)), max(0, since - self.num_prompt)
        first = max(0, bisect_right(self.injection_starts, at) - 1)
        for start, (_, count) in zip(self.injection_starts[first:], self.injections[first:], strict=True):
            marks += b"\1" * (start - at) + bytes(max(0, start + count - max(start, at)))
            at = max(at, start + count)
        marks += b"\1" * (self.num_tokens - since - len(marks))
        return marks

    def output_tokens(self) -> list[int]:
        """The output, without what was injected among it."""
        return list(compress(self.tokens, self.output_marks()))

    def truncate(self, index: int) -> int:
        """Remove output from `index` on, and later injections; returns how many tokens are left.

        An injection that stands before token `index` is context that the token was sampled in: it stays.
        """
        assert 0 <= index <= self.num_outputs
        return self.cut(self.output_position(index))

    def cut(self, position: int) -> int:
        """Remove all tokens from this position on, which may lie within an injection."""
        self._changed(position)
        unfollowed = self.unfollowed(position)
        if position < self.num_tokens:
            self._cut_injections(position - self.num_prompt)
            del self.tokens[position:]
            self.num_hashed = min(self.num_hashed, position)
        standing = bisect_right(self.ban_indices, self.num_outputs)
        del self.ban_indices[standing:], self.banned[standing:]
        self.num_computed = min(self.num_computed, self.num_tokens - 1)
        self.num_yielding = min(self.num_yielding, self.num_tokens - 1)
        self.num_writable = 0
        self.give_up_in_flight(self.num_tokens - 1)
        self.num_had = min(self.num_had, self.num_tokens)
        if self.constraint is not None and unfollowed:
            self.constraint.append(unfollowed, position - len(unfollowed))
        return self.num_tokens

    def _cut_injections(self, left: int) -> None:
        """Only so many tokens behind the prompt stand. There may be very many injections before those."""
        number = bisect_left(self.injection_starts, left)
        del self.injections[number:], self.injection_starts[number:]
        self.num_outputs = left
        if number:
            (before, count), start = self.injections[-1], self.injection_starts[-1]
            stays = min(count, left - start)
            self.injections[-1] = before, stays
            self.num_outputs -= start - before + stays

    def unfollowed(self, position: int) -> list[int]:
        """Of the tokens before this position those that its grammar would have to follow yet, if all from
        there on were removed: of an injection behind which it began anew they are the grammar's before."""
        if self.constraint is None:
            return []
        return self.tokens[self.constraint.followed(position) : position].tolist()

    def ban(self, token: int) -> None:
        """It may not come next."""
        self.ban_indices.append(self.num_outputs)
        self.banned.append(token)

    def banned_at(self, index: int) -> array[int]:
        """Tokens that may not stand there. Guards may have banned very many, there and elsewhere."""
        first = bisect_left(self.ban_indices, index)
        return self.banned[first : bisect_right(self.ban_indices, index, first)]

    def take_back_end(self) -> None:
        """Remove the end token, which is the last. All before it stays computed, though nothing could be
        sampled behind it: something else is to be put there."""
        computed = self.num_computed
        self.truncate(self.num_outputs - 1)
        self.num_computed = min(computed, self.num_tokens)

    def inject(self, tokens: list[int], *, grammar_anew: bool = False) -> None:
        """Put context tokens before the next output token, whatever was sampled for that so far."""
        self.give_up_in_flight(self.num_tokens - 1)
        self._changed(self.num_tokens)
        if not grammar_anew:
            self._tell_constraint(tokens)
        elif self.constraint is not None:
            self.constraint.begin_anew(self.num_tokens + len(tokens))
        self.injections.append((self.num_outputs, len(tokens)))
        self.injection_starts.append(self.num_tokens - self.num_prompt)
        self.tokens.extend(tokens)


class SampledToken:
    """What the sampler chose for one sequence; `token` is None when its logits were no numbers."""

    __slots__ = ("logprob", "token")

    def __init__(self, token: int | None, logprob: Logprob | None = None) -> None:
        self.token = token
        self.logprob = logprob
