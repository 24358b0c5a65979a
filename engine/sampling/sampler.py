"""The sampler: chooses the next token of every row of a batch.

A stream's sampling parameters (temperature, penalties, seed) are a row of tensors, found by the slot of its
sequence: to adjust a stream is to write a row, and a batch is never split by its parameters. Rows are written
when they are next sampled with, all together, however often their streams were adjusted, and where whatever
fails is tried again. What is sampled for a row depends on that row alone. In order: logprobs of the raw
logits; logit_bias, repetition, presence and frequency penalty, min_tokens, and what is banned at
this index; temperature, top_k, top_p, min_p (the order of transformers' warpers); the race.

It knows sequences and what was asked of them. It changes none, and decides neither which rows are sampled nor
whether a token ends its stream: `ignore_eos` and `max_tokens` mean nothing here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from engine.api import Sampling
from engine.nonblocking_transfer import Download, on_host, upload, upload_tensor
from engine.sampling import filters, noise
from engine.sampling.draw import Asked, draw_on
from engine.sampling.penalties import TokenCounts
from engine.sampling.readback import LogprobsReadback, Readback, SampleRequest
from engine.schedule.sequence import SampledToken, Sequence

PARAMETERS = 6  # columns of a slot's row, in the order of `_parameters_of`


def _parameters_of(s: Sampling) -> list[float]:
    coldest = math.log(s.min_p) if s.min_p > 0 else -math.inf  # that min_p lets run
    return [s.temperature, s.top_p, coldest, s.repetition_penalty, s.presence_penalty, s.frequency_penalty]


def _penalised(s: Sampling) -> bool:
    return s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0


def _tensors(bias: dict[int, float]) -> tuple[Tensor, Tensor]:
    """Its tokens, and by how much: a step puts together those of its rows, which may have hundreds each."""
    return on_host([*bias]), on_host([*bias.values()], torch.float64)


class Sampler:
    """One token a row.

    At most `rows` streams are sampled at once: by default all slots.
    Where several processes compute the same rows, `broadcast` gives all of them the tokens of one.
    """

    def __init__(
        self,
        slots: int,
        vocab: int,
        *,
        eos: Iterable[int],
        rows: int | None = None,
        device: str | torch.device = "cpu",
        broadcast: Callable[[Tensor], None] | None = None,
    ) -> None:
        if vocab > filters.MAX_VOCAB:
            raise ValueError(f"{vocab} tokens are too many to draw from; the limit is {filters.MAX_VOCAB}")
        self._vocab = vocab
        self._device = torch.device(device)
        self._draw = draw_on(self._device)
        self._broadcast = broadcast
        self.latest_tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)  # of each slot
        # A tokenizer may name end tokens that the model has no logits for: they cannot be chosen anyway.
        self._eos = self._integers(sorted(token for token in set(eos) if 0 <= token < vocab))
        self._parameters = torch.zeros(slots, PARAMETERS, dtype=torch.float64, device=device)
        self._seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self._bias: dict[int, tuple[Tensor, Tensor] | None] = {}  # of the slots that were sampled for
        self._written: dict[int, Sampling] = {}  # the same slots: what stands in their rows
        self._counts = TokenCounts(slots if rows is None else rows, vocab, self.latest_tokens)

    # -- slots -------------------------------------------------------------------------------------

    def release_slot(self, seq: Sequence) -> None:
        """The slot is free."""
        self._written.pop(seq.slot, None)
        self._bias.pop(seq.slot, None)
        self._counts.release_slot(seq.slot)

    def _write_parameters(self, seqs: Iterable[Sequence]) -> None:
        """Of those whose `sampling` is not what stands in their rows."""
        changed = {seq.slot: seq.sampling for seq in seqs if self._written.get(seq.slot) is not seq.sampling}
        if not changed:
            return
        slots, every = self._integers(changed), list(changed.values())
        parameters = upload([_parameters_of(sampling) for sampling in every], self._device, torch.float64)
        self._parameters.index_copy_(0, slots, parameters)
        self._seeds.index_copy_(0, slots, self._integers(sampling.seed for sampling in every))
        for slot, sampling in changed.items():
            bias = {token: by for token, by in sampling.logit_bias.items() if 0 <= token < self._vocab}
            self._bias[slot] = _tensors(bias) if bias else None
        self._written |= changed

    # -- sampling ----------------------------------------------------------------------------------

    def sample(self, logits: Tensor, seqs: list[Sequence]) -> list[SampledToken]:
        """The next token of each sequence, by its row of logits; None where those are no numbers."""
        return self.launch(logits, [SampleRequest(seq, seq.num_outputs) for seq in seqs]).read()

    @torch.inference_mode()
    def launch(self, logits: Tensor, rows: list[SampleRequest]) -> Readback:
        """As `sample`, but that nobody waits for the device: the tokens are in `latest_tokens` there at once,
        and the host reads them when it wants to know."""
        if not rows:
            return Readback(None, [])
        assert logits.shape == (len(rows), self._vocab)
        self._write_parameters(row.seq for row in rows)
        raw = logits if logits.dtype == torch.float64 else logits.float()
        slots = self._integers([row.seq.slot for row in rows])
        parameters = self._parameters[slots]
        scores = self._edited(raw, rows, parameters)
        tokens = self._draw(scores, self._asked(rows, slots, parameters))
        if scores is not raw:
            tokens.masked_fill_(~raw.amax(1).isfinite(), -1)  # NaN is above all
        if self._broadcast is not None:
            self._broadcast(tokens)
        self.latest_tokens.index_copy_(0, slots, tokens.clamp(min=0))
        return Readback(Download(tokens), self._logprobs(raw, rows, tokens))

    def _integers(self, values: Iterable[int]) -> Tensor:
        return upload(list(values), self._device)

    def _eos_banned(self, row: SampleRequest) -> bool:
        return row.index < row.seq.sampling.min_tokens

    def _is_edited(self, row: SampleRequest) -> bool:
        penalised = self._bias[row.seq.slot] is not None or _penalised(row.seq.sampling)
        return penalised or self._eos_banned(row) or bool(row.seq.banned_at(row.index))

    def _edited(self, raw: Tensor, rows: list[SampleRequest], parameters: Tensor) -> Tensor:
        """The scores after bias, penalties, min_tokens and bans."""
        if not any(self._is_edited(row) for row in rows):
            return raw
        scores = raw.clone()
        biased = [at for at, row in enumerate(rows) if self._bias[row.seq.slot] is not None]
        if biased:
            self._add_bias(scores, biased, [rows[at].seq.slot for at in biased])
        penalised = [at for at, row in enumerate(rows) if _penalised(row.seq.sampling)]
        if penalised:
            self._counts.penalise(scores, penalised, [rows[at] for at in penalised], parameters[:, 3:])
        early = [at for at, row in enumerate(rows) if self._eos_banned(row)]
        if early:
            scores[self._integers(early)[:, None], self._eos] = -torch.inf
        places, ids = array("i"), array("i")  # of very many, maybe
        for at, row in enumerate(rows):
            banned = row.seq.banned_at(row.index)
            places.extend(array("i", [at]) * len(banned))
            ids.extend(banned)
        if ids:
            scores[upload(places, self._device), upload(ids, self._device)] = -torch.inf
        return scores

    def _add_bias(self, scores: Tensor, rows: list[int], slots: list[int]) -> None:
        """That of each slot to its row."""
        tokens, by = zip(*filter(None, map(self._bias.get, slots)), strict=True)
        places = on_host(rows).repeat_interleave(on_host([*map(len, tokens)]))
        parts = (places, torch.cat(tokens), torch.cat(by).to(scores.dtype))
        place, token, more = (upload_tensor(part, self._device) for part in parts)
        scores.index_put_((place, token), more, accumulate=True)

    def _asked(self, rows: list[SampleRequest], slots: Tensor, parameters: Tensor) -> Asked:
        sampling = [row.seq.sampling for row in rows]
        return Asked(
            [s.temperature for s in sampling],
            [s.top_k for s in sampling],
            [s.top_p for s in sampling],
            noise.keys(self._seeds[slots], self._integers(row.index for row in rows)),
            parameters[:, :3],
        )

    # -- logprobs ----------------------------------------------------------------------------------

    def _logprobs(self, raw: Tensor, rows: list[SampleRequest], tokens: Tensor) -> list[LogprobsReadback]:
        """Of the rows whose streams asked for logprobs; together those that asked for the same."""
        groups: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            if row.seq.sampling.logprobs is not None:
                groups.setdefault(row.seq.sampling.logprobs, []).append(at)
        found = []
        for count, members in groups.items():
            places = self._integers(members)
            logprobs = raw[places].log_softmax(1)
            own = logprobs.gather(1, tokens[places].clamp(min=0)[:, None]).squeeze(1)
            found.append(LogprobsReadback(members, own, logprobs, count))
        return found
