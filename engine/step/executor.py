"""Batches on their way through the model: launched, landed, and run again in parts where something failed.

A batch that was launched is a *flight*. Without overlap it lands in the step that launched it. With overlap
it lands in the next one, behind the launch of the batch that follows it: the device always has work queued,
and the host learns of tokens one step later.

It knows rows, the model and the sampler; it changes no sequence, but to give up rows that it cannot trust. It
knows no news, and no command.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.forward.interface import Runner
from engine.sampling.readback import Draw, Next
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Batch, Row
from engine.schedule.sequence import Choice
from engine.transfer import wait_for_all

log = logging.getLogger(__name__)


Outcome = Choice | Exception | None  # of a row: a token, what went wrong, or nothing since it did not sample
Landed = list[tuple[Row, Outcome]]


@dataclass(slots=True)
class Flight:
    """Rows under way: what they will bring, or why they could not be launched."""

    rows: list[Row]
    draw: Draw | Exception


class Flights:
    """What fails is computed again in parts, unless others compute in step with this process: they would
    not, so there nothing is forgiven."""

    def __init__(self, runner: Runner, sampler: Sampler, *, overlap: bool, salvage: bool = True) -> None:
        self._runner = runner
        self._sampler = sampler
        self._overlap = overlap
        self._forgiven: tuple[type[Exception], ...] = (Exception,) if salvage else ()
        self._flight: Flight | None = None
        self.seconds = 0.0  # that the last step spent on computing and sampling

    @property
    def under_way(self) -> bool:
        return self._flight is not None

    def fly(self, batch: Batch) -> Iterator[Landed]:
        """Launch the batch; land what is due, each to be kept before the next is asked for."""
        before, self._flight = self._flight, None
        self.seconds = 0.0
        with self._timed():
            flight = self._launched(batch)
            outcomes = self._brought(before) if before is not None else None
        if before is not None:
            yield self._landed(before, outcomes)
            if outcomes is None and flight is not None:  # it builds upon what could not be trusted
                for row in flight.rows:
                    row.sequence.recall()
        if flight is not None and self._overlap and isinstance(flight.draw, Draw):
            self._flight = flight
        elif flight is not None:
            with self._timed():
                outcomes = self._brought(flight)
            yield self._landed(flight, outcomes)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began

    def _launched(self, batch: Batch) -> Flight | None:
        if batch.copies:
            self._runner.copy_blocks(batch.copies)
        if not batch.rows:
            return None
        try:
            return Flight(batch.rows, self._launch(batch.rows))
        except self._forgiven as error:
            return Flight(batch.rows, _forgive(error))

    def _landed(self, flight: Flight, outcomes: list[Outcome] | None) -> Landed:
        return list(zip(flight.rows, outcomes or self._salvaged(flight), strict=True))

    def _launch(self, rows: list[Row]) -> Draw:
        logits = self._runner.forward(rows)
        return self._sampler.choose(logits, [Next(row.sequence, row.index) for row in rows if row.samples])

    def _brought(self, flight: Flight) -> list[Outcome] | None:
        if isinstance(flight.draw, Exception):
            return None
        try:
            return self._sound(flight.rows, flight.draw)
        except self._forgiven as error:  # of work that was only queued when it was launched
            flight.draw = _forgive(error)
            return None

    def _sound(self, rows: list[Row], draw: Draw) -> list[Outcome] | None:
        """The outcome of each row; None where a row has no number, and others may suffer for it.

        Rows that are read together read over their ends, masked, into what others wrote; and nothing times no
        number is no number. Alone, a row reads its own: only the culprit is left with none.
        """
        choices = iter(draw.choices())
        outcomes: list[Outcome] = [next(choices) if row.samples else None for row in rows]
        spoiled = any(
            isinstance(outcome, Choice) and outcome.token is None and not row.void
            for row, outcome in zip(rows, outcomes, strict=True)
        )
        return None if spoiled and len(rows) > 1 else outcomes

    # -- again, in parts -------------------------------------------------------------------------

    def _salvaged(self, flight: Flight) -> list[Outcome]:
        """Each half where the whole failed, each row where its numbers did, but for what is void."""
        rows = [row for row in flight.rows if not row.void]
        error = flight.draw if isinstance(flight.draw, Exception) else None
        again = iter(self._halved(rows, error) if error and rows else self._alone(rows))
        return [None if row.void else next(again) for row in flight.rows]

    def _alone(self, rows: list[Row]) -> list[Outcome]:
        return [outcome for row in rows for outcome in self._contained([row])]

    def _contained(self, rows: list[Row]) -> list[Outcome]:
        """Computing a row again writes the same again, so what is left in the end are the rows that fail
        alone, and what ran short of memory as a whole may do in parts."""
        try:
            outcomes = self._sound(rows, self._launch(rows))
        except self._forgiven as error:
            return self._halved(rows, _forgive(error))
        return self._alone(rows) if outcomes is None else outcomes

    def _halved(self, rows: list[Row], error: Exception) -> list[Outcome]:
        if len(rows) == 1:
            log.error("stream %d failed in the model", rows[0].sequence.stream, exc_info=error)
            return [error]
        half = len(rows) // 2
        return self._contained(rows[:half]) + self._contained(rows[half:])


def _forgive(error: Exception) -> Exception:
    """Whatever a model raises is its streams' misfortune, and they are tried again; unless the device broke,
    which is raised. What the failed try computed is let go of: the next may need its memory."""
    wait_for_all()
    at: BaseException | None = error
    while at is not None:
        traceback.clear_frames(at.__traceback__)
        at = at.__cause__ or at.__context__
    return error
