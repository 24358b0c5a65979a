"""Models whose layers slide, in contexts of many windows: the tokens are those of `generate`, and what the
windows have left is held by nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import api
from engine.schedule.windows import first_held
from tests.fakes.engine_driver import Driver, Limits, engine_of, greedy
from tests.fakes.failing_device import FailingDevice
from tests.fakes.greedy_oracle import oracle
from tests.fakes.late_block_copier import LateBlockCopier
from tests.fakes.tiny_models import WINDOW
from tests.fakes.triton_kernels import needs_triton

SLIDING = ["mistral", "qwen3", "gemma3_text", "gpt_oss"]
OF_EACH_KIND = ["mistral", "gemma3_text"]  # all layers slide, or some
TEXT = [(at * at * 11 + at) % 400 for at in range(100)]
ROOMY = Limits(kv_tokens=1600, step_tokens=13)
TIGHT = Limits(kv_tokens=300, step_tokens=13, host_blocks=48)
CROWDS = [
    ("mistral", "sdpa", True),
    ("gemma2", "sdpa", True),
    ("gemma3_text", "sdpa", False),
    ("gemma3_text", "flash_attn", True),
    ("gpt_oss", "flashinfer", True),
    ("gpt_oss", "sdpa", True),
]


def check(driver: Driver, architecture: str, tokens: int) -> None:
    for told in driver.told.values():
        assert len(told.tokens) == tokens
        oracle(architecture).check(told)


def spoken(architecture: str, limits: Limits = ROOMY, length: int = 90) -> Driver:
    """A stream that knows twelve windows, and waits for credit."""
    driver = Driver(engine_of(architecture, limits))
    driver.settle(api.Submit(1, TEXT[:length], greedy(60), credit=40))
    return driver


def computed(driver: Driver, *commands: api.StreamCommand) -> int:
    """How many tokens are computed until there is nothing to do."""
    since = len(driver.outputs)
    driver.settle(*commands)
    return sum(out.stats.prefill_tokens + out.stats.decode_rows for out in driver.outputs[since:])


@pytest.mark.parametrize("architecture", SLIDING)
def test_they_hold_their_window_and_a_block(architecture: str) -> None:
    driver = spoken(architecture)
    sequence = driver.engine.scheduler.sequences[1]
    held = [len(table) - first_held(table) for table in sequence.tables]
    most = -(-WINDOW // ROOMY.block_size) + 1
    sees_all = [table for table in sequence.tables if not first_held(table)]
    assert len(sees_all) == (architecture != "mistral")
    assert sum(count <= most for count in held) == len(held) - len(sees_all)
    assert driver.stats.kv_used == sum(held)
    check(driver, architecture, 40)


@pytest.mark.parametrize(("architecture", "backend", "overlap"), CROWDS)
def test_a_crowd_in_little_memory(architecture: str, backend: str, overlap: bool) -> None:
    crowd(architecture, replace(TIGHT, attention=backend, overlap=overlap))


@needs_triton
@pytest.mark.parametrize("architecture", ["gemma3_text", "gpt_oss"])
def test_a_crowd_whose_decode_steps_are_captured(architecture: str) -> None:
    crowd(architecture, replace(TIGHT, attention="gathered", captured=True, overlap=True))


def crowd(architecture: str, limits: Limits) -> None:
    """Beginnings are shared, memory is taken, released and loaded, and rewinds go behind what is held."""
    if architecture == "mistral":  # which keeps less
        limits = replace(limits, kv_tokens=120)
    driver = Driver(engine_of(architecture, limits))
    for stream, length in enumerate((90, 90, 61, 40, 7)):
        driver.send(api.Submit(stream, TEXT[:length], greedy(44), credit=30, priority=stream % 2))
        driver.step(2)
    driver.until(driver.has(0, 12))
    driver.send(api.Pause(0, release=True), api.Truncate(1, 0), api.Append(2, TEXT[50:59]))
    driver.settle()
    driver.settle(api.Truncate(3, 3), api.Truncate(4, 28), api.Resume(0))
    driver.settle(*(api.Grant(stream, 44) for stream in driver.told))
    check(driver, architecture, 44)
    copier = driver.engine._swapping._copier
    assert isinstance(copier, LateBlockCopier)
    assert copier.saved


@pytest.mark.parametrize("architecture", OF_EACH_KIND)
def test_a_rewind_inside_the_window_computes_one_token(architecture: str) -> None:
    driver = spoken(architecture)
    assert computed(driver, api.Truncate(1, 39), api.Grant(1, 40)) == 1
    check(driver, architecture, 40)


@pytest.mark.parametrize("architecture", OF_EACH_KIND)
def test_a_rewind_behind_the_window_takes_what_is_cached(architecture: str) -> None:
    driver = spoken(architecture)
    again = computed(driver, api.Truncate(1, 10))
    assert again <= ROOMY.block_size + 30  # since it has credit, up to where it was
    check(driver, architecture, 40)


@pytest.mark.parametrize("architecture", OF_EACH_KIND)
def test_a_rewind_behind_the_window_computes_again_what_is_lost(architecture: str) -> None:
    driver = spoken(architecture)
    cache = driver.engine.cache
    cache.blocks.take_idle(cache.blocks.now, 1, cache.cached)
    assert computed(driver, api.Truncate(1, 10)) == 90 + 40 - 1
    check(driver, architecture, 40)


@pytest.mark.parametrize("architecture", OF_EACH_KIND)
def test_a_prompt_finds_the_window_before_its_end(architecture: str) -> None:
    driver = spoken(architecture)
    driver.settle(api.Cancel(1))
    driver.settle(api.Submit(2, TEXT[:80], greedy(40), credit=40))
    assert driver.told[2].admitted == 76
    del driver.told[1]
    check(driver, architecture, 40)


class FailingDriver(Driver):
    """On a device that runs out of memory once in every step."""

    def __init__(self, limits: Limits, device: FailingDevice) -> None:
        super().__init__(engine_of("gemma3_text", limits))
        self._device = device

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._device.begin_step()
            with self._device:
                super().step()


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(replace(ROOMY, overlap=True), id="sdpa"),
        pytest.param(
            replace(ROOMY, attention="gathered", captured=True, overlap=True),
            marks=needs_triton,
            id="captured",
        ),
    ],
)
def test_any_call_may_fail(limits: Limits) -> None:
    """What a failed step reads is still there when it is tried again."""
    for at in range(7, 10_000, 331):
        device = FailingDevice(at)
        driver = FailingDriver(limits, device)
        driver.settle(api.Submit(1, TEXT[:40], greedy(16), credit=14))
        driver.settle(api.Truncate(1, 2), api.Submit(2, TEXT[:30], greedy(4), credit=4), api.Grant(1, 16))
        for told in driver.told.values():
            assert told.finish == api.Finish("length")
            oracle("gemma3_text").check(told)
        if not device.failures:
            break
