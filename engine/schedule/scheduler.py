"""The scheduler: which tokens are computed in the next step, for which sequences, and in whose memory.

It knows sequences, blocks and a budget of tokens a step. It knows no model, no tensor and no clock but the
number of steps, so that everything it promises can be tested without them:

- a row that samples a token goes before a row that prepares one, so a long prompt slows nobody's next token;
- a tenant's crowd, and prompts beside others' rows or from an engine that is gone, leave those others most of
  their pace;
- a sequence that is paused or out of credit is in no batch, and costs nothing, nor does one that waits;
- tenants share by tokens served, and within a tenant everybody has a turn;
- a higher priority goes first, but whoever has waited for long is due, so nobody waits for ever;
- memory is taken from those who are not running before anyone who runs, only from a lower rank, from a
  tenant that has clearly more or in turn, and never in vain;
- a prompt that begins like one that is being computed waits for what both have in common.

Where a sequence stands follows from its numbers: `update_ready` files it there after every change of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from operator import itemgetter

from engine.schedule.batch import Batch, Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import HostCache, Load
from engine.schedule.memory_line import Look, MemoryLine
from engine.schedule.prefixes import Prefixes
from engine.schedule.prompts import Prompts
from engine.schedule.sequence import NOT_YET, Sequence
from engine.schedule.serving_order import Rotation, Shares, Turn
from engine.schedule.victims import Holders

SHARE = 2  # one in so many tokens of a prompt's step go to the prompt whose turn it is
DUE_SHARE = 4  # and one in so many rows, and tokens of prompts, to those that are due
# Blocks that a step looks for in the cache, and then for no further prompt: a millisecond. To begin with one
# takes as long as so many.
MOST_LOOKUPS, BEGIN_LOOKUPS = 512, 16


class Scheduler:
    def __init__(
        self,
        cache: BlockCache,
        *,
        step_tokens: int,
        batch_rows: int,
        tenant_prefill: int,
        host_cache: HostCache | None = None,
        prompt_tokens: Callable[[int], int] | None = None,
        most_rows: Callable[[int, int, int, bool, bool], int | None] | None = None,
    ) -> None:
        """`prompt_tokens`: how many tokens of prompts leave so many rows that decode most of their pace; half
        of a step's, if nobody knows. `most_rows`: how many rows, and drafts, a step of so many tenants may
        have, of whom this one has the fewest, so many, maybe beside prompts, maybe with nobody who has or
        drafts more; None if it is to have nothing else."""
        assert step_tokens > 1 and batch_rows > 1, "a step has room for a token and for preparing another"
        assert step_tokens <= cache.windows.chunk, "a window's table has room for a step"
        self.cache = cache
        self._slides = cache.windows.sizes != (None,)
        self.host_cache = host_cache or HostCache()
        self.step_tokens = step_tokens
        self.batch_rows = batch_rows
        self.tenant_prefill = tenant_prefill
        self._prompt_tokens = prompt_tokens or (lambda rows: step_tokens // 2)
        self._most_rows = most_rows
        self.drafts = False  # whether somebody has rows compute any
        self.sequences: dict[int, Sequence] = {}
        self.steps = 0
        self.evictions = 0
        self.preemptions = 0
        self.credit_stalls = 0
        self._ready: set[int] = set()  # streams that have something to compute, or in flight
        self._shares = Shares()
        self._decoding = Rotation(self._shares)
        self._prompts = Prompts(self._shares)
        self._orders = (self._decoding, self._prompts.begun, self._prompts.queued)
        self._most_picked = 2 * batch_rows  # in a step: whoever finds no memory had a turn as well
        self._prefixes = Prefixes(cache.block_size)
        self._holders = Holders(cache)
        self._loads: list[Load] = []  # for the next batch
        self._fence = False
        self._recomputed: list[tuple[Sequence, int]] = []  # for the next batch
        self._memory_line = MemoryLine()
        self._returning: dict[int, Sequence] = {}  # go on, and are told if they find their memory gone
        # Of the step that is being planned:
        self._picked: list[Sequence] = []  # had their turn, and stand in no line meanwhile
        self._running: set[int] = set()  # streams that have a row, or memory for one: they keep it
        self._computed: set[int] = set()  # streams of prompts that have a row
        self._evicted: set[int] = set()  # streams that lost their memory
        self._short: list[Sequence] = []  # found no memory for their token
        self._begun: dict[int, int] = {}  # by tenant: tokens of its prompts that hold memory
        self._lookups = 0  # blocks that were looked for in the cache
        self._most: int | None = None  # rows and drafts beside other tenants'; 0 if no more are to be had
        self._few_alone = False  # rows of whoever has the fewest, and nothing else
        self._row_limit = batch_rows  # with those of prompts

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """Whether a step would compute nothing, nor have anything loaded for who is to go on."""
        return not (self._ready or self._loads)

    def has_ready_beside(self, streams: AbstractSet[int]) -> bool:
        return not self._ready <= streams

    def add(self, sequence: Sequence) -> None:
        self._shares.add(sequence.tenant)
        self.sequences[sequence.stream] = sequence
        self.update_ready(sequence)

    def remove(self, sequence: Sequence) -> None:
        sequence.give_up_in_flight()
        self.release_blocks(sequence)
        del self.sequences[sequence.stream]
        self._ready.discard(sequence.stream)
        self._returning.pop(sequence.stream, None)
        self._decoding.discard(sequence)
        self._prompts.remove(sequence)
        self._memory_line.leave(sequence)
        self._file_memory(sequence)
        self._shares.remove(sequence.tenant)

    def update_ready(self, sequence: Sequence) -> None:
        """After anything that may have changed how much the sequence has to compute, or in what memory."""
        if sequence in self._decoding and sequence.decoding and sequence not in self._prefixes:
            return
        if not sequence.num_to_compute:
            self.credit_stalls += sequence.stream in self._ready and sequence.stalled
            self._ready.discard(sequence.stream)
            self.host_cache.offer(sequence)
        elif sequence.stream not in self._ready:
            sequence.last_served = self.steps  # it waits from now on, not from before it was idle
            if not sequence.blocks:
                sequence.memory_since = self.steps
            self._ready.add(sequence.stream)
        if sequence.lost and not sequence.preempted:
            self._returning[sequence.stream] = sequence
        self._file_memory(sequence)
        self._file_turn(sequence)

    def schedule(self) -> Batch:
        """Plan this step's rows. Everything in the batch has its memory."""
        self.steps += 1
        batch = Batch(loads=self._loads, fence=self._fence)
        self._loads, self._fence = [], False
        self._begin_step()
        self._admit_urgent(batch)
        self._bound_crowds()
        # However many decode, one that prefills gets a row: else nobody would ever join a full batch.
        rows = min(self.step_tokens, self.batch_rows)
        all_decode = self._plan_decoding(batch, rows - bool(self._prompts))
        left = self.step_tokens - len(batch.rows)
        most = self._most_prompt_tokens(batch, left)
        if self._most:  # a prompt's row may take as long as another; a long and a short one have theirs
            self._row_limit = min(self.batch_rows, max(len(batch.rows) + 2, self._most))
        unused = self._plan_prompts(batch, most)
        if not all_decode:
            tokens = left - most + unused
            all_decode = self._plan_decoding(batch, min(self.batch_rows, len(batch.rows) + tokens))
        if all_decode and not self._prompts:
            self._shares.settle()
        if self._evicted:
            self._plan_with_what_came_free(batch, unused)
        self._end_step(batch)
        batch.loads += self._loads
        self._loads = []
        return batch

    def num_draftable(self, batch: Batch) -> int:
        """Tokens that the batch that was planned last has room for. Of several tenants, drafts make a step no
        longer than rows may."""
        room = self.step_tokens - sum(row.count for row in batch.rows)
        return room if self._most is None else max(0, min(room, self._most - len(batch.rows)))

    def draft(self, row: Row, drafts: list[int]) -> None:
        """Have a row of the batch that was planned last compute drafts behind its tokens, as many as there is
        memory for that no sequence has."""
        sequence, end = row.sequence, row.end + len(drafts)
        if end > sequence.num_writable and not self.cache.grow(sequence, end):
            drafts = drafts[: max(0, sequence.num_writable - row.end)]
        sequence.draft(row, tuple(drafts))

    def commit(self, row: Row) -> None:
        """What is left of the row stands computed, and its sequence knows those of its drafts that were
        right."""
        if row.drafts:
            self._shares.charge(row.sequence.tenant, row.num_right)
        row.sequence.complete(row)
        self.cache.cache_full_blocks(row.sequence)
        if self._slides:
            self.cache.let_go_of_past(row.sequence)

    def void(self, row: Row) -> None:
        """The row was discarded: its sequence, where it is still there, has to compute it again."""
        if self.sequences.get(row.sequence.stream) is row.sequence:
            self.update_ready(row.sequence)

    # -- lines -----------------------------------------------------------------------------------

    def _file_turn(self, sequence: Sequence) -> None:
        """Have it stand in the line that its numbers say."""
        if sequence.decoding:
            self._prompts.remove(sequence)
            if sequence not in self._decoding:
                self._decoding.add(sequence)
            return
        self._decoding.discard(sequence)
        if self._prefixes.follows(sequence):
            self._prompts.take(sequence)
        elif sequence.num_to_compute:
            self._prompts.file(sequence)
        else:
            self._prompts.remove(sequence)

    def _file_again(self, sequence: Sequence) -> None:
        """After a turn: it has a row, follows another, waits for its memory to be loaded, or got nothing."""
        if sequence.stream in self._computed or self._prefixes.follows(sequence):
            self._file_turn(sequence)
        else:
            self.update_ready(sequence)

    def _file_memory(self, sequence: Sequence) -> None:
        if bool(sequence.blocks) != (sequence in self._holders):
            sequence.memory_since = NOT_YET if sequence.blocks else self.steps
        self._holders.file(sequence)
        self._prefixes.leave(sequence)
        for follower in self._prefixes.update(sequence):
            self._file_turn(follower)

    def _begin_step(self) -> None:
        self._running.clear()
        self._computed.clear()
        self._evicted.clear()
        self._short.clear()
        self._begun.clear()
        self._lookups = 0
        self._decoding.begin_step()
        self._prompts.begin_step()
        for tenant in self._memory_line.begin_step(self.steps):
            self._prompts.close_to(tenant)
        self._shares.advance([turn.served for order in self._orders if (turn := order.next_turn())])

    def _end_step(self, batch: Batch) -> None:
        """Whoever had a turn stands in line again; whoever should have gone on is told why it does not."""
        for sequence in self._picked:
            self._file_again(sequence)
        self._picked.clear()
        for sequence in self._returning.values():
            if sequence.lost and not sequence.preempted:
                sequence.preempted = True
                batch.preempted.append(sequence)
        self._returning.clear()
        batch.recomputed, self._recomputed = self._recomputed, []

    # -- rows that sample a token ----------------------------------------------------------------

    def _bound_crowds(self) -> None:
        """Where a step with a row for each would be too long for whoever has few, all have as many at most.
        Of many tenants a step has few rows each in any case."""
        counts = self._decoding.counts
        self._most, self._few_alone, self._row_limit = None, False, self.batch_rows
        if self._most_rows is None or not self._are_beside_others:
            return
        if len(counts) > self.batch_rows // 2:
            self._most = 0
            return
        least, fewest = min(counts.items(), key=itemgetter(1))
        tenants = max(2, len(counts))
        even = counts.total() == tenants * fewest and not self.drafts
        most = self._most_rows(tenants, least, fewest, bool(self._prompts), even)
        self._most, self._few_alone = most or 0, most is None
        if not self._few_alone and counts.total() <= self._most:
            return
        each = 0 if self._few_alone else _of_each(sorted(counts.values()), self._most)
        for tenant, count in counts.items():
            if count > each and tenant != least:
                self._decoding.bound(tenant, each)

    def _plan_decoding(self, batch: Batch, limit: int) -> bool:
        """Returns whether there was a row for each that may have one."""
        if len(self._decoding) <= limit - len(batch.rows) and not self._decoding.bounded:
            waiting = self._decoding.sequences
            if batch.rows:  # there were more of them, who have lost their memory since
                waiting = [sequence for sequence in waiting if sequence.last_served < self.steps]
            for sequence in waiting:
                self._plan_token(batch, sequence)
            return True
        due = max(1, limit // DUE_SHARE)
        for _ in range(2 * limit):  # whoever finds no memory for its token had a turn as well
            if len(batch.rows) >= limit:
                break
            late = self._decoding.next_due(self.steps) if due else None
            turn = late or self._decoding.next()
            if turn is None:
                return True
            due = due - 1 if late else 0
            self._plan_token(batch, turn)
        return False

    def _plan_with_what_came_free(self, batch: Batch, prompt_tokens: int) -> None:
        """Others' memory was taken after they had found none, and mostly more than was asked for."""
        tokens = self.step_tokens - sum(row.count for row in batch.rows)
        for sequence in self._short:
            if tokens > 0 and len(batch.rows) < self.batch_rows and sequence.decoding:
                tokens -= self._plan_row(batch, sequence, 1, samples=True)
        left = min(tokens, prompt_tokens)
        for first in self._memory_line.stood_first.values():
            if left <= 0 or len(batch.rows) >= self._row_limit or self._much_looked_up:
                break
            if first.blocks or first.stream in self._evicted:
                continue
            if self._admit(batch, first, in_line=False) and first.num_to_compute:
                left -= self._plan_prompt_row(batch, first, left)
            self._file_again(first)  # it may stand in line already: it was looked for before its turn

    def _plan_token(self, batch: Batch, sequence: Sequence) -> None:
        if sequence.decoding:
            if not self._plan_row(batch, sequence, 1, True):
                self._short.append(sequence)
        elif sequence.num_to_compute:
            self._picked.append(sequence)  # what it had in flight was discarded: it is to be filed anew

    # -- prompts ---------------------------------------------------------------------------------

    def _admit_urgent(self, batch: Batch) -> None:
        """Admit those that rank above one that decodes, or whose tenant has less memory, at the cost of its:
        they need not wait for its end."""
        if self._decoding:
            self._admit_lacking(batch)
        if not self._decoding:
            return
        lowest, tokens = self._decoding.priorities[0], self.step_tokens
        while tokens > 0 and (sequence := self._prompts.urgent(above=lowest)):
            self._admit(batch, sequence)
            self._file_again(sequence)
            tokens -= max(1, sequence.num_to_compute)

    def _admit_lacking(self, batch: Batch) -> None:
        """Before others have rows, which they keep in this step."""
        for first in self._memory_line.leave_before_rows():
            has_beside = self._holders.has_beside(first.tenant)
            if first in self._prompts.queued and has_beside and not self._prompts.closed:
                self._admit(batch, first, in_line=False)
                self._file_again(first)

    def _most_prompt_tokens(self, batch: Batch, left: int) -> int:
        """In a step that has room for so many."""
        if not batch.rows or not (self._prompts.yield_to_others or self._most is not None):
            return left
        tokens = 0 if self._few_alone else self._prompt_tokens(len(batch.rows))
        return min(left, -(-tokens // 2) if self._decoding.bounded else tokens)

    @property
    def _are_beside_others(self) -> bool:
        """Whether rows, or prompts, of one tenant are beside rows of another."""
        tenants = self._decoding.counts
        return len(tenants) > 1 or any(map(self._prompts.has_others, tenants))

    def _plan_prompts(self, batch: Batch, tokens: int) -> int:
        """Returns how many tokens are left."""
        if self._evicted and not self._much_looked_up:  # mostly more came free than was asked for
            self._prompts.open(self._memory_line.stood_first)
        tokens -= self._plan_due_prompts(batch, min(tokens, max(1, tokens // DUE_SHARE)))
        while tokens > 0 and self._may_pick(batch) and (turn := self._prompts.next_turn()):
            tokens -= self._plan_prompt_line(batch, turn, tokens)
        return tokens

    def _plan_due_prompts(self, batch: Batch, tokens: int) -> int:
        """Those that have waited for too long; returns how many tokens they have."""
        spent = 0
        while spent < tokens and self._may_pick(batch) and (late := self._prompts.overdue(self.steps)):
            if not self._pick_prompt(batch, late, tokens - spent):
                break
            spent += self._plan_prompt_row(batch, late, tokens - spent)
        return spent

    def _plan_prompt_line(self, batch: Batch, turn: Turn, tokens: int) -> int:
        """The prompt whose turn it is, beside those of its line that are done sooner; returns how many tokens
        they have."""
        first = self._prompts.first(turn)
        if not self._pick_prompt(batch, first, tokens):
            return 0
        # Of a single token they have every other.
        own = -(-tokens // SHARE) if tokens > 1 else self.steps % SHARE
        spent, others = 0, tokens - min(first.num_to_compute, own)
        while spent < others and self._may_pick(batch, beside=1):
            other = self._prompts.shortest(turn, first.num_to_compute, others - spent)
            if other is None:
                break
            if self._pick_prompt(batch, other, others - spent):
                spent += self._plan_prompt_row(batch, other, others - spent)
        left = tokens - spent
        return spent + (self._plan_prompt_row(batch, first, left) if left else 0)

    def _may_pick(self, batch: Batch, beside: int = 0) -> bool:
        return len(batch.rows) + beside < self._row_limit and len(self._picked) < self._most_picked

    def _pick_prompt(self, batch: Batch, sequence: Sequence, tokens: int) -> bool:
        """It has its turn, and so many tokens of the step; False where it cannot go on in this step."""
        tenant = sequence.tenant
        if tenant not in self._begun:
            self._begun[tenant] = self._prompts.num_begun_tokens(tenant)
        self._prompts.take(sequence)
        begins = not sequence.blocks
        if begins:
            able = self._may_begin(sequence, tokens) and self._admit(batch, sequence)
        else:
            able = self._catch_up(sequence)
        if not self._prefixes.follows(sequence):
            self._picked.append(sequence)
        if able and begins:
            self._begun[tenant] += sequence.num_to_compute
        return able and sequence.num_to_compute > 0

    @property
    def _much_looked_up(self) -> bool:
        return self._lookups >= MOST_LOOKUPS

    def _may_begin(self, sequence: Sequence, tokens: int) -> bool:
        """A tenant has so much begun at once, and beside it what this step completes."""
        begun = self._begun[sequence.tenant]
        if begun and sequence.num_tokens > tokens and begun + sequence.num_tokens > self.tenant_prefill:
            self._prompts.close_to(sequence.tenant)
            return False
        return sequence.stream not in self._evicted

    def _plan_prompt_row(self, batch: Batch, sequence: Sequence, tokens: int) -> int:
        """At most so many of what it has to compute; returns how many."""
        count = min(tokens, sequence.num_to_compute)
        last = count == sequence.num_uncomputed
        planned = self._plan_row(batch, sequence, count, samples=last and sequence.may_sample)
        if planned:
            self._computed.add(sequence.stream)
        return planned

    def _plan_row(self, batch: Batch, sequence: Sequence, count: int, samples: bool) -> int:
        """Add a row of so many tokens, if there is memory for it; returns how many it computes."""
        start = sequence.num_computed + sequence.num_in_flight
        if start + count > sequence.num_writable:  # mostly it goes on in the block that it has
            if sequence.stream in self._evicted or not self._make_room(sequence, start + count):
                return 0
            batch.copies += self.cache.make_writable(sequence)
        index = sequence.num_outputs + sequence.num_placeholders
        row = Row(sequence, start, count, samples, sequence.sampling, index)
        sequence.launch(row)
        batch.rows.append(row)
        sequence.last_served = self.steps
        if samples:
            sequence.memory_since = min(sequence.memory_since, self.steps)
        self._running.add(sequence.stream)
        self._shares.charge(sequence.tenant, count)
        return count

    # -- memory ----------------------------------------------------------------------------------

    def _admit(self, batch: Batch, sequence: Sequence, *, in_line: bool = True) -> bool:
        """Give a sequence without blocks its memory, if there is room for all of its tokens and one more, and
        nobody computes already what it begins with. `in_line`: it is its turn."""
        if self._memory_line.holds_back(sequence):
            self._let_others_pass(sequence)
            return False
        look = self._memory_line.look_of(sequence)
        if look is not None and not self._evicted:  # it would find no more than a moment ago
            self._let_nobody_overtake(sequence, look)
            return False
        self.cache.match_prefix(sequence)
        lookups = BEGIN_LOOKUPS + sequence.num_tokens // self.cache.block_size
        self._lookups += lookups
        if self._much_looked_up and in_line:
            self._prompts.close()
        follows = self._prefixes.follow(sequence)
        if follows or not self._make_room(sequence, sequence.num_tokens + 1):
            look = None if follows else self._look(sequence, lookups)
            self.cache.release(sequence)
            if look and in_line:
                self._let_nobody_overtake(sequence, look)
            elif look:
                self._memory_line.looked_in_vain(sequence, self.steps, look)
            return False
        found = self._load_from_host(sequence)
        if sequence.preempted:
            sequence.preempted = False
            batch.resumed.append((sequence, sequence.num_recomputed))
        elif not sequence.admitted:
            batch.admitted.append((sequence, found))
        sequence.admitted = True
        self._count_recomputed(sequence)
        self._running.add(sequence.stream)
        self._file_memory(sequence)
        return True

    def _catch_up(self, sequence: Sequence) -> bool:
        """With those of other tenants that begin alike: it waited for no turn of theirs, nor need any two of
        them compute the same. Returns whether it has, as far as may be looked for; else it is further by as
        much as a step looks for, and goes on in the next."""
        if sequence.in_flight or sequence.pending_load or self._much_looked_up:
            return True
        if blocks := self.cache.catch_up(sequence, MOST_LOOKUPS):
            self._lookups += blocks
            self._file_memory(sequence)
        return blocks < MOST_LOOKUPS

    def _let_nobody_overtake(self, sequence: Sequence, look: Look) -> None:
        """It is the first in line for memory, and there is too little: a large prompt would never find room.
        But others wait neither where its own tenant's streams hold it, nor in vain, nor for its looks."""
        if self._memory_line.stand_first(sequence, self.steps, look, free=self.cache.blocks.available):
            self._prompts.close()
        else:
            self._let_others_pass(sequence)

    def _let_others_pass(self, sequence: Sequence) -> None:
        self._prompts.close_to(sequence.tenant)
        sequence.last_served = self.steps  # it had its turn: nor is it due before them

    def _look(self, sequence: Sequence, lookups: int) -> Look:
        needs = sum(self.cache.missing(sequence, sequence.num_tokens + 1))
        givers = self._holders.givers(sequence, needs - self.cache.blocks.available, self.steps)
        return Look(lookups, self._is_held_by_its_own(sequence, needs), givers)

    def _is_held_by_its_own(self, sequence: Sequence, needs: int) -> bool:
        """Whether its tenant's streams hold as much as it needs beside what it shares with them, or so much
        that there is never room for both. What it lacks is no measure: the more comes free for it, the
        sooner they would hold that."""
        beside = self.cache.total - len(sequence.held_blocks) - needs
        return self._holders.hold(sequence.tenant, min(needs, beside + 1), self.steps)

    def release_blocks(self, sequence: Sequence, keep: int = 0) -> None:
        """As its client asks: free the blocks that hold nothing of its first `keep` tokens. Where a window
        before those is gone, it goes back to what is still cached of them."""
        sequence.lost_to_own |= bool(sequence.blocks)
        self.host_cache.offer(sequence)
        gone = not self.cache.can_keep(sequence, keep)
        self.cache.release(sequence, 0 if gone else keep)
        if sequence.pending_load:
            self._fence = True  # whoever gets these blocks must not be written over by the load under way
            if not sequence.blocks:
                sequence.pending_load = None
        if gone:
            self._restore_blocks(sequence)

    def restore_blocks(self, sequence: Sequence) -> int:
        """Give a sequence without memory what is still cached for it, unless its tenant is to give some
        first; returns how many tokens that spares."""
        return 0 if self._memory_line.holds_back(sequence) else self._restore_blocks(sequence)

    def _restore_blocks(self, sequence: Sequence) -> int:
        self.cache.match_prefix(sequence)
        found = self._load_from_host(sequence)
        if sequence.blocks:
            self._count_recomputed(sequence)
        return found

    def _count_recomputed(self, sequence: Sequence) -> None:
        """It has memory again. What others' streams had of it is not its tenant's doing."""
        if sequence.lost_to_own and sequence.num_recomputed:
            self._recomputed.append((sequence, sequence.num_recomputed))
        sequence.num_had = 0

    def invalidate(self, sequence: Sequence) -> list[int]:
        """Have all caches forget what it computed, which cannot be trusted; returns the blocks that hold it
        and that nobody else has."""
        self.host_cache.invalidate(self.cache.names(sequence.block_hashes))
        sequence.num_offered = len(sequence.block_hashes)
        return self.cache.invalidate(sequence)

    def finish_load(self, load: Load) -> None:
        """A load that was planned is done: its blocks can be read."""
        if load.live:
            load.sequence.pending_load = None
            self.cache.cache_full_blocks(load.sequence)
            self.update_ready(load.sequence)

    def abandon_load(self, load: Load) -> None:
        """A load that was planned has failed: what it was to bring is computed again."""
        if load.live:
            sequence = load.sequence
            full = sequence.num_computed // self.cache.block_size
            loading = self.cache.hash_blocks(sequence, full)[len(sequence.block_hashes) :]
            self.host_cache.invalidate(self.cache.names(loading))  # else it would be found, and fail, again
            self.release_blocks(sequence)
            sequence.lost_to_own = False
            self.update_ready(sequence)

    def _load_from_host(self, sequence: Sequence) -> int:
        load = self.host_cache.plan_load(self.cache, sequence)
        if load is not None:
            self._loads.append(load)
        return sequence.num_computed

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Grow its table to so many tokens; where blocks are short, take them from sequences that rank behind
        it, if that is enough."""
        cache = self.cache
        missing = cache.missing(sequence, tokens)
        short = sum(missing) + cache.shared(sequence) - cache.blocks.available
        if short > 0:
            victims = self._holders.victims(sequence, short, self.steps, self._running)
            if not victims:
                return False
            self._evict(victims, sequence.tenant)
        cache.extend(sequence, missing)
        return True

    def _evict(self, victims: list[Sequence], tenant: int) -> None:
        """For one of this tenant."""
        self._evicted.update(victim.stream for victim in victims)
        self._evict_idle([victim for victim in victims if victim.idle])
        for victim in victims:
            if victim.blocks:
                victim.give_up_in_flight()
                if victim.num_to_compute:
                    self.preemptions += 1
                    self._prompts.put_first(victim)
                else:
                    self.evictions += 1
                self.release_blocks(victim)
                self.update_ready(victim)
            victim.lost_to_own = victim.tenant == tenant

    def _evict_idle(self, victims: list[Sequence]) -> None:
        """They stand in no line, and will not. Mostly these are many, so all are let go of together."""
        self.evictions += len(victims)
        for victim in victims:
            self.host_cache.offer(victim)
        self._holders.discard(victims)
        self.cache.release_all(victims)

    # -- proof -----------------------------------------------------------------------------------

    def audit(self) -> None:
        """Raise unless everybody stands where its numbers say."""
        sequences = list(self.sequences.values())
        for sequence in sequences:
            waits = sequence.num_to_compute > 0
            follows = self._prefixes.follows(sequence)
            assert not waits or sequence.stream in self._ready
            assert waits or sequence.num_in_flight or sequence.stream not in self._ready
            if sequence.decoding:
                assert sequence in self._decoding and not follows
                assert sequence not in self._prompts
            elif waits:
                assert follows or sequence in (
                    self._prompts.begun if sequence.blocks else self._prompts.queued
                )
                assert sequence not in self._decoding
            else:
                assert sequence.num_in_flight or sequence not in self._decoding
                assert not follows and sequence not in self._prompts
        assert not self._picked
        filed = {*self._decoding.sequences, *self._prompts.begun.sequences, *self._prompts.queued.sequences}
        assert filed <= set(sequences)
        self._prompts.audit()
        self._prefixes.audit(sequences)
        self._holders.audit(sequences)


def _of_each(counts: Several[int], most: int) -> int:
    """How many of each there may be at most, for so many in all; whoever has the fewest has all of them. They
    come in order."""
    left = most
    for at, count in enumerate(counts):
        share = left // (len(counts) - at)
        if count > share:
            return max(counts[0], share)
        left -= count
    return counts[-1]
