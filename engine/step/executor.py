"""The executor: runs batches through the model and the sampler, and retries in halves where something failed.

Without overlap a batch completes in the step that launched it. With overlap it is *in flight* until the next
step, and completes behind the launch of the batch that follows it: the device always has work queued, and the
host learns of tokens one step later. Rows whose streams have a grammar are sampled behind the others, once
the host knows the token before: their masks are filled while the device computes.

It knows rows, the model and the sampler; it changes no sequence, but to discard rows that it cannot trust,
and to give up the drafts of those that it retries. It knows no news, and no command.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, islice, zip_longest

from torch import Tensor

from engine.forward.interface import Runner
from engine.nonblocking_transfer import upload
from engine.sampling.masks import forbid
from engine.sampling.readback import Readback, SampleRequest
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Batch, Row
from engine.schedule.sequence import SampledToken
from engine.step.constraining import Constraining
from engine.step.failed_attempts import clean_up
from engine.step.lookout import Masks
from engine.structure.matcher import GrammarError

log = logging.getLogger(__name__)


# Of a row: its tokens, up to the first that is not its draft; its error, or nothing since it did not sample.
Result = list[SampledToken] | Exception | None
Commit = Callable[[Row, Result], None]


@dataclass(slots=True)
class BatchInFlight:
    """Rows that were launched: their tokens on the way to the host, or why they could not be launched."""

    rows: list[Row]
    logits: Tensor | None = None  # of those rows that were to sample, for each token of theirs
    wanted: list[tuple[Row, int]] = field(default_factory=list)  # these rows, and where those of each begin
    sampled: list[tuple[list[Row], Readback]] = field(default_factory=list)
    refused: list[tuple[Row, GrammarError]] = field(default_factory=list)  # by their grammars
    failure: Exception | None = None
    launch_s: float = 0.0
    late_s: float = 0.0  # by which its launch took longer than that of the batch before


class Executor:
    """Rows that fail are retried with fewer others, unless other processes compute in step with this one:
    they would not retry, so there an error is raised."""

    def __init__(
        self,
        runner: Runner,
        sampler: Sampler,
        constraining: Constraining,
        *,
        overlap: bool,
        retry: bool = True,
    ) -> None:
        self._runner = runner
        self._sampler = sampler
        self._constraining = constraining
        self._overlap = overlap
        self._retryable: tuple[type[Exception], ...] = (Exception,) if retry else ()
        self._in_flight: BatchInFlight | None = None
        self.seconds = 0.0  # that the last step spent on computing and sampling
        self.completed_s: float | None = None  # that the rows which completed took, where that can be known

    @property
    def busy(self) -> bool:
        return self._in_flight is not None

    def run(self, batch: Batch, commit: Commit) -> list[Row]:
        """Launch the batch, and commit each row that completes, first those of the batch before; returns
        them."""
        before, self._in_flight = self._in_flight, None
        completed: list[Row] = []
        self.seconds, self.completed_s = 0.0, None
        with self._timed():
            launched = self._launch(batch)
        launch_s = self.seconds
        if launched is not None:
            launched.launch_s = launch_s
        with self._timed():
            results = self._results(before) if before is not None else None
        if before is not None:
            self.completed_s = self._took(before, self.seconds - launch_s, launched)
            completed += self._complete(before, results, commit)
            if results is None and launched is not None:  # it builds upon what could not be trusted
                completed += self._discard(launched, commit)
                launched = None
        if launched is not None:
            with self._timed():
                self._sample_constrained(launched)
            launched.logits = None
        if launched is not None and self._overlap and launched.failure is None:
            self._in_flight = launched
        elif launched is not None:
            with self._timed():
                results = self._results(launched)
            completed += self._complete(launched, results, commit)
            self.completed_s = self.seconds
        return completed

    @staticmethod
    def _took(before: BatchInFlight, waited_s: float, behind: BatchInFlight | None) -> float | None:
        """What the batch before took. The launch of the one behind it is a part of that as far as its own was
        as long. The rest is the other's; where that is most, nobody knows when the one before was done."""
        if behind is None:
            return before.late_s + before.launch_s + waited_s
        shared_s = min(behind.launch_s, before.launch_s)
        behind.late_s = behind.launch_s - shared_s
        took_s = before.late_s + shared_s + waited_s
        return took_s if behind.late_s <= took_s else None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def _launch(self, batch: Batch) -> BatchInFlight | None:
        for copy in batch.copies:
            self._copy_block(copy)
        if not batch.rows:
            return None
        launched = BatchInFlight(batch.rows)
        with self._noting_failure(launched):
            self._forward(launched)
        return launched

    @contextmanager
    def _noting_failure(self, launched: BatchInFlight) -> Iterator[None]:
        try:
            yield
        except self._retryable as error:
            launched.failure = clean_up(error)

    def _copy_block(self, copy: tuple[int, int]) -> None:
        """One by one, since one may read what the next writes. What fails twice is raised, and ends the
        engine: whoever has the copy in its table would go on with what was there before."""
        try:
            self._runner.copy_blocks([copy])
        except self._retryable as error:
            clean_up(error)
            self._runner.copy_blocks([copy])

    def _forward(self, launched: BatchInFlight) -> None:
        """The model, and the sampler for those rows that wait for nobody."""
        launched.logits = self._runner.forward(launched.rows)
        sampling = [row for row in launched.rows if row.samples]
        begins = accumulate((row.num_sampled for row in sampling), initial=0)
        launched.wanted = list(zip(sampling, begins, strict=False))
        self._sample(launched, [row for row in sampling if row.sequence.constraint is None])

    def _sample_constrained(self, launched: BatchInFlight) -> None:
        rows = [row for row, _ in launched.wanted if row.sequence.constraint is not None]
        if launched.failure is not None or not rows:
            return
        chosen = self._constraining.choose(rows)
        launched.refused = [(row, masks) for row, masks in chosen if isinstance(masks, GrammarError)]
        masks = {id(row): masks for row, masks in chosen if isinstance(masks, list)}
        with self._noting_failure(launched):
            self._forbid(launched, masks)
            self._sample(launched, [row for row, _ in chosen if id(row) in masks])

    def _forbid(self, launched: BatchInFlight, masks: dict[int, Masks]) -> None:
        assert launched.logits is not None
        masked = [
            (at, mask)
            for row, begin in launched.wanted
            for at, mask in enumerate(masks.get(id(row), ()), begin)
            if mask is not None
        ]
        forbid(launched.logits, [at for at, _ in masked], [mask for _, mask in masked])

    def _sample(self, launched: BatchInFlight, rows: list[Row]) -> None:
        """Some of the rows whose logits there are."""
        logits = launched.logits
        assert logits is not None
        if not rows:
            return
        ids = {id(row) for row in rows}
        wanted = [(row, begin) for row, begin in launched.wanted if id(row) in ids]
        places = [at for row, begin in wanted for at in range(begin, begin + row.num_sampled)]
        if len(places) < len(logits):
            logits = logits[upload(places, logits.device)]
        requests = [request for row in rows for request in _requests(row)]
        launched.sampled.append((rows, self._sampler.launch(logits, requests)))

    def _results(self, launched: BatchInFlight) -> list[Result] | None:
        """The result of each row, waited for; None where they have to be retried."""
        if launched.failure is not None:
            return None
        try:
            return self._read(launched)
        except self._retryable as error:  # of work that was only queued when it was launched
            launched.failure = clean_up(error)
            return None

    def _read(self, launched: BatchInFlight) -> list[Result] | None:
        """The result of each row; None where a row's logits are no numbers, and others may suffer for it.

        Rows that are read together read over their ends, masked, into what others wrote; and nothing times no
        number is no number. Alone and without drafts, a row reads its own: only the culprit is left with
        none.
        """
        # A token that nobody wants any more may have been refused: its stream was steered away from there.
        by_row: dict[int, Result] = {id(row): error for row, error in launched.refused if not row.void}
        for rows, readback in launched.sampled:
            tokens = iter(readback.read())
            by_row |= {id(row): _up_to_wrong(row, list(islice(tokens, 1 + len(row.drafts)))) for row in rows}
        results = [by_row.get(id(row)) for row in launched.rows]
        spoiled = any(
            isinstance(result, list) and result[-1].token is None and not row.discarded
            for row, result in zip(launched.rows, results, strict=True)
        )
        alone = len(launched.rows) == 1 and not launched.rows[0].drafts
        return None if spoiled and not alone else results

    def _discard(self, launched: BatchInFlight, commit: Commit) -> list[Row]:
        for row in launched.rows:
            row.sequence.give_up_in_flight()
            commit(row, None)
        return launched.rows

    def _complete(self, launched: BatchInFlight, results: list[Result] | None, commit: Commit) -> list[Row]:
        for row, result in zip(launched.rows, results or self._retry(launched), strict=True):
            commit(row, result)
        return launched.rows

    # -- retries ---------------------------------------------------------------------------------

    def _retry(self, failed: BatchInFlight) -> list[Result]:
        """In halves where the whole failed, one by one where its numbers did, but for what was discarded.

        So is what has been steered meanwhile: its tokens, its blocks or its parameters are others now. A row
        that was alone is tried once more, as any other: what has failed need not be its own doing.
        """
        for row in failed.rows:
            if row.outdated:
                row.sequence.give_up_in_flight()
        rows = [row for row in failed.rows if not row.discarded]
        if failed.failure is None or len(rows) <= 1:
            again = self._retry_each(rows)
        elif len(rows) < len(failed.rows):  # these have not failed yet
            again = self._retry_rows(rows)
        else:
            again = self._retry_halves(rows, failed.failure)
        by_row = {id(row): result for row, result in zip(rows, again, strict=True)}
        return [by_row.get(id(row)) for row in failed.rows]  # some may have been given up since

    def _retry_each(self, rows: list[Row]) -> list[Result]:
        return [result for row in rows for result in self._retry_rows([row])]

    def _retry_rows(self, rows: list[Row]) -> list[Result]:
        """Computing a row again writes the same again, so what is left in the end are the rows that fail
        alone, and what ran short of memory as a whole may do in parts. Drafts are tried once."""
        for row in rows:
            row.sequence.draft(row, ())
        again = BatchInFlight(rows)
        with self._noting_failure(again):
            self._forward(again)
        self._sample_constrained(again)
        results = self._results(again)
        if again.failure is not None:
            return self._retry_halves(rows, again.failure)
        return self._retry_each(rows) if results is None else results

    def _retry_halves(self, rows: list[Row], error: Exception) -> list[Result]:
        if len(rows) == 1:
            log.error("stream %d failed in the model", rows[0].sequence.stream, exc_info=error)
            return [error]
        half = len(rows) // 2
        return self._retry_rows(rows[:half]) + self._retry_rows(rows[half:])


def _requests(row: Row) -> list[SampleRequest]:
    """For the token behind the last that is known, and behind each draft."""
    sequence, index, drafts = row.sequence, row.index, row.drafts
    if not drafts:
        return [SampleRequest(sequence, index)]
    return [SampleRequest(sequence, index + at, drafts[:at]) for at in range(1 + len(drafts))]


def _up_to_wrong(row: Row, tokens: list[SampledToken]) -> list[SampledToken]:
    """Whatever is sampled behind a draft that was wrong is of another text."""
    found = []
    for token, draft in zip_longest(tokens, row.drafts):
        found.append(token)
        if token.token != draft:
            break
    return found
