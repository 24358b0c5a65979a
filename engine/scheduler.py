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

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from engine.cache import BlockCache
from engine.sequence import Sequence

PATIENCE_STEPS = 64  # waited steps that weigh as much as one level of priority


@dataclass(slots=True)
class Row:
    """`count` tokens of a sequence, from position `start`; `samples` when the next token is chosen behind
    them."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    index: int = 0  # of the output token that is chosen
    recalls: int = 0  # of the sequence when the row was made

    @property
    def void(self) -> bool:
        """Whether the row was given up while it was under way."""
        return self.recalls != self.sequence.recalls


@dataclass(slots=True)
class Batch:
    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # blocks to copy before anything is written
    preempted: list[Sequence] = field(default_factory=list)
    resumed: list[tuple[Sequence, int]] = field(
        default_factory=list
    )  # after preemption; tokens to compute again
    admitted: list[tuple[Sequence, int]] = field(default_factory=list)  # first run; tokens found computed


class Scheduler:
    def __init__(self, cache: BlockCache, *, step_tokens: int, batch_rows: int, tenant_prefill: int) -> None:
        assert step_tokens > 1 and batch_rows > 1, "a step has room for a token and for preparing another"
        self.cache = cache
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
        self._live: Counter[int] = Counter()  # sequences of each tenant
        self._served: dict[int, int] = {}  # tokens computed for each tenant that has a sequence

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        return not self._ready

    def add(self, sequence: Sequence) -> None:
        if not self._live[sequence.tenant]:
            # A tenant that comes back has saved nothing up while it was away, and owes nothing.
            self._served[sequence.tenant] = min(self._served.values(), default=0)
        self._live[sequence.tenant] += 1
        self.sequences[sequence.stream] = sequence
        self.refresh(sequence)

    def remove(self, sequence: Sequence) -> None:
        sequence.recall()
        self.cache.release(sequence)
        del self.sequences[sequence.stream]
        self._ready.pop(sequence.stream, None)
        self._live[sequence.tenant] -= 1
        if not self._live[sequence.tenant]:
            del self._live[sequence.tenant], self._served[sequence.tenant]

    def refresh(self, sequence: Sequence) -> None:
        """After anything that may have changed what the sequence wants."""
        if not sequence.wants:
            left = self._ready.pop(sequence.stream, None)
            self.credit_stalls += left is not None and sequence.stalled
        elif sequence.stream not in self._ready:
            sequence.last_served = self.steps  # its turn is counted from now, not from before it was idle
            self._ready[sequence.stream] = sequence

    def schedule(self) -> Batch:
        """Choose this step's rows. Everything in the batch has its memory."""
        self.steps += 1
        batch = Batch()
        decoding = [sequence for sequence in self._ready.values() if sequence.decoding]
        behind = [sequence for sequence in self._ready.values() if not sequence.decoding and sequence.wants]
        self._make_way(batch, decoding, behind)
        # However many decode, somebody who prepares gets a row: else nobody would ever join a full batch.
        spare = 1 if behind else 0
        for sequence in self._in_turn(decoding, min(self.step_tokens, self.batch_rows) - spare):
            self._run(batch, sequence, 1)
        self._prefill(batch, behind)
        for row in batch.rows:
            row.sequence.last_served = self.steps
            self._ready[row.sequence.stream] = self._ready.pop(row.sequence.stream)
            self._served[row.sequence.tenant] += row.count
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
        for sequence in self._in_turn(urgent):
            if not self._admit(batch, sequence):
                return

    def _prefill(self, batch: Batch, behind: list[Sequence]) -> None:
        under_way = Counter[int]()
        for sequence in behind:
            under_way[sequence.tenant] += sequence.wants if sequence.blocks else 0
        budget = self.step_tokens - len(batch.rows)
        no_room = False
        for sequence in self._in_turn(behind):
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
        found = self.cache.adopt_prefix(sequence)
        if not self._room(batch, sequence, sequence.known + 1):
            self.cache.release(sequence)
            return False
        if sequence.preempted:
            sequence.preempted = False
            batch.resumed.append((sequence, sequence.known - 1 - found))
        elif not sequence.admitted:
            batch.admitted.append((sequence, found))
        sequence.admitted = True
        return True

    # -- turns -----------------------------------------------------------------------------------

    def rank(self, sequence: Sequence) -> float:
        return sequence.priority + (self.steps - sequence.last_served) // PATIENCE_STEPS

    def _in_turn(self, candidates: list[Sequence], at_most: int | None = None) -> list[Sequence]:
        """The candidates in the order in which they are served; all of them when they fit anyway."""
        if len(candidates) <= (1 if at_most is None else at_most):
            return candidates
        served = Counter(self._served)
        queues: dict[int, deque[Sequence]] = defaultdict(deque)
        # Of equal rank, whoever holds memory: to finish it is the shortest way to free it. Then as they
        # stand in `_ready`: whoever was served longest ago.
        for sequence in sorted(candidates, key=lambda sequence: (-self.rank(sequence), not sequence.blocks)):
            queues[sequence.tenant].append(sequence)
        order: list[Sequence] = []
        while queues and (at_most is None or len(order) < at_most):
            tenant = min(queues, key=lambda tenant: (-self.rank(queues[tenant][0]), served[tenant], tenant))
            sequence = queues[tenant].popleft()
            served[tenant] += sequence.wants
            order.append(sequence)
            if not queues[tenant]:
                del queues[tenant]
        return order

    # -- memory ----------------------------------------------------------------------------------

    def _room(self, batch: Batch, sequence: Sequence, tokens: int) -> bool:
        """Find room for so many tokens of a sequence, at the cost of whoever ranks behind it."""
        while not self._grow(sequence, tokens):
            victim = self._victim(batch, sequence)
            if victim is None:
                return False
            self._evict(batch, victim)
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        copy = self.cache.shared(sequence)
        if copy and self.cache.free + self.cache.cached <= self.cache.blocks_for(tokens) - len(
            sequence.blocks
        ):
            return False
        return self.cache.grow(sequence, tokens)

    def _victim(self, batch: Batch, sequence: Sequence) -> Sequence | None:
        """Idle holders first, least recently served; then, of those who run, the last that ranks behind."""
        rows = {id(row.sequence) for row in batch.rows}
        holders = [
            other
            for other in self.sequences.values()
            if other.blocks and other is not sequence and id(other) not in rows
        ]
        idle = [other for other in holders if not other.wants and not other.launched]
        if idle:
            return min(idle, key=lambda other: other.last_served)
        running = [other for other in holders if self._yields(other, sequence)]
        return min(running, key=lambda other: (other.priority, -other.stream), default=None)

    def _yields(self, holder: Sequence, newcomer: Sequence) -> bool:
        if holder.priority != newcomer.priority:
            return holder.priority < newcomer.priority
        # Among equals only those who already run may take from those who came later; a newcomer waits.
        return bool(newcomer.blocks) and newcomer.admitted and holder.stream > newcomer.stream

    def _evict(self, batch: Batch, victim: Sequence) -> None:
        victim.recall()
        if victim.wants:
            victim.preempted = True
            batch.preempted.append(victim)
            self.preemptions += 1
        else:
            self.evictions += 1
        self.cache.release(victim)
        self.refresh(victim)
