"""The sampler: every sampling parameter, against transformers' own processors and by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.api import Logprob, Sampling
from engine.nonblocking_transfer import upload
from engine.sampling.filters import MAX_VOCAB
from engine.sampling.penalties import CountedRow
from engine.sampling.readback import SampleRequest
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Row
from engine.schedule.sequence import SampledToken, Sequence
from tests.fakes.chi_square import surprise
from tests.fakes.counted_work import counted

VOCAB = 300
EOS = 2


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * 2


def sequence(slot: int = 0, tokens: list[int] | None = None, **sampling: Any) -> Sequence:
    seq = Sequence(slot, tokens or [5, 6, 7], Sampling(**sampling), credit=1000, context=10_000)
    seq.slot = slot
    return seq


def sampler_of(*seqs: Sequence, vocab: int = VOCAB) -> Sampler:
    return Sampler(len(seqs), vocab, eos=[EOS])


def sample(logits: Tensor, *seqs: Sequence) -> list[SampledToken]:
    return sampler_of(*seqs, vocab=logits.shape[1]).sample(logits, list(seqs))


def greedy(logits: Tensor, seq: Sequence) -> int | None:
    return sample(logits, seq)[0].token


def tokens_of(results: list[SampledToken]) -> list[int | None]:
    return [result.token for result in results]


DRAWS = 4000


def counts(logits: Tensor, tokens: list[int] | None = None, **sampling: Any) -> Tensor:
    """How often each token comes, over seeds."""
    seqs = [sequence(slot, tokens, seed=slot, **sampling) for slot in range(DRAWS)]
    results = sample(logits.expand(DRAWS, -1), *seqs)
    assert all(result.token is not None for result in results)
    return torch.bincount(torch.tensor(tokens_of(results)), minlength=logits.shape[1])


# -- as transformers does it -----------------------------------------------------------------------

WARPED: dict[str, tuple[dict[str, Any], list[LogitsProcessor]]] = {
    "temperature": ({"temperature": 0.6}, [TemperatureLogitsWarper(0.6)]),
    "top_k": ({"top_k": 20}, [TopKLogitsWarper(20)]),
    "top_k 1": ({"top_k": 1}, [TopKLogitsWarper(1)]),
    "top_k beyond the vocabulary": ({"top_k": 10**6}, []),
    "top_p": ({"top_p": 0.7}, [TopPLogitsWarper(0.7)]),
    "top_p near nothing": ({"top_p": 1e-6}, [TopPLogitsWarper(1e-6)]),
    "min_p": ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    "min_p 1": ({"min_p": 1.0}, [MinPLogitsWarper(1.0)]),
    "repetition_penalty": ({"repetition_penalty": 1.7}, [RepetitionPenaltyLogitsProcessor(1.7)]),
    "a rewarded repetition": ({"repetition_penalty": 0.6}, [RepetitionPenaltyLogitsProcessor(0.6)]),
    "top_k then top_p": ({"top_k": 30, "top_p": 0.8}, [TopKLogitsWarper(30), TopPLogitsWarper(0.8)]),
    "all in their order": (
        {"temperature": 1.5, "top_k": 100, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
        [
            RepetitionPenaltyLogitsProcessor(1.2),
            TemperatureLogitsWarper(1.5),
            TopKLogitsWarper(100),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.05),
        ],
    ),
}


@pytest.mark.parametrize("case", WARPED)
@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_come_as_often_as_transformers_would_have_them(case: str, seed: int) -> None:
    sampling, processors = WARPED[case]
    logits = noise(1, VOCAB, seed=seed)
    tokens = [int(token) for token in logits[0].topk(5).indices] + [0, 1]
    scores = logits.clone()
    for processor in processors:
        scores = processor(torch.tensor([tokens]), scores)
    expected = scores.softmax(1)[0]
    seen = counts(logits, tokens, **sampling)
    assert (seen[expected == 0] == 0).all()
    assert surprise(seen, expected) < 6


def test_greedy_is_argmax_and_the_first_of_equals() -> None:
    logits = noise(3, VOCAB)
    logits[1, [17, 40, 200]] = 99.0
    results = sample(logits, *(sequence(slot, temperature=0.0) for slot in range(3)))
    assert tokens_of(results) == [int(logits[0].argmax()), 17, int(logits[2].argmax())]
    assert [result.logprob for result in results] == [None, None, None]


def test_half_precision_is_chosen_from_as_float32() -> None:
    logits = noise(4, VOCAB).bfloat16()
    seqs = [sequence(slot, seed=slot, top_p=0.9, logprobs=2) for slot in range(4)]
    half, single = sample(logits, *seqs), sample(logits.float(), *seqs)
    assert tokens_of(half) == tokens_of(single)
    assert [result.logprob for result in half] == [result.logprob for result in single]


# -- penalties -------------------------------------------------------------------------------------


def penalised_by_hand(logits: Tensor, seq: Sequence) -> int:
    """The greedy choice by the definitions, counted anew from all tokens."""
    s, scores = seq.sampling, logits[0].tolist()
    output = seq.output_tokens()
    for token in set(seq.tokens):
        score = scores[token]
        scores[token] = score * s.repetition_penalty if score < 0 else score / s.repetition_penalty
    for token in set(output):
        scores[token] -= s.frequency_penalty * output.count(token) + s.presence_penalty
    return scores.index(max(scores))


PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.25}


def test_presence_and_frequency_count_output_only() -> None:
    logits = torch.zeros(1, VOCAB, dtype=torch.float64)
    logits[0, [10, 11]] = torch.tensor([1.0, 0.9], dtype=torch.float64)
    seq = sequence(tokens=[10, 10, 10], temperature=0.0, presence_penalty=0.05, frequency_penalty=0.04)
    seq.inject([10])
    sampler = sampler_of(seq)
    drawn = []
    for _ in range(6):
        (result,) = sampler.sample(logits, [seq])
        assert result.token is not None
        seq.append_output(result.token)
        drawn.append(result.token)
    # 10 costs .05 + .04 after its first: 1 -> .91 -> .87; 11 then stands at .9 -> .81
    assert drawn == [10, 10, 11, 10, 10, 11]


steps = st.one_of(
    st.tuples(st.just("sample"), st.integers(1, 4)),
    st.tuples(st.just("sampled elsewhere"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    st.tuples(st.just("append"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    st.tuples(st.just("truncate"), st.integers(0, 5)),
    st.tuples(st.just("swap"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    st.tuples(st.just("adjust"), st.sampled_from([PENALTIES, {}, {"presence_penalty": 1.0}])),
)


def do(step: tuple[str, Any], seq: Sequence, sampler: Sampler, logits: Tensor) -> None:
    match step:
        case "sample", count:
            for _ in range(count):
                (result,) = sampler.sample(logits, [seq])
                assert result.token == penalised_by_hand(logits, seq)
                seq.append_output(result.token)
        case "sampled elsewhere", tokens:
            for token in tokens:
                seq.append_output(token)
        case "append", tokens:
            seq.inject(tokens)
        case "truncate", back:
            seq.truncate(max(0, seq.num_outputs - back))
        case "swap", tokens:  # truncated and regrown to the length it had
            seq.truncate(max(0, seq.num_outputs - len(tokens)))
            for token in tokens:
                seq.append_output(token)
        case "adjust", sampling:
            seq.sampling = Sampling(temperature=0.0, **sampling)


@given(st.lists(steps, max_size=12))
def test_penalties_know_the_context_whatever_became_of_it(story: list[tuple[str, Any]]) -> None:
    logits = noise(1, 10)
    seq = sequence(tokens=[1, 2, 2], temperature=0.0, **PENALTIES)
    sampler = sampler_of(seq, vocab=10)
    for step in [*story, ("sample", 2)]:
        do(step, seq, sampler, logits)


def test_tokens_swapped_for_others_between_two_samples_are_noticed() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 8], logits[0, 9] = 1.0, 0.9
    seq = sequence(temperature=0.0, presence_penalty=0.5)
    sampler = sampler_of(seq)
    seq.append_output(8)
    assert sampler.sample(logits, [seq])[0].token == 9
    seq.truncate(0)
    seq.append_output(4)
    assert sampler.sample(logits, [seq])[0].token == 8


def test_of_a_context_that_was_steered_only_what_is_another_is_counted() -> None:
    seq = sequence(tokens=list(range(1000)))
    row, room = CountedRow(0, np.zeros(2000, np.bool_)), np.empty(2000, np.intc)

    def more() -> list[list[int]]:
        return [tokens.tolist() for tokens in row.catch_up(seq, room)]

    for token in [7, 1000, 1001]:
        seq.append_output(token)
    assert more() == [[*range(1000), 1000, 1001], [7, 1000, 1001], []]
    seq.truncate(1)
    seq.append_output(1001)
    assert more() == [[1001], [1001], [1000, 1001]]
    seq.truncate(1)
    seq.inject([1001])  # the same, but it is no output
    assert more() == [[1001], [], [1001]]


def test_a_long_context_is_counted_without_a_look_at_each_token() -> None:
    """Of very many streams at once, maybe, that are told to be penalised: 0.3 s of everybody's step."""

    def lines(tokens: int) -> int:
        known = [token * token % VOCAB for token in range(tokens)]
        seq, logits = sequence(tokens=known, temperature=0.0, **PENALTIES), noise(1, VOCAB)
        sampler = sampler_of(seq)
        with counted() as work:
            (result,) = sampler.sample(logits, [seq])
        assert result.token == penalised_by_hand(logits, seq)
        return work.lines

    lines(100)  # so that what is made once is
    assert lines(20_000) == lines(100)


class Overlapped:
    """Streams whose tokens the host learns one step late, where there are fewer rows than streams."""

    def __init__(self, streams: int, rows: int) -> None:
        self.seqs = [
            sequence(slot, [slot, 4, 4], temperature=0.0, **PENALTIES, max_tokens=999)
            for slot in range(streams)
        ]
        self.sampler = Sampler(streams, 10, eos=[], rows=rows)
        self._in_flight: dict[int, int] = {}  # token of a stream

    def step(self, streams: list[int]) -> None:
        """Choose for these behind what is under way, and only then learn what that was."""
        asked = [
            SampleRequest(seq, seq.num_outputs + (seq.slot in self._in_flight)) for seq in self._of(streams)
        ]
        readback = self.sampler.launch(LOGITS[streams, :10], asked)
        self.land(streams)
        for seq, result in zip(self._of(streams), readback.read(), strict=True):
            assert result.token == penalised_by_hand(LOGITS[seq.slot : seq.slot + 1, :10], seq)
            self._in_flight[seq.slot] = result.token

    def land(self, streams: list[int]) -> None:
        for seq in self._of(streams):
            if seq.slot in self._in_flight:
                seq.append_output(self._in_flight.pop(seq.slot))

    def recall(self, streams: list[int]) -> None:
        for seq in self._of(streams):
            if self._in_flight.pop(seq.slot, None) is not None:
                seq.launch(Row(seq, seq.num_tokens - 1, 1, True, seq.sampling))
                seq.give_up_in_flight()

    def adjust(self, streams: list[int]) -> None:
        """Whoever was penalised is not, and the other way round."""
        self.recall(streams)
        for seq in self._of(streams):
            asked = {} if seq.sampling.presence_penalty else PENALTIES
            seq.sampling = Sampling(temperature=0.0, **asked)

    def _of(self, streams: list[int]) -> list[Sequence]:
        return [self.seqs[stream] for stream in streams]


def test_a_row_that_others_took_counts_what_the_host_does_not_know_yet() -> None:
    streams = Overlapped(2, rows=1)
    for stream in [0, 1, 0, 1, 1, 0, 0, 1]:
        streams.step([stream])


def test_a_token_that_is_chosen_again_behind_one_under_way_counts_that_once() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 8], logits[0, 9] = 1.0, 0.9
    seq = sequence(temperature=0.0, frequency_penalty=0.08)
    sampler = sampler_of(seq)
    sampler.launch(logits, [SampleRequest(seq, 0)])
    again = [sampler.launch(logits, [SampleRequest(seq, 1)]).read()[0].token for _ in range(3)]
    assert again == [8, 8, 8]


DEEDS = st.sampled_from([Overlapped.step] * 4 + [Overlapped.land, Overlapped.recall, Overlapped.adjust])
SOME = st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True)


@given(st.integers(2, 4), st.lists(st.tuples(DEEDS, SOME), max_size=30))
def test_penalties_hold_whoever_had_the_row_between(
    rows: int, story: list[tuple[Callable[[Overlapped, list[int]], None], list[int]]]
) -> None:
    streams = Overlapped(5, rows)
    for deed, some in [*story, (Overlapped.step, [0, 1]), (Overlapped.step, [2, 3])]:
        deed(streams, some)


def test_what_failed_while_it_was_counted_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Tensor.index_put_

    def fails_later(self: Tensor, *args: Any, **kwargs: Any) -> None:
        put(self, *args, **kwargs)
        if kwargs:  # it adds up
            raise MemoryError

    streams = Overlapped(2, rows=2)
    streams.step([0, 1])
    with monkeypatch.context() as short:
        short.setattr(Tensor, "index_put_", fails_later)
        with pytest.raises(MemoryError):
            streams.step([0, 1])
    for _ in range(4):
        streams.step([1, 0])


@given(st.lists(st.integers(0, 9), max_size=16), st.lists(st.integers(0, 9), max_size=6))
def test_behind_each_draft_the_penalties_are_those_of_a_context_that_has_it(
    drafts: list[int], said: list[int]
) -> None:
    seq = sequence(tokens=[1, 2, 2], temperature=0.0, **PENALTIES)
    for token in said:
        seq.append_output(token)
    logits = noise(len(drafts) + 1, 10)
    asked = [SampleRequest(seq, seq.num_outputs + at, tuple(drafts[:at])) for at in range(len(logits))]
    found = sampler_of(seq, vocab=10).launch(logits, asked).read()
    for at, result in enumerate(found):
        assert result.token == penalised_by_hand(logits[at : at + 1], seq)
        for draft in drafts[at : at + 1]:
            seq.append_output(draft)


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many numbers the largest has that was made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


def test_the_drafts_of_a_penalised_row_cost_what_as_many_rows_do() -> None:
    drafts = tuple(range(16))
    seq = sequence(tokens=list(range(VOCAB)), temperature=0.0, **PENALTIES)
    asked = [SampleRequest(seq, at, drafts[:at]) for at in range(len(drafts) + 1)]
    sampler = sampler_of(seq)
    with LargestTensor() as largest:
        sampler.launch(noise(len(asked), VOCAB), asked)
    assert largest.numbers <= 2 * len(asked) * VOCAB


def test_more_penalised_streams_at_once_than_rows_are_refused() -> None:
    with pytest.raises(AssertionError, match="than there are rows"):
        Overlapped(3, rows=2).step([0, 1, 2])


def test_a_slot_forgets_who_had_it() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 9] = 1.0, 0.9
    asked: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 2.0}
    first = sequence(tokens=[5], logit_bias={9: -50.0}, **asked)
    sampler = sampler_of(first)
    assert sampler.sample(logits, [first])[0].token == 5
    sampler.release_slot(first)
    second = sequence(tokens=[6], **asked)
    assert sampler.sample(logits, [second])[0].token == 5
    sampler.release_slot(second)
    third = sequence(tokens=[5], **asked)
    assert sampler.sample(logits, [third])[0].token == 9


@pytest.mark.parametrize("penalty", [5e-324, 1e-320, 1e-40, 1e-38])
def test_however_small_the_repetition_penalty_there_is_a_token(penalty: float) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5], logits[0, 9], logits[0, EOS] = 40.0, 30.0, 50.0
    for temperature in (0.0, 5e-324, 2.0):
        seq = sequence(tokens=[EOS, 5, 9], temperature=temperature, repetition_penalty=penalty, min_tokens=1)
        assert greedy(logits, seq) == 5


# -- bias and end tokens ---------------------------------------------------------------------------


def test_a_bias_forbids_and_forces() -> None:
    logits = noise(1, VOCAB)
    best, second = (int(token) for token in logits[0].topk(2).indices)
    assert greedy(logits, sequence(temperature=0.0, logit_bias={best: -100.0})) == second
    assert greedy(logits, sequence(temperature=0.0, logit_bias={40: 100.0})) == 40
    assert counts(logits, logit_bias={40: 100.0})[40] == DRAWS
    assert counts(logits, logit_bias={best: -100.0})[best] == 0


def test_a_bias_for_a_token_that_the_model_has_not_is_nothing() -> None:
    logits = noise(1, VOCAB)
    plain = greedy(logits, sequence(temperature=0.0))
    assert greedy(logits, sequence(temperature=0.0, logit_bias={VOCAB: 100.0, 10**9: 100.0})) == plain


def test_no_end_before_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 9] = 3.0, 1.0
    seq = sequence(temperature=0.0, min_tokens=2)
    sampler = sampler_of(seq)
    drawn = []
    for _ in range(3):
        (result,) = sampler.sample(logits, [seq])
        assert result.token is not None
        seq.append_output(result.token)
        drawn.append(result.token)
    assert drawn == [9, 9, EOS]


def test_end_tokens_that_the_model_has_no_logits_for_are_no_trouble() -> None:
    seq = sequence(temperature=0.0, min_tokens=2)
    sampler = Sampler(1, VOCAB, eos=[VOCAB + 3, -1])
    logits = noise(1, VOCAB)
    assert sampler.sample(logits, [seq])[0].token == logits.argmax()


def test_ignoring_the_end_hides_no_token() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS] = 3.0
    assert greedy(logits, sequence(temperature=0.0, ignore_eos=True)) == EOS


# -- logprobs --------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = noise(4, VOCAB)
    seqs = [
        sequence(0, logprobs=3, temperature=0.0),
        sequence(1, logprobs=0, temperature=0.3, top_k=5, logit_bias={3: 9.0}),
        sequence(2, logprobs=None),
        sequence(3, logprobs=3, seed=9, repetition_penalty=1.5, min_tokens=4),
    ]
    results = sample(logits, *seqs)
    expected = logits.log_softmax(1)
    for row in (0, 1, 3):
        logprob, token = results[row].logprob, results[row].token
        assert logprob is not None
        assert token is not None
        assert logprob.logprob == pytest.approx(expected[row, token].item())
    assert results[1].logprob is not None
    assert results[1].logprob.top == []
    assert results[2].logprob is None
    for row in (0, 3):
        logprob, best = results[row].logprob, expected[row].topk(3)
        assert logprob is not None
        assert [token for token, _ in logprob.top] == best.indices.tolist()
        assert [value for _, value in logprob.top] == pytest.approx(best.values.tolist())


def test_of_equally_likely_tokens_the_lowest_ids_are_told() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 250] = 1.0
    (result,) = sample(logits, sequence(temperature=0.0, logprobs=4))
    assert result.logprob is not None
    assert [token for token, _ in result.logprob.top] == [250, 0, 1, 2]


def test_the_most_likely_are_those_of_a_sort_wherever_they_stand() -> None:
    logits = (noise(3, 1003) * 3).round()  # of which many are equal
    seqs = [sequence(slot, temperature=0.0, logprobs=20) for slot in range(3)]
    expected = logits.log_softmax(1).sort(dim=1, descending=True, stable=True).indices[:, :20]
    for result, ids in zip(sample(logits, *seqs), expected.tolist(), strict=True):
        assert result.logprob is not None
        assert [token for token, _ in result.logprob.top] == ids


class SortedNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many numbers were put in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in ("topk", "sort")):
            self.numbers += args[0].numel()
        return func(*args, **(kwargs or {}))


def test_what_the_most_likely_cost_does_not_go_by_the_vocabulary() -> None:
    logits = torch.zeros(1, 2**17)
    seq = sequence(temperature=0.0, logprobs=20)
    with SortedNumbers() as put_in_order:
        sample(logits, seq)
    assert put_in_order.numbers < logits.numel() // 16


def test_what_cannot_come_is_not_among_the_likely() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, [4, 7]] = 0.0
    (result,) = sample(logits, sequence(temperature=0.0, logprobs=20))
    assert result.logprob is not None
    assert [token for token, _ in result.logprob.top] == [4, 7]
    assert [value for _, value in result.logprob.top] == pytest.approx([-0.6931472, -0.6931472])


# -- each row for itself ---------------------------------------------------------------------------

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 40, "min_p": 0.01},
    {"top_k": 700, "top_p": 0.95},
    {"min_p": 0.1, "logprobs": 5},
    {"temperature": 0.0, "logprobs": 2, **PENALTIES},
    {"logit_bias": {3: 2.0, 11: -4.0}, "min_tokens": 3},
    {"temperature": 1.3, **PENALTIES},
]
CROWD = 24
WIDE = 1003
LOGITS = noise(CROWD, WIDE).float()


def connections() -> tuple[Sampler, list[Sequence]]:
    seqs = [sequence(slot, [slot, 7], seed=slot - 9, **KINDS[slot % len(KINDS)]) for slot in range(CROWD)]
    for slot, seq in enumerate(seqs):
        for token in range(slot % 5):
            seq.append_output(token)
    return sampler_of(*seqs, vocab=WIDE), seqs


def told(results: list[SampledToken]) -> list[tuple[int | None, Logprob | None]]:
    return [(result.token, result.logprob) for result in results]


@given(st.lists(st.integers(0, CROWD - 1), min_size=1, unique=True))
def test_a_token_is_the_same_in_any_company_and_order(rows: list[int]) -> None:
    sampler, seqs = connections()
    everyone = told(sampler.sample(LOGITS, seqs))
    chosen = sampler.sample(LOGITS[rows], [seqs[row] for row in rows])
    assert told(chosen) == [everyone[row] for row in rows]


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_token_hangs_on_seed_and_index_and_not_on_the_slot(seed: int) -> None:
    logits = torch.zeros(2, VOCAB)
    there, here = sequence(0, [1], seed=seed), sequence(1, [8, 9, 4], seed=seed)
    sampler = sampler_of(there, here)
    first, second = tokens_of(sampler.sample(logits, [there, here]))
    assert first == second
    there.append_output(3)
    again, other = tokens_of(sampler.sample(logits, [here, there]))
    assert again == first
    assert 0 <= (other or 0) < VOCAB


def test_another_index_and_another_seed_draw_anew() -> None:
    logits = torch.zeros(1, VOCAB)
    seq = sequence(seed=1)
    sampler = sampler_of(seq)
    drawn = set()
    for _ in range(20):
        (result,) = sampler.sample(logits, [seq])
        drawn.add(result.token)
        seq.append_output(0)
    assert len(drawn) > 10
    assert len({greedy(logits, sequence(seed=seed)) for seed in range(-10, 10)}) > 10


def test_adjusting_changes_the_very_next_token_and_nobody_elses() -> None:
    sampler, seqs = connections()
    before = told(sampler.sample(LOGITS, seqs))
    seqs[1].sampling = Sampling(temperature=0.0, logprobs=0)
    after = told(sampler.sample(LOGITS, seqs))
    assert after[1][0] == LOGITS[1].argmax()
    assert after[:1] + after[2:] == before[:1] + before[2:]


def test_however_often_streams_were_adjusted_their_rows_are_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler, seqs = connections()
    written = list[int]()

    def counted(numbers: Any, *where: Any) -> Tensor:
        if torch.float64 in where:
            written.append(len(numbers))
        return upload(numbers, *where)

    monkeypatch.setattr("engine.sampling.sampler.upload", counted)
    sampler.sample(LOGITS, seqs)
    for temperature in (0.1, 0.2, 0.0):
        for seq in seqs[:2]:
            seq.sampling = Sampling(temperature=temperature)
    sampler.sample(LOGITS, seqs)
    sampler.sample(LOGITS, seqs)
    assert [count for count in written if count] == [len(seqs), 2]


def test_sampling_changes_neither_sequences_nor_logits() -> None:
    sampler, seqs = connections()
    logits = LOGITS.clone()
    tokens = [list(seq.tokens) for seq in seqs]
    sampler.sample(logits, seqs)
    assert torch.equal(logits, LOGITS)
    assert [list(seq.tokens) for seq in seqs] == tokens


def test_inference_mode_may_come_and_go() -> None:
    sampler, seqs = connections()
    with torch.inference_mode():
        before = told(sampler.sample(LOGITS, seqs))
    seqs[6].inject([1])
    assert told(sampler.sample(LOGITS, seqs))[0] == before[0]


# -- what is no number -----------------------------------------------------------------------------

BROKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "one NaN": lambda row: row.index_fill(0, torch.tensor([77]), torch.nan),
    "all NaN": lambda row: torch.full_like(row, torch.nan),
    "+inf": lambda row: row.index_fill(0, torch.tensor([77]), torch.inf),
    "all -inf": lambda row: torch.full_like(row, -torch.inf),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("culprit", range(len(KINDS)))
def test_a_row_of_no_numbers_has_no_token_and_no_influence(kind: str, culprit: int) -> None:
    sampler, seqs = connections()
    expected = told(sampler.sample(LOGITS, seqs))
    expected[culprit] = (None, None)
    logits = LOGITS.clone()
    logits[culprit] = BROKEN[kind](logits[culprit])
    assert told(sampler.sample(logits, seqs)) == expected


def test_some_forbidden_tokens_are_no_trouble() -> None:
    logits = noise(1, VOCAB)
    logits[0, 1:] = -torch.inf
    for kind in KINDS:
        assert greedy(logits, sequence(**kind)) == 0


def test_when_only_the_end_could_come_and_may_not_there_is_no_token() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, EOS] = 0.0
    assert greedy(logits, sequence(temperature=0.0, min_tokens=1)) is None
    assert greedy(logits, sequence(min_tokens=1)) is None


def test_an_empty_batch_has_no_tokens() -> None:
    assert sampler_of(sequence()).sample(torch.zeros(0, VOCAB), []) == []


def test_a_vocabulary_too_large_for_exact_sums_is_refused() -> None:
    with pytest.raises(ValueError, match="too many to draw from"):
        Sampler(1, MAX_VOCAB + 1, eos=[])
