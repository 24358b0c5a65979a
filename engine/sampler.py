"""Chooses the next token of every row of a batch.

What a stream asks for (temperature, penalties, seed) is a row of tensors, found by the slot of its sequence:
to adjust a stream is to write a row, and a batch is never split by its parameters. A row's choice depends on
that row alone. In order: logprobs of the raw logits; logit_bias, repetition, presence and frequency penalty,
min_tokens; temperature, top_k, top_p, min_p (the order of transformers' warpers); the draw.

It knows sequences and what was asked of them. It changes none, and decides neither which rows are sampled nor
whether a token ends its stream: `ignore_eos` and `max_tokens` mean nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from engine import randomness
from engine.api import Logprob, Sampling
from engine.penalties import History
from engine.sequence import Choice, Sequence

NUMBERS = 7  # columns of a slot's row, in the order of `_numbers`


def _numbers(s: Sampling) -> list[float]:
    filters = [s.temperature, s.top_k, s.top_p, s.min_p]
    return [*filters, s.repetition_penalty, s.presence_penalty, s.frequency_penalty]


def _penalised(s: Sampling) -> bool:
    return s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0


class Sampler:
    """One choice a row; `uniform` makes the random number of each (seed, token index)."""

    def __init__(
        self,
        slots: int,
        vocab: int,
        *,
        eos: Iterable[int],
        device: str | torch.device = "cpu",
        uniform: Callable[[Tensor, Tensor], Tensor] = randomness.uniform,
    ) -> None:
        if vocab > randomness.MOST_TOKENS:
            raise ValueError(f"{vocab} tokens are too many to draw from; at most {randomness.MOST_TOKENS}")
        self._vocab = vocab
        self._device = device
        self._uniform = uniform
        # A tokenizer may name end tokens that the model has no logits for: they cannot be chosen anyway.
        self._eos = self._integers(sorted(token for token in set(eos) if 0 <= token < vocab))
        self._parameters = torch.zeros(slots, NUMBERS, dtype=torch.float64, device=device)
        self._seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self._bias: dict[int, dict[int, float]] = {}  # of the slots that have any
        self._history = History(vocab, device)

    # -- the life of a slot ------------------------------------------------------------------------

    @torch.inference_mode()
    def adopt(self, seq: Sequence) -> None:
        """The sequence has got its slot."""
        self.release(seq)
        self.adjust(seq)

    @torch.inference_mode()
    def adjust(self, seq: Sequence) -> None:
        """The `sampling` of the sequence changed."""
        slot, sampling = seq.slot, seq.sampling
        assert slot >= 0, "a sequence without a slot is adopted, not adjusted"
        self._parameters[slot] = torch.tensor(_numbers(sampling), dtype=torch.float64)
        self._seeds[slot] = sampling.seed
        self._bias[slot] = {
            token: bias for token, bias in sampling.logit_bias.items() if 0 <= token < self._vocab
        }
        if _penalised(sampling):
            self._history.claim(slot)
        else:
            self._history.release(slot)

    def release(self, seq: Sequence) -> None:
        """The slot is free."""
        self._bias.pop(seq.slot, None)
        self._history.release(seq.slot)

    # -- choosing ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def sample(self, logits: Tensor, seqs: list[Sequence]) -> list[Choice]:
        """The next token of each sequence, by its row of logits; None where those are no numbers."""
        if not seqs:
            return []
        assert logits.shape == (len(seqs), self._vocab)
        raw = logits if logits.dtype == torch.float64 else logits.float()
        slots = self._integers([seq.slot for seq in seqs])
        parameters = self._parameters[slots]
        best, tokens = raw.max(1)  # of equals the first; NaN above all
        sound = best.isfinite()
        scores = raw
        edited = [i for i, seq in enumerate(seqs) if self._is_edited(seq)]
        if edited:
            rows = self._integers(edited)
            part = self._edit(raw[rows], [seqs[i] for i in edited], parameters[rows])
            scores = raw.index_copy(0, rows, part)
            best[rows], tokens[rows] = part.max(1)
            sound &= best.isfinite()
        drawn = [i for i, seq in enumerate(seqs) if seq.sampling.temperature > 0]
        if drawn:
            rows = self._integers(drawn)
            weights = self._weights(scores[rows], best[rows], [seqs[i] for i in drawn], parameters[rows])
            indices = self._integers([seqs[i].outputs for i in drawn])
            tokens[rows] = randomness.pick(weights, self._uniform(self._seeds[slots[rows]], indices))
        chosen = tokens.masked_fill(~sound, -1).tolist()
        choices = [Choice(token if token >= 0 else None) for token in chosen]
        self._tell_logprobs(raw, seqs, choices)
        return choices

    def _integers(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self._device)

    def _awaits_eos(self, seq: Sequence) -> bool:
        return seq.outputs < seq.sampling.min_tokens

    def _is_edited(self, seq: Sequence) -> bool:
        return bool(self._bias[seq.slot]) or seq.slot in self._history or self._awaits_eos(seq)

    def _edit(self, scores: Tensor, seqs: list[Sequence], parameters: Tensor) -> Tensor:
        """The scores, which are ours to write to, after bias, penalties and min_tokens."""
        biases = [(row, *item) for row, seq in enumerate(seqs) for item in self._bias[seq.slot].items()]
        if biases:
            rows, ids, values = zip(*biases, strict=True)
            bias = torch.tensor(values, dtype=scores.dtype, device=self._device)
            scores.index_put_((self._integers(rows), self._integers(ids)), bias, accumulate=True)
        penalised = [row for row, seq in enumerate(seqs) if seq.slot in self._history]
        if penalised:
            at = self._integers(penalised)
            _, _, _, _, *penalties = parameters[at].unbind(1)
            scores[at] = self._history.penalise(scores[at], [seqs[row] for row in penalised], *penalties)
        early = [row for row, seq in enumerate(seqs) if self._awaits_eos(seq)]
        if early:
            scores[self._integers(early)[:, None], self._eos] = -torch.inf
        return scores

    def _weights(self, scores: Tensor, best: Tensor, seqs: list[Sequence], parameters: Tensor) -> Tensor:
        """What each token's share of the draw is, after temperature, top_k, top_p and min_p."""
        temperature, top_k, top_p, min_p, *_ = parameters.unbind(1)
        weights = randomness.weights(scores, best, temperature)
        by_rank = [row for row, seq in enumerate(seqs) if 0 < seq.sampling.top_k < self._vocab]
        by_mass = [row for row, seq in enumerate(seqs) if seq.sampling.top_p < 1]
        floor = torch.zeros_like(best)
        if by_rank:
            at = self._integers(by_rank)
            most = max(seqs[row].sampling.top_k for row in by_rank)
            floor[at] = randomness.top_k_floor(weights[at], top_k[at].long(), most)
        if by_mass:  # a share of what top_k left
            at = self._integers(by_mass)
            left = weights[at]
            left.masked_fill_(left < floor[at, None], 0)
            floor[at] = floor[at].maximum(randomness.top_p_floor(left, top_p[at]))
        floor = floor.maximum((min_p * randomness.SCALE).to(floor.dtype))
        if by_rank or by_mass or any(seq.sampling.min_p > 0 for seq in seqs):
            weights.masked_fill_(weights < floor[:, None], 0)
        return weights

    # -- logprobs ----------------------------------------------------------------------------------

    def _tell_logprobs(self, raw: Tensor, seqs: list[Sequence], choices: list[Choice]) -> None:
        """Give a logprob to each choice whose stream asked for it; together those that asked for the same."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for row, (seq, choice) in enumerate(zip(seqs, choices, strict=True)):
            if seq.sampling.logprobs is not None and choice.token is not None:
                groups.setdefault(seq.sampling.logprobs, []).append((row, choice.token))
        for count, chosen in groups.items():
            rows, tokens = zip(*chosen, strict=True)
            logprobs = raw[self._integers(rows)].log_softmax(1)
            own = logprobs.gather(1, self._integers(tokens)[:, None]).squeeze(1).tolist()
            for row, logprob, top in zip(rows, own, most_likely(logprobs, count), strict=True):
                choices[row].logprob = Logprob(logprob, top)


def most_likely(logprobs: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """(id, logprob) of the `count` most likely tokens, a row; equals in the order of their ids.

    topk leaves open which of several equal tokens it takes at its edge; we take the lowest ids there.
    """
    if count == 0:
        return [[] for _ in logprobs]
    vocab = logprobs.shape[1]
    count = min(count, vocab)
    values, ids = logprobs.topk(count)
    edge = values[:, -1:]
    everything = torch.arange(vocab, device=logprobs.device)
    tied = torch.where(logprobs == edge, everything, vocab).topk(count, largest=False).values
    ids = torch.where(values > edge, ids, vocab)
    every = zip(ids.tolist(), values.tolist(), tied.tolist(), edge.squeeze(1).tolist(), strict=True)
    return [_merged(*row, vocab=vocab, count=count) for row in every]


def _merged(
    ids: list[int], values: list[float], tied: list[int], edge: float, *, vocab: int, count: int
) -> list[tuple[int, float]]:
    above = sorted(
        ((token, value) for token, value in zip(ids, values, strict=True) if token < vocab),
        key=lambda entry: (-entry[1], entry[0]),
    )
    equal = [(token, edge) for token in tied if token < vocab]
    # A token that cannot come is no answer to "which are likely", and -inf is no number in JSON.
    return [entry for entry in above + equal if entry[1] > -torch.inf][:count]
