"""The engine API: commands down, one `StepOutput` a step up, the border between text and tokens.

Everything that the gateway may ask of an engine, and everything that an engine may tell it, is a struct of
this module, so that the border can be a function call, a pipe or a socket. It knows no text, no client and
no tensor, and imports nothing but msgspec.

Positions that count output are *indices*: the first output token of a stream is index 0, whatever prompt or
injected text stands before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct, msgpack


class Grammar(Struct, array_like=True, frozen=True):
    """What a stream's output must be, in llguidance's words. `force`: tokens to which it leaves no choice are
    taken without being sampled, which changes no text. `later`: what it must be from where it begins anew, if
    that is something else."""

    source: str
    force: bool = True
    later: str | None = None


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a stream's next token is chosen. Complete: every field has its value."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 2**31 - 1
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    grammar: Grammar | None = None
    hold_at_eos: bool = False  # an end token does not end the stream: it is paused before it


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How an engine is to be made. Zero means: choose by the model and the machine."""

    model: str
    name: str = ""  # by which it is asked for; else the last part of `model`
    adapter: str = ""  # that is merged into its weights
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "auto"  # on a CPU, or f32, bf16, q8, q4; auto is a GGUF file's own, q8 for a small one
    attention: str = "auto"
    threads: int = 0
    kv_tokens: int = 0
    gpu_memory_fraction: float = 0.9
    kv_idle_s: float = 240.0  # after which the memory of a block that nobody uses goes back to the host
    host_kv_gib: float = 0.0  # of the host's memory, for what paused streams leave on a CUDA device
    block_size: int = 16
    step_tokens: int = 0
    batch_rows: int = 256
    max_streams: int = 4096
    context: int = 0
    toy_step_ms: float = 0.0
    log_level: str = "info"
    log_format: str = "console"
    exact: str = "auto"  # or on, off: whether logits are to follow from a stream's own tokens, to the bit
    devices: int = 1  # that share the model, each in a process of its own
    drafts: str = "auto"  # or off: whether tokens that may come are computed with the one that does
    draft_model: str = ""  # that says which may come, where nothing is found by looking


# -- down: commands --------------------------------------------------------------------------------


class Command(Struct, tag=True, array_like=True, frozen=True):
    stream: int


class Keep(Struct, array_like=True, frozen=True):
    """By which a stream outlives its gateway, where an engine keeps streams: another adopts it by its `key`.
    The `record` is what that needs to know of it, in words that are none of an engine's; none where it cannot
    be built from what its engine was told. `moves`: engines that it was submitted to before. `start`: what it
    was asked for by, as a digest."""

    key: bytes
    record: bytes
    grace_s: float = 0.0  # for which it waits to be adopted
    moves: int = 0
    history: History | None = None  # before this engine; none for one that begins here
    adoptions: int = 0  # before it
    start: bytes = b""


class Submit(Command, frozen=True):
    """Begin a stream. `tokens` are all known tokens: the prompt, and when a stream is rebuilt, what
    followed it."""

    tokens: list[int]
    sampling: Sampling
    credit: int
    priority: int = 0
    tenant: int = 0  # who shares steps and memory with others
    prompt: int | None = None  # how many of `tokens` are prompt; all of them unless the stream is rebuilt
    injections: list[
        tuple[int, int]
    ] = []  # (output index, tokens) of what stands among the output but is none
    paused: bool = False
    grammar_starts: tuple[int, ...] = (0,)  # tokens behind the prompt before each beginning of the grammar
    bans: list[tuple[int, int]] = []  # (output index, token that may not stand there), in order of indices
    yields: bool = False  # while its tokens are computed, prompts leave those who decode most of their pace
    keep: Keep | None = None
    cache_of: int | None = None  # whose computed blocks it finds, and who finds its own; its tenant's
    whole: bool = False  # where its last token is an end token it has come to its end


class Grant(Command, frozen=True):
    """Output tokens up to this index may be decoded. The last grant counts: what was decoded beyond it
    stands."""

    credit: int


class Pause(Command, frozen=True):
    release: bool = False


class Resume(Command, frozen=True):
    pass


class Adjust(Command, frozen=True):
    sampling: Sampling


class Truncate(Command, frozen=True):
    """Forget output from `index` on, any injection that stands after it, and any ban. `ban`: the token that
    may not stand at `index` from now on."""

    index: int
    ban: int | None = None


class Append(Command, frozen=True):
    """Put tokens into the context, before the next output token. They must fit into the stream's grammar, if
    it has one, or that begins anew behind them. `behind`: in place of all but so many of the tokens behind
    the prompt, which stay where these cannot be put there."""

    tokens: list[int]
    grammar_anew: bool = False
    behind: int | None = None


class Cancel(Command, frozen=True):
    pass


StreamCommand = Submit | Grant | Pause | Resume | Adjust | Truncate | Append | Cancel


class TellBlocks(Struct, tag=True, array_like=True, frozen=True):
    """Tell which full blocks may be found again: next all of them, and from then on what changes."""


class Note(Command, frozen=True):
    """Something that its gateway was told, in words that are none of an engine's, when it had heard so many
    news of the stream: kept for whoever adopts it. No words: nobody can build it any more, nor find it once
    it is cancelled."""

    heard: int
    told: bytes


CLAIM_S = 10.0  # for which others wait for a gateway that is about to begin a stream


class Adopt(Command, frozen=True):
    """Give a stream that is kept, by its key, to whoever says this, under this number. Answered by
    Adopted. `claims`: whoever asks begins it if there is none, and until it has settled that no other that
    claims it here may. `start`: unless it was asked for by something else."""

    key: bytes
    claims: bool = False
    start: bytes = b""


class Settle(Command, frozen=True):
    """The stream that was claimed by this key, under this number, can be adopted now, or will not be
    begun."""

    key: bytes


class Disown(Command, frozen=True):
    """The stream waits for another gateway, as if this one had gone; one that nobody can adopt ends."""


class Deposit(Command, frozen=True):
    """Keep this for whichever gateway asks for it first, by its name, for so many seconds. `stream` is the
    number of this question; `tenant` as in Submit. Answered by Deposited."""

    name: bytes
    what: bytes
    for_s: float
    tenant: int = 0


class Collect(Command, frozen=True):
    """Give what a gateway has left by this name, which is nobody else's then. Answered by Collected."""

    name: bytes


class Announce(Struct, tag=True, array_like=True, frozen=True):
    """Tell all others that announce something this, in words that are none of an engine's. Nothing: be told
    which those are, and by them."""

    what: bytes


KeptCommand = Note | Adopt | Settle | Disown | Deposit | Collect | Announce
AnyCommand = StreamCommand | TellBlocks | KeptCommand


# -- up: what became of them -----------------------------------------------------------------------


class Change(Struct, tag=True, array_like=True, frozen=True):
    """Something other than a token that happened to a stream. `index`: of the next output token, after it.

    Each command but Submit, Grant and Cancel is answered by exactly one change, in the order of the commands;
    changes whose reason is `memory` come unasked.
    """

    index: int


class Paused(Change, frozen=True):
    reason: Literal["client", "memory"] = "client"


class Resumed(Change, frozen=True):
    recomputed: int = 0  # tokens that had been computed, and are again
    reason: Literal["client", "memory"] = "client"


class Adjusted(Change, frozen=True):
    pass


class Truncated(Change, frozen=True):
    pass


class Appended(Change, frozen=True):
    count: int = 0


class Refused(Change, frozen=True):
    """A command that could not be done and changed nothing; `known` tokens stand in a context of
    `context`."""

    known: int = 0
    context: int = 0
    reason: Literal["context", "grammar"] = "context"


AnyChange = Paused | Resumed | Adjusted | Truncated | Appended | Refused


FinishReason = Literal["eos", "length", "cancelled", "error"]


class Finish(Struct, array_like=True, frozen=True):
    """The last news of a stream. `detail` says what went wrong, in words fit for a client.

    `held`: it is not the last, if the gateway does not want it to be. The stream is paused, and stands as it
    did before the end token, which is told and not kept."""

    reason: FinishReason
    detail: str | None = None
    held: bool = False


class Logprob(Struct, array_like=True, frozen=True):
    logprob: float
    top: list[tuple[int, float]] = []


class News(Struct, array_like=True, gc=False):
    """One stream's step: what memory did to it, then its tokens, then what its commands did behind them. What
    happened behind that in the same step is in further news."""

    stream: int
    early: list[AnyChange] = []
    index: int = 0  # of the first of `tokens`
    tokens: list[int] = []
    logprobs: list[Logprob] | None = None
    changes: list[AnyChange] = []
    admitted: int | None = (
        None  # set once, when the stream first runs: prompt tokens found in the prefix cache
    )
    finish: Finish | None = None
    forced: int = 0  # of `tokens`, those to which the grammar left no choice
    recomputed: int = 0  # tokens that had been computed, and are again by its tenant's doing


class Stats(Struct, array_like=True):
    """The engine's own counters: totals since it started, and the state after this step."""

    step_s: float = 0.0
    decode_rows: int = 0
    prefill_tokens: int = 0
    streams: int = 0
    ready: int = 0  # those that wanted something: neither paused nor out of credit
    kv_used: int = 0  # blocks
    kv_cached: int = 0
    kv_free: int = 0
    tokens_total: int = 0
    evictions_total: int = 0
    preemptions_total: int = 0
    prefill_rows: int = 0
    forward_s: float = 0.0  # of `step_s`, computing the model and sampling
    credit_stalls_total: int = 0
    discarded: int = 0  # tokens of this step, for streams that were steered while it was under way
    kv_host: int = 0  # blocks that lie in the host's memory
    grammar_states: int = 0  # that matchers take, beyond what each has for nothing: some 1.5 KB each
    drafted_total: int = 0  # tokens that were computed before anybody knew whether they come
    accepted_total: int = 0  # of those, that came: each spared its stream a step
    model_drafted_total: int = 0  # of `drafted_total`, those of the draft model; else they were looked up
    model_accepted_total: int = 0  # of those, that came


class BlockNews(Struct, array_like=True, frozen=True):
    """Which full blocks have come to be found, and which are no more, since the news before: their digests'
    first bytes, one behind the other. Counted; `whole`: these are all."""

    number: int
    added: bytes
    removed: bytes
    whole: bool = False


class StepOutput(Struct, tag=True, array_like=True):
    step: int
    news: list[News]
    stats: Stats
    blocks: BlockNews | None = None  # where they were asked for


class TokensTold(Struct, tag=True, array_like=True, frozen=True):
    """News that were of one token each."""

    at: float  # when the first was told, by the wall's clock
    index: int  # of the first
    tokens: bytes  # as engine.int32 has them


class NewsTold(Struct, tag=True, array_like=True, frozen=True):
    """Any other, as it was told."""

    at: float
    news: bytes


class NoteTaken(Struct, array_like=True, frozen=True):
    at: float
    heard: int
    told: bytes


class History(Struct, array_like=True, frozen=True):
    """All that a kept stream's gateway was told and said of it."""

    began: float
    notes: list[NoteTaken]
    news: list[TokensTold | NewsTold]


class Journal(Struct, array_like=True, frozen=True):
    """By which another gateway goes on with a kept stream. A `record` of none: it cannot be built again."""

    record: bytes
    moves: int
    adoptions: int  # with this one
    history: History
    prompt: bytes  # as engine.int32 has tokens
    credit: int  # the last that was granted
    commands: int  # that have come for it here, but Submit and Grant
    digest: int  # CRC-32 of those, which its gateway is to have said again


class Adopted(Struct, tag=True, array_like=True, frozen=True):
    """The stream is whose asked for it, and what is told of it from now on follows its journal; or there is
    none of this key, or `another`: it was begun by another start, and stays whose it is."""

    stream: int
    journal: Journal | None = None
    another: bool = False


class Moved(Struct, tag=True, array_like=True, frozen=True):
    """Another gateway has adopted the stream: this one hears no more of it."""

    stream: int


class Claimed(Struct, tag=True, array_like=True, frozen=True):
    """Another gateway claims the key of this Adopt. When it has settled that, Adopted follows, without the
    stream: the claim is whose asks now, and that may be at any engine, so it is asked for again."""

    stream: int


class Kept(Struct, tag=True, array_like=True, frozen=True):
    """A stream that was submitted to be kept can be adopted from now on; or no more, where all that is kept
    was too much."""

    stream: int
    whole: bool = True


class Deposited(Struct, tag=True, array_like=True, frozen=True):
    """It can be collected from now on, or is refused: too much for a deposit, or one too many of its
    tenant's."""

    stream: int
    kept: bool


class Collected(Struct, tag=True, array_like=True, frozen=True):
    """What was left by that name; or there is nothing, any more or yet."""

    stream: int
    what: bytes | None = None


class Announced(Struct, tag=True, array_like=True, frozen=True):
    """Another gateway, by its number here, tells this; or nothing, it is there; or None, it has gone."""

    gateway: int
    what: bytes | None


class Hello(Struct, tag=True, array_like=True):
    """The first message up: what this engine serves."""

    model: str
    folder: str  # where the tokenizer and the chat template lie
    vocab: int
    context: int
    eos: list[int]
    kv_tokens: int
    block: int
    device: str
    dtype: str
    attention: str
    weights_bytes: int = 0
    fingerprint: str = ""  # equal ones promise equal tokens
    grammars: bool = False  # whether streams may have them
    exact: bool = False  # whether a stream's tokens follow from its own start and steering alone
    weights: str = ""  # how wide they are
    products: str = "torch"  # or ggml: by which library they are multiplied
    keeper: bytes = b""  # by which all gateways know it, where streams may outlive theirs there


class Outline(Struct, tag=True, array_like=True):
    """What an engine would serve, as far as its files say."""

    folder: str
    vocab: int
    context: int  # at most
    grammars: bool
    memory_bytes: int  # of its machine's, at least; a GPU's is another


class Starting(Struct, tag=True, array_like=True):
    """It is being loaded: it has nothing to say yet, and has not hung."""


class Prepared(Struct, tag=True, array_like=True):
    """It has loaded what any model of this kind needs, and waits for its options."""

    pid: int = 0


class Failed(Struct, tag=True, array_like=True):
    """The engine could not start, or cannot go on: one sentence for whoever runs it."""

    message: str


class Leaving(Struct, tag=True, array_like=True):
    """The engine was told to end: no stream is to blame for it."""


# To commands, or to another gateway's, before any step.
Answer = Adopted | Claimed | Kept | Moved | Deposited | Collected | Announced
AnyMessage = Starting | Prepared | Hello | StepOutput | Answer | Failed | Leaving

# -- down, where an engine listens: first of all ---------------------------------------------------


class Join(Struct, tag=True, array_like=True, frozen=True):
    """Whoever connects may have commands done, since they know the token."""

    token: str


# -- between processes -----------------------------------------------------------------------------

LENGTH_BYTES = 4
LARGEST_NEWS = 256 << 20  # bytes, of a message of an engine's; a step of thousands of streams makes a few MiB


def framed(message: bytes) -> bytes:
    """A message as it goes through a pipe: behind its length."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def encoded(message: Struct | Sequence[Struct]) -> bytes:
    """Framed."""
    return framed(msgpack.encode(message))


class Messages:
    """The messages of a connection, as its bytes come."""

    def __init__(self) -> None:
        self.too_large = False  # whether one is, of which nothing more is read
        self._buffer = bytearray()

    def of(self, data: bytes, largest: int | None = None) -> Iterator[bytes]:
        """Those that these bytes make whole; each has at most so many."""
        self._buffer += data
        while not self.too_large and len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            self.too_large = largest is not None and end > largest
            if self.too_large or len(self._buffer) < end:
                return
            message = bytes(memoryview(self._buffer)[LENGTH_BYTES:end])
            del self._buffer[:end]
            yield message
