"""The scheduler: which tokens are computed in the next step, for which sequences, and in whose memory.

It knows sequences, blocks and a budget of tokens a step. It knows no model, no tensor and no clock but the
number of steps, so that everything it promises can be tested without them:

- a row that samples a token goes before a row that prepares one, so a long prompt slows nobody's next token;
- a sequence that is paused or out of credit is in no batch, and costs nothing;
- tenants share by tokens served, and within a tenant everybody has a turn;
- a higher priority goes first, but waiting raises a rank, so nobody waits for ever;
- memory is taken from those who are not running before anyone who runs, and only from a lower rank.
"""

from __future__ import annotations

from collections import Counter

from engine.schedule.batch import Batch, Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import HostCache, Load
from engine.schedule.sequence import Sequence
from engine.schedule.serving_order import Fairness
from engine.schedule.victims import choose_victim


class Scheduler:
    def __init__(
        self,
        cache: BlockCache,
        *,
        step_tokens: int,
        batch_rows: int,
        tenant_prefill: int,
        host_cache: HostCache | None = None,
    ) -> None:
        assert step_tokens > 1 and batch_rows > 1, "a step has room for a token and for preparing another"
        self.cache = cache
        self.host_cache = host_cache or HostCache()
        self.step_tokens = step_tokens
        self.batch_rows = batch_rows
        self.tenant_prefill = tenant_prefill
        self.sequences: dict[int, Sequence] = {}
        self.steps = 0
        self.evictions = 0
        self.preemptions = 0
        self.credit_stalls = 0
        # Those that have something to compute, served longest ago first: the others are not even looked at.
        self._ready: dict[int, Sequence] = {}
        self._fairness = Fairness()
        self._loads: list[Load] = []  # for the next batch
        self._fence = False

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        return not self._ready

    def add(self, sequence: Sequence) -> None:
        self._fairness.add(sequence.tenant)
        self.sequences[sequence.stream] = sequence
        self.update_ready(sequence)

    def remove(self, sequence: Sequence) -> None:
        sequence.give_up_in_flight()
        self.release_blocks(sequence)
        del self.sequences[sequence.stream]
        self._ready.pop(sequence.stream, None)
        self._fairness.remove(sequence.tenant)

    def update_ready(self, sequence: Sequence) -> None:
        """After anything that may have changed how much the sequence has to compute."""
        if not sequence.num_to_compute:
            left = self._ready.pop(sequence.stream, None)
            self.credit_stalls += left is not None and sequence.stalled
            self.host_cache.offer(sequence)
        elif sequence.stream not in self._ready:
            sequence.last_served = self.steps  # it waits from now on, not from before it was idle
            self._ready[sequence.stream] = sequence

    def schedule(self) -> Batch:
        """Plan this step's rows. Everything in the batch has its memory."""
        self.steps += 1
        batch = Batch(loads=self._loads, fence=self._fence)
        self._loads, self._fence = [], False
        decoding = [sequence for sequence in self._ready.values() if sequence.decoding]
        prefilling = [
            sequence for sequence in self._ready.values() if not sequence.decoding and sequence.num_to_compute
        ]
        self._preempt_for_urgent(batch, decoding, prefilling)
        # However many decode, one that prefills gets a row: else nobody would ever join a full batch.
        spare = 1 if prefilling else 0
        limit = min(self.step_tokens, self.batch_rows) - spare
        for sequence in self._fairness.order(decoding, self.steps, limit):
            if len(batch.rows) == limit:
                break
            self._plan_row(batch, sequence, 1)
        self._plan_prefill(batch, prefilling)
        for row in batch.rows:
            row.sequence.last_served = self.steps
            self._ready[row.sequence.stream] = self._ready.pop(row.sequence.stream)
            self._fairness.charge(row.sequence.tenant, row.count)
        batch.loads += self._loads
        self._loads = []
        return batch

    def commit(self, row: Row) -> None:
        """What is left of the row stands computed."""
        row.sequence.complete(row)
        self.cache.cache_full_blocks(row.sequence)

    # -- rows ------------------------------------------------------------------------------------

    def _preempt_for_urgent(self, batch: Batch, decoding: list[Sequence], prefilling: list[Sequence]) -> None:
        """Admit those that rank above one that decodes, at the cost of its memory: they need not wait for its
        end."""
        lowest = min((sequence.priority for sequence in decoding), default=None)
        if lowest is None:
            return
        urgent = [sequence for sequence in prefilling if not sequence.blocks and sequence.priority > lowest]
        for sequence in self._fairness.order(urgent, self.steps):
            if not self._admit(batch, sequence):
                return

    def _plan_prefill(self, batch: Batch, prefilling: list[Sequence]) -> None:
        in_prefill = Counter[int]()
        for sequence in prefilling:
            in_prefill[sequence.tenant] += sequence.num_to_compute if sequence.blocks else 0
        budget = self.step_tokens - len(batch.rows)
        no_room = False
        for sequence in self._fairness.order(prefilling, self.steps):
            if budget <= 0 or len(batch.rows) >= self.batch_rows:
                return
            if not sequence.blocks:
                ahead = in_prefill[sequence.tenant]
                too_much = bool(ahead) and ahead + sequence.num_tokens > self.tenant_prefill
                if no_room or too_much or sequence in batch.preempted:
                    continue
                if not self._admit(batch, sequence):
                    # Nobody overtakes the first in line for memory: a large prompt would never find room.
                    no_room = True
                    continue
                in_prefill[sequence.tenant] += sequence.num_to_compute
            if sequence.num_to_compute:
                budget -= self._plan_row(batch, sequence, min(sequence.num_to_compute, budget))

    def _plan_row(self, batch: Batch, sequence: Sequence, count: int) -> int:
        """Add a row of so many tokens, if there is memory for it; returns how many it computes."""
        if sequence in batch.preempted or not self._make_room(
            batch, sequence, sequence.next_position + count
        ):
            return 0
        copy = self.cache.make_writable(sequence)
        if copy:
            batch.copies.append(copy)
        start, index = sequence.next_position, sequence.next_index
        samples = sequence.may_sample and start + count == sequence.num_tokens + sequence.num_placeholders
        row = Row(sequence, start, count, samples, index)
        sequence.launch(row)
        batch.rows.append(row)
        return count

    def _admit(self, batch: Batch, sequence: Sequence) -> bool:
        """Give a sequence without blocks its memory, if there is room for all of its tokens and one more."""
        self.cache.match_prefix(sequence)
        if not self._make_room(batch, sequence, sequence.num_tokens + 1):
            self.cache.release(sequence)
            return False
        found = self._load_from_host(sequence)
        if sequence.preempted:
            sequence.preempted = False
            batch.resumed.append((sequence, sequence.num_tokens - 1 - found))
        elif not sequence.admitted:
            batch.admitted.append((sequence, found))
        sequence.admitted = True
        self.update_ready(sequence)
        return True

    # -- memory ----------------------------------------------------------------------------------

    def release_blocks(self, sequence: Sequence, keep: int = 0) -> None:
        """Free the blocks that hold nothing of its first `keep` tokens."""
        self.host_cache.offer(sequence)
        self.cache.release(sequence, keep)
        if sequence.pending_load:
            self._fence = True  # whoever gets these blocks must not be written over by the load under way
            if not sequence.blocks:
                sequence.pending_load = None

    def restore_blocks(self, sequence: Sequence) -> int:
        """Give a sequence without memory what is still cached for it; returns how many tokens that spares."""
        self.cache.match_prefix(sequence)
        return self._load_from_host(sequence)

    def invalidate(self, sequence: Sequence) -> list[int]:
        """Have all caches forget what it computed, which cannot be trusted; returns the blocks that it alone
        holds."""
        self.host_cache.invalidate(sequence.block_hashes)
        sequence.num_offered = len(sequence.block_hashes)
        self.cache.invalidate(sequence)
        return [number for number in sequence.blocks if self.cache.refs[number] == 1]

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
            self.host_cache.invalidate(loading)  # else it would be found, and fail, again
            self.release_blocks(sequence)
            self.update_ready(sequence)

    def _load_from_host(self, sequence: Sequence) -> int:
        load = self.host_cache.plan_load(self.cache, sequence)
        if load is not None:
            self._loads.append(load)
        return sequence.num_computed

    def _make_room(self, batch: Batch, sequence: Sequence, tokens: int) -> bool:
        """Grow its table to so many tokens; where blocks are short, evict sequences that rank behind it."""
        while not self._try_grow(sequence, tokens):
            running = {row.sequence.stream for row in batch.rows}
            victim = choose_victim(self.sequences.values(), running, sequence)
            if victim is None:
                return False
            self._evict(batch, victim)
        return True

    def _try_grow(self, sequence: Sequence, tokens: int) -> bool:
        copy = self.cache.needs_copy(sequence)
        if copy and self.cache.free + self.cache.cached <= self.cache.blocks_for(tokens) - len(
            sequence.blocks
        ):
            return False
        return self.cache.grow(sequence, tokens)

    def _evict(self, batch: Batch, victim: Sequence) -> None:
        victim.give_up_in_flight()
        if victim.num_to_compute:
            victim.preempted = True
            batch.preempted.append(victim)
            self.preemptions += 1
        else:
            self.evictions += 1
        self.release_blocks(victim)
        self.update_ready(victim)
