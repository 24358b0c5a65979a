"""One stream as the engine sees it: a few numbers, and what follows from them.

A sequence knows its tokens, how many of them stand computed in the KV cache, how many more are computed and
sampled by steps under way, its credit, and whether somebody paused it. Everything else is derived: whether
it may run, how many tokens it wants this step, whether its next token may be sampled. Prefill, decode,
resumption after an eviction, injection and rewind are then one thing, *computed catching up with known*.

It knows no scheduler, no model and no tensor. `blocks`, `slot` and `computed` are written by those who own
the memory behind them.
"""

from __future__ import annotations

from engine.api import Logprob, Sampling


class Sequence:
    """A stream's tokens, in the order that the model sees them: prompt, then output with injections among
    it."""

    def __init__(
        self,
        stream: int,
        tokens: list[int],
        sampling: Sampling,
        *,
        credit: int,
        context: int,
        priority: int = 0,
        tenant: int = 0,
        prompt: int | None = None,
        injections: list[tuple[int, int]] | None = None,
    ) -> None:
        self.stream = stream
        self.tokens = list(tokens)
        self.prompt = len(tokens) if prompt is None else prompt
        self.injections = list(injections or [])
        self.outputs = len(tokens) - self.prompt - sum(count for _, count in self.injections)
        self.sampling = sampling
        self.credit = credit
        self.context = context
        self.priority = priority
        self.tenant = tenant
        self.paused = False  # by the client
        self.preempted = False  # by us, for memory
        self.computed = 0
        self.launched = 0  # tokens that steps under way compute behind those
        self.coming = 0  # tokens that they sample
        self.recalls = 0  # times that what was under way was given up: rows from before are void
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []  # names of its full computed blocks, in the prefix cache's terms
        self.offered = 0  # of them, to be kept in the host's memory
        self.arriving: object | None = None  # what of its computed blocks is still on its way to the device
        self.slot = -1  # row of the sampler's parameter tensors; -1 while it has never run
        self.admitted = False  # whether it ever held memory
        self.last_served = 0  # the scheduler's step in which it last had a row
        self.edits = 0  # times that tokens changed otherwise than by sampling one more
        self.layout = 0  # times that blocks changed otherwise than by taking more behind the last

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def length_reached(self) -> bool:
        return self._ends_at(0)

    def _ends_at(self, more: int) -> bool:
        return self.outputs + more >= self.sampling.max_tokens or self.known + more >= self.context

    @property
    def next_index(self) -> int:
        """Of the token that is sampled next, when all that is under way has come."""
        return self.outputs + self.coming

    @property
    def reached(self) -> int:
        """The position that is computed next."""
        return self.computed + self.launched

    @property
    def may_sample(self) -> bool:
        return not self.paused and self.next_index < self.credit and not self._ends_at(self.coming)

    @property
    def wants(self) -> int:
        """Tokens to compute before it has caught up.

        The last known token is computed only together with sampling what follows it: its logits are needed
        then, and nothing keeps them. A sequence without credit is therefore ready when all but its last
        token are computed; if it loses its memory meanwhile, it takes none back before it has credit.
        """
        if self.paused or self.arriving or (self.evicted and not self.may_sample):
            return 0
        return max(0, self._behind - (0 if self.may_sample else 1))

    @property
    def _behind(self) -> int:
        return self.known + self.coming - self.reached

    @property
    def evicted(self) -> bool:
        """Whether it had memory, here or in an engine that is gone, and has none now."""
        return not self.blocks and (self.admitted or self.outputs > 0)

    @property
    def decoding(self) -> bool:
        """Whether all that is missing is the row that brings its next token."""
        return self.may_sample and self._behind == 1 and bool(self.blocks) and not self.arriving

    @property
    def stalled(self) -> bool:
        """Whether nothing but credit is missing."""
        return not self.paused and self.outputs >= self.credit and not self.length_reached

    def recall(self) -> None:
        """Give up what is under way: it is as if it had never been begun, whatever it may bring."""
        if self.launched:
            self.edits += self.coming  # what was counted of them is void
            self.launched = self.coming = 0
            self.recalls += 1

    def sampled(self, token: int) -> None:
        self.tokens.append(token)
        self.outputs += 1

    def position(self, index: int) -> int:
        """Where output token `index` stands, or would stand, among the tokens."""
        return self.prompt + index + sum(count for before, count in self.injections if before <= index)

    def output(self) -> list[int]:
        """The output tokens, without what was injected among them."""
        out: list[int] = []
        start = self.prompt
        for index, count in self.injections:
            end = start + index - len(out)
            out += self.tokens[start:end]
            start = end + count
        return out + self.tokens[start:]

    def truncate(self, index: int) -> int:
        """Forget output from `index` on, and later injections; returns how many tokens are known now.

        An injection that stands before token `index` is context that the token was chosen in: it stays.
        """
        assert 0 <= index <= self.outputs
        self.edits += 1
        if index < self.outputs:
            self.injections = [(before, count) for before, count in self.injections if before <= index]
            del self.tokens[self.position(index) :]
            self.outputs = index
        self.computed = min(self.computed, self.known - 1)
        return self.known

    def append(self, tokens: list[int]) -> None:
        """Put context tokens before the next output token."""
        self.edits += 1
        self.tokens += tokens
        self.injections.append((self.outputs, len(tokens)))


class Choice:
    """What the sampler chose for one sequence; `token` is None when its logits were no numbers."""

    __slots__ = ("logprob", "token")

    def __init__(self, token: int | None, logprob: Logprob | None = None) -> None:
        self.token = token
        self.logprob = logprob
