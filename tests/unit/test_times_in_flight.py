"""How long steps took where they overlap: on a device each is launched before the one before it is heard of,
and to launch prompts takes the host long. The clock is the test's own."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import pytest
from torch import Tensor

from engine import api
from engine.engine import Engine
from engine.forward.interface import Runner
from engine.sampling.readback import Readback
from engine.schedule.batch import Batch, Row
from engine.step.step_times import StepTimes
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of

DECODE, PROMPT = (0.001, 0.005), (0.012, 0.040)  # seconds of the host's and of the device's
LONG = api.Sampling(temperature=0, ignore_eos=True, max_tokens=60)


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


def clocked(monkeypatch: pytest.MonkeyPatch, *, overlap: bool = True) -> tuple[Engine, Device, NotedTimes]:
    devices: list[Device] = []

    def on_device(runner: Runner) -> Runner:
        devices.append(Device(runner))
        return devices[0]

    engine = engine_of(TOY, Limits(kv_tokens=1024, step_tokens=64, overlap=overlap), on_device)
    (device,) = devices
    read = Readback.read

    def waited(readback: Readback) -> list[int | None]:
        device.wait()
        return read(readback)  # type: ignore[return-value]

    monkeypatch.setattr(Readback, "read", waited)
    for module in ("engine.engine", "engine.step.executor"):
        monkeypatch.setattr(f"{module}.time", device)
    times = engine._times = NotedTimes()
    return engine, device, times


def test_prompts_are_what_takes_long_and_not_the_rows_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, times = clocked(monkeypatch)
    driver = Driver(engine)
    driver.send(api.Submit(0, [5], LONG, 60))
    driver.step(12)
    driver.send(api.Submit(1, list(range(50)), LONG, 60))
    driver.step(12)
    decoding = [seconds for prompts, seconds in times.noted if not prompts]
    assert decoding[2:] == pytest.approx([sum(DECODE) - DECODE[0]] * len(decoding[2:])), (
        "one behind the other"
    )
    (prompt,) = [seconds for prompts, seconds in times.noted if prompts]
    assert prompt == pytest.approx(sum(PROMPT), abs=sum(DECODE))


@pytest.mark.parametrize("overlap", [False, True])
def test_what_a_step_does_beside_is_a_part_of_how_long_its_rows_take(
    monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine, device, times = clocked(monkeypatch, overlap=overlap)
    driver = Driver(engine)
    driver.send(api.Submit(0, [5], LONG, 60))
    driver.step(6)
    (before_s,) = {seconds for _, seconds in times.noted[3:]}
    schedule = engine.scheduler.schedule

    def planned() -> Batch:
        device.now += 0.010
        return schedule()

    monkeypatch.setattr(engine.scheduler, "schedule", planned)
    driver.step(6)
    (took_s,) = {seconds for _, seconds in times.noted[-3:]}
    hidden_s = before_s - DECODE[0] if overlap else 0.0  # the device computes meanwhile
    assert took_s == pytest.approx(before_s + 0.010 - hidden_s)
