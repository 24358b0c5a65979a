"""Device waits: operations for which the host would wait for its device, found where there is none."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class NoDeviceWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails on every operation for which the host would wait for the device."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "is_nonzero", "equal.")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert not any(name in str(func) for name in self.WAITS), f"{func} makes the host wait"
        return func(*args, **(kwargs or {}))
