"""Failing calls: a device that runs out of memory at any call of a step, once, changes nobody's tokens.

Much is remembered of what stands on the device: block tables, rows of sampling parameters, counts of tokens,
blocks in the host's memory. What is remembered before it is done is believed when the step is tried again.

The calls of a step fail in turn, the same one in every step: here some of them, in `make reliability` all.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine import api
from engine.nonblocking_transfer import upload
from tests.fakes.engine_driver import Driver, greedy, model_engine
from tests.fakes.failing_device import FailingDevice, FailingKernel
from tests.fakes.failing_steps import BACKENDS, LIMITS, TEXT, TIGHT, check, oracle, steered, tiny
from tests.fakes.triton_kernels import needs_triton

SOME = 59  # one in so many calls


@pytest.mark.parametrize("behind", [False, True], ids=["before it acts", "behind what it did"])
@pytest.mark.parametrize("name", LIMITS)
def test_any_call_may_fail_and_nobody_notices(name: str, behind: bool) -> None:
    undisturbed = steered(LIMITS[name], FailingDevice())
    check(undisturbed, undisturbed)
    assert undisturbed.copier.loaded
    at = (7 * list(LIMITS).index(name) + 3 * behind) % SOME
    while True:
        device = FailingDevice(at, behind=behind)
        check(steered(LIMITS[name], device), undisturbed)
        if not device.failures:
            break
        at += SOME


@needs_triton
@pytest.mark.parametrize("behind", [False, True], ids=["before it acts", "behind what it did"])
def test_any_launch_of_our_kernels_may_fail(behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.forward import by_triton

    launches = {name: getattr(by_triton, name) for name in ("read", "join")}
    limits = replace(TIGHT, attention="triton", captured=True, batch_rows=2)
    for at in itertools.count():
        device = FailingDevice(behind=behind)
        for name, kernel in launches.items():
            monkeypatch.setattr(by_triton, name, FailingKernel(kernel, device))
        driver = Driver(model_engine(tiny(), limits))
        device.at = at
        driver.send(
            api.Submit(1, TEXT[:7], greedy(2), credit=9), api.Submit(2, TEXT[:3], greedy(2), credit=9)
        )
        while not driver.ended() or not driver.engine.idle:
            device.begin_step()
            driver.step()
        for told in driver.told.values():
            assert len(told.tokens) == 2
            oracle().check(told)
        if not device.failures:
            assert at > 1
            break


@pytest.mark.parametrize("name", ["tables", "flash_attn"])
def test_a_block_table_counts_as_written_once_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that was believed to be there would be read, and written through, for what was there before:
    the blocks of whoever had the slot."""
    uploads: list[int] = []
    failing = 0

    def fail_once(*args: Any) -> torch.Tensor:
        uploads.append(failing)
        if len(uploads) == failing:
            raise torch.OutOfMemoryError
        return upload(*args)

    monkeypatch.setattr("engine.forward.block_tables.upload", fail_once)
    undisturbed = steered(BACKENDS[name], FailingDevice())
    for failing in range(1, 1 + len(uploads), 3):  # noqa: B007 - seen by `fail_once`
        uploads.clear()
        check(steered(BACKENDS[name], FailingDevice()), undisturbed)
