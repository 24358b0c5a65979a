"""How long steps took where they overlap: on a device each is launched before the one before it is heard of,
and to launch prompts takes the host long. The clock is the test's own."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import pytest
from torch import Tensor

from engine import api
from engine.forward.interface import Runner
from engine.sampling.readback import Readback
from engine.schedule.batch import Row
from engine.step.step_times import StepTimes
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of

DECODE, PROMPT = (0.001, 0.005), (0.012, 0.040)  # seconds of the host's and of the device's


class Device:
    """A runner on a device, which computes one step behind the other."""

    def __init__(self, inner: Runner) -> None:
        self.context, self.eos = inner.context, inner.eos
        self.copy_blocks, self.zero_blocks = inner.copy_blocks, inner.zero_blocks
        self.now = self._done_s = 0.0
        self._ends: list[float] = []
        self._inner = inner

    def perf_counter(self) -> float:
        return self.now

    def forward(self, rows: Rows[Row]) -> Tensor:
        host_s, device_s = PROMPT if any(row.count > 1 for row in rows) else DECODE
        self.now += host_s
        self._done_s = max(self._done_s, self.now) + device_s
        self._ends.append(self._done_s)
        return self._inner.forward(rows)

    def wait(self) -> None:
        """For the first of those that nobody waited for."""
        self.now = max(self.now, self._ends.pop(0))


class NotedTimes(StepTimes):
    def __init__(self) -> None:
        super().__init__(64)
        self.noted: list[tuple[bool, float]] = []  # whether it had prompts, and what it took

    def learn(self, rows: list[Row], seconds: float) -> None:
        if rows:
            self.noted.append((any(row.count > 1 for row in rows), round(seconds, 6)))


def test_prompts_are_what_takes_long_and_not_the_rows_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Device] = []

    def on_device(runner: Runner) -> Runner:
        devices.append(Device(runner))
        return devices[0]

    engine = engine_of(TOY, Limits(kv_tokens=1024, step_tokens=64, overlap=True), on_device)
    (device,) = devices
    read = Readback.read

    def waited(readback: Readback) -> list[int | None]:
        device.wait()
        return read(readback)  # type: ignore[return-value]

    monkeypatch.setattr(Readback, "read", waited)
    monkeypatch.setattr("engine.step.executor.time", device)
    times = engine._times = NotedTimes()
    driver = Driver(engine)
    long = api.Sampling(temperature=0, ignore_eos=True, max_tokens=60)
    driver.send(api.Submit(0, [5], long, 60))
    driver.step(12)
    driver.send(api.Submit(1, list(range(50)), long, 60))
    driver.step(12)
    decoding = [seconds for prompts, seconds in times.noted if not prompts]
    assert decoding[2:] == pytest.approx([sum(DECODE) - DECODE[0]] * len(decoding[2:])), (
        "one behind the other"
    )
    (prompt,) = [seconds for prompts, seconds in times.noted if prompts]
    assert prompt == pytest.approx(sum(PROMPT), abs=sum(DECODE))
