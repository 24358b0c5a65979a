"""Memory that runs out: in an engine of this process, every call of a step fails in turn, before it acts and
behind what it did, in every step of a few streams that are steered, on every attention backend that runs on a
CPU, in plain PyTorch or by stand-ins, with overlap and without. All tokens must be those that transformers'
own `generate` writes, and no stream may fail for it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

from tests.fakes.engine_driver import Limits
from tests.fakes.failing_device import FailingDevice
from tests.fakes.failing_steps import LIMITS, check, steered


async def measure(scale: float) -> dict[str, Any]:
    stride = max(round(1 / scale), 1)
    failures, wrong = 0, list[str]()
    logging.disable(logging.WARNING)  # what fails is told there too, as it should be
    for name, limits in LIMITS.items():
        for behind in (False, True):
            failures += await asyncio.to_thread(fail_in_turn, name, limits, behind, stride, wrong)
    logging.disable(logging.NOTSET)
    return {
        "name": "memory that runs out",
        "failed calls": failures,
        "backends": len(LIMITS),
        "wrong": wrong[:5],
        "goal": "every call of a step, no stream harmed, outputs identical",
        "met": not wrong,
    }


def fail_in_turn(name: str, limits: Limits, behind: bool, stride: int, wrong: list[str]) -> int:
    """How many calls failed, until there was no step with as many."""
    undisturbed = steered(limits, FailingDevice())
    at = failures = 0
    while True:
        device = FailingDevice(at, behind=behind)
        try:
            check(steered(limits, device), undisturbed)
        except Exception as error:  # noqa: BLE001 - of whatever kind, it is a finding
            wrong.append(f"{name}, call {at}, {'behind' if behind else 'before'}: {error!r}")
            traceback.print_exception(error)
        failures += device.failures
        if not device.failures:
            return failures
        at += stride
