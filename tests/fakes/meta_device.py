"""The meta device as a stand-in for a device that is not there. It has shapes and no numbers, so whoever asks
it for a number, or gives it a tensor of the host's, is found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COPY = "aten.copy_.default"
COPIES = (COPY, "aten._to_copy.default")


class NoMixedDevices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails on operations between tensors of the host and the device, but for copies; down comes nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if str(func) == COPY and (args[0].device.type, args[1].device.type) == ("cpu", "meta"):
            return args[0]
        if str(func) not in COPIES:
            given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.dim()]
            assert len({tensor.device for tensor in given}) <= 1, f"{func} mixes the host and the device"
        return func(*args, **(kwargs or {}))


class NoPinnedMemory(TorchFunctionMode):
    """There is nothing to pin memory for."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.pin_memory:
            return args[0]
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


class Event:
    def record(self) -> None: ...


@contextmanager
def on_meta_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    with NoPinnedMemory(), NoMixedDevices():  # type: ignore[no-untyped-call]
        yield
