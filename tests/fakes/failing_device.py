"""A device that runs out of memory once in every step, at one and the same call of each.

A call is whatever an engine asks of a device: an operation of torch, which takes memory for what it gives, or
a launch of a kernel. It fails before it has done anything, or behind what it did, as when there is no memory
for its result's way to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class FailingDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails at the call with the number `at` of each step, counted from 0. `failures` counts."""

    def __init__(self, at: int | None = None, *, behind: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failures = 0
        self.at = at
        self._behind = behind
        self._calls = 0

    def begin_step(self) -> None:
        self._calls = 0

    def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        fails = self._calls == self.at
        self._calls += 1
        self.failures += fails
        if fails and not self._behind:
            raise torch.OutOfMemoryError
        result = work(*args, **kwargs)
        if fails:
            raise torch.OutOfMemoryError
        return result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.is_view:  # asks nothing of the device
            return func(*args, **(kwargs or {}))
        return self.call(func, *args, **(kwargs or {}))


class FailingKernel:
    """A Triton kernel whose launches are calls of the device."""

    def __init__(self, kernel: Any, device: FailingDevice) -> None:
        self._kernel = kernel
        self._device = device

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        launch = self._kernel[grid]
        return lambda *args, **named: self._device.call(launch, *args, **named)
