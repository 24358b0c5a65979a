"""Which tokens are computed this step, for whom, and in whose memory.

The scheduler knows sequences, blocks and a budget of tokens a step. It knows no model, no tensor and no
clock but the number of steps, so that everything it promises can be tested without them:

- a row that brings a token goes before a row that prepares one, so a long prompt slows nobody's next token;
- whoever is paused or out of credit is in no batch, and costs nothing;
- tenants share by tokens served, and within a tenant everybody has a turn;
- a higher priority goes first, but waiting raises a rank, so nobody waits for ever;
- memory is taken from those who are not running before anyone who runs, and only from a lower rank.
"""

from __future__ import annotations

from collections import Counter

from engine.schedule.batch import Batch, Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.fairness import Turns
from engine.schedule.host_cache import HostCache, Load
from engine.schedule.sequence import Sequence
from engine.schedule.victims import victim


class Scheduler:
    def __init__(
        self,
        cache: BlockCache,
        *,
        step_tokens: int,
        batch_rows: int,
        tenant_prefill: int,
        host: HostCache | None = None,
    ) -> None:
        assert step_tokens > 1 and batch_rows > 1, "a step has room for a token and for preparing another"
        self.cache = cache
        self.host = host or HostCache()
        self.step_tokens = step_tokens
        self.batch_rows = batch_rows
        self.tenant_prefill = tenant_prefill
        self.sequences: dict[int, Sequence] = {}
        self.steps = 0
        self.evictions = 0
        self.preemptions = 0
        self.credit_stalls = 0
        # Those that want something, served longest ago first: whoever wants nothing is not even looked at.
        self._ready: dict[int, Sequence] = {}
        self._turns = Turns()
        self._loads: list[Load] = []  # for the next batch
        self._fence = False

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        return not self._ready

    def add(self, sequence: Sequence) -> None:
        self._turns.join(sequence.tenant)
        self.sequences[sequence.stream] = sequence
        self.refresh(sequence)

    def remove(self, sequence: Sequence) -> None:
        sequence.recall()
        self.release(sequence)
        del self.sequences[sequence.stream]
        self._ready.pop(sequence.stream, None)
        self._turns.leave(sequence.tenant)

    def refresh(self, sequence: Sequence) -> None:
        """After anything that may have changed what the sequence wants."""
        if not sequence.wants:
            left = self._ready.pop(sequence.stream, None)
            self.credit_stalls += left is not None and sequence.stalled
            self.host.offer(sequence)
        elif sequence.stream not in self._ready:
            sequence.last_served = self.steps  # its turn is counted from now, not from before it was idle
            self._ready[sequence.stream] = sequence

    def schedule(self) -> Batch:
        """Choose this step's rows. Everything in the batch has its memory."""
        self.steps += 1
        batch = Batch(loads=self._loads, fence=self._fence)
        self._loads, self._fence = [], False
        decoding = [sequence for sequence in self._ready.values() if sequence.decoding]
        behind = [sequence for sequence in self._ready.values() if not sequence.decoding and sequence.wants]
        self._make_way(batch, decoding, behind)
        # However many decode, somebody who prepares gets a row: else nobody would ever join a full batch.
        spare = 1 if behind else 0
        most = min(self.step_tokens, self.batch_rows) - spare
        for sequence in self._turns.of(decoding, self.steps, most):
            if len(batch.rows) == most:
                break
            self._run(batch, sequence, 1)
        self._prefill(batch, behind)
        for row in batch.rows:
            row.sequence.last_served = self.steps
            self._ready[row.sequence.stream] = self._ready.pop(row.sequence.stream)
            self._turns.serve(row.sequence.tenant, row.count)
        batch.loads += self._loads
        self._loads = []
        return batch

    def commit(self, row: Row) -> None:
        """The row's tokens stand computed."""
        row.sequence.launched -= row.count
        row.sequence.coming -= row.samples
        row.sequence.computed += row.count
        self.cache.remember(row.sequence)

    # -- rows ------------------------------------------------------------------------------------

    def _make_way(self, batch: Batch, decoding: list[Sequence], behind: list[Sequence]) -> None:
        """Whoever ranks above somebody who decodes need not wait until that one has finished: it takes its
        memory."""
        lowest = min((sequence.priority for sequence in decoding), default=None)
        if lowest is None:
            return
        urgent = [sequence for sequence in behind if not sequence.blocks and sequence.priority > lowest]
        for sequence in self._turns.of(urgent, self.steps):
            if not self._admit(batch, sequence):
                return

    def _prefill(self, batch: Batch, behind: list[Sequence]) -> None:
        under_way = Counter[int]()
        for sequence in behind:
            under_way[sequence.tenant] += sequence.wants if sequence.blocks else 0
        budget = self.step_tokens - len(batch.rows)
        no_room = False
        for sequence in self._turns.of(behind, self.steps):
            if budget <= 0 or len(batch.rows) >= self.batch_rows:
                return
            if not sequence.blocks:
                ahead = under_way[sequence.tenant]
                too_much = bool(ahead) and ahead + sequence.known > self.tenant_prefill
                if no_room or too_much or sequence in batch.preempted:
                    continue
                if not self._admit(batch, sequence):
                    # Nobody overtakes the first in line for memory: a large prompt would never find room.
                    no_room = True
                    continue
                under_way[sequence.tenant] += sequence.wants
            if sequence.wants:
                budget -= self._run(batch, sequence, min(sequence.wants, budget))

    def _run(self, batch: Batch, sequence: Sequence, count: int) -> int:
        if sequence in batch.preempted or not self._room(batch, sequence, sequence.reached + count):
            return 0
        copy = self.cache.make_writable(sequence)
        if copy:
            batch.copies.append(copy)
        start, index = sequence.reached, sequence.next_index
        samples = sequence.may_sample and start + count == sequence.known + sequence.coming
        batch.rows.append(Row(sequence, start, count, samples, index, sequence.recalls))
        sequence.launched += count
        sequence.coming += samples
        return count

    def _admit(self, batch: Batch, sequence: Sequence) -> bool:
        """Let a sequence without blocks in, if there is room for all that it knows and one token more."""
        self.cache.adopt_prefix(sequence)
        if not self._room(batch, sequence, sequence.known + 1):
            self.cache.release(sequence)
            return False
        found = self._brought(sequence)
        if sequence.preempted:
            sequence.preempted = False
            batch.resumed.append((sequence, sequence.known - 1 - found))
        elif not sequence.admitted:
            batch.admitted.append((sequence, found))
        sequence.admitted = True
        self.refresh(sequence)
        return True

    # -- memory ----------------------------------------------------------------------------------

    def release(self, sequence: Sequence, keep: int = 0) -> None:
        """Take back the memory that holds nothing of its first `keep` tokens."""
        self.host.offer(sequence)
        self.cache.release(sequence, keep)
        if sequence.arriving:
            self._fence = True  # whoever gets these blocks must not be written over by what is on its way
            if not sequence.blocks:
                sequence.arriving = None

    def regain(self, sequence: Sequence) -> int:
        """Give a sequence without memory what is still held for it; how many of its tokens that spares."""
        self.cache.adopt_prefix(sequence)
        return self._brought(sequence)

    def disown(self, sequence: Sequence) -> list[int]:
        """Nothing that it computed can be trusted, by nobody; returns the blocks that only it holds."""
        self.host.forget(sequence.hashes)
        sequence.offered = len(sequence.hashes)
        self.cache.disown(sequence)
        return [number for number in sequence.blocks if self.cache.refs[number] == 1]

    def arrived(self, load: Load) -> None:
        """What was brought is there."""
        if load.live:
            load.sequence.arriving = None
            self.cache.remember(load.sequence)
            self.refresh(load.sequence)

    def _brought(self, sequence: Sequence) -> int:
        load = self.host.bring(self.cache, sequence)
        if load is not None:
            self._loads.append(load)
        return sequence.computed

    def _room(self, batch: Batch, sequence: Sequence, tokens: int) -> bool:
        """Find room for so many tokens of a sequence, at the cost of whoever ranks behind it."""
        while not self._grow(sequence, tokens):
            running = {row.sequence.stream for row in batch.rows}
            loser = victim(self.sequences.values(), running, sequence)
            if loser is None:
                return False
            self._evict(batch, loser)
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        copy = self.cache.shared(sequence)
        if copy and self.cache.free + self.cache.cached <= self.cache.blocks_for(tokens) - len(
            sequence.blocks
        ):
            return False
        return self.cache.grow(sequence, tokens)

    def _evict(self, batch: Batch, loser: Sequence) -> None:
        loser.recall()
        if loser.wants:
            loser.preempted = True
            batch.preempted.append(loser)
            self.preemptions += 1
        else:
            self.evictions += 1
        self.release(loser)
        self.refresh(loser)
