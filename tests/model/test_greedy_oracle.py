"""Greedy decoding against the oracle, transformers' own `generate`: the tokens are the same, whatever
happened while they were written.

Schedules are random but the same in every run; `MIDSTREAM_EXAMPLES=500` looks further, at others each time.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import api
from engine.schedule.windows import Windows
from tests.fakes.engine_driver import PLENTY, TOY, Driver, Limits, Told, engine_of, greedy
from tests.fakes.faulty_runner import FaultyRunner
from tests.fakes.greedy_oracle import oracle
from tests.fakes.late_block_copier import LateBlockCopier
from tests.fakes.tiny_models import ARCHITECTURES, WINDOW

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
LENGTH = api.Finish("length")
STEPS = 36  # how long a schedule steers; then everybody may run to the end
LIMITS = [
    Limits(kv_tokens=112, step_tokens=5, batch_rows=4),
    Limits(kv_tokens=112, step_tokens=24),
    Limits(kv_tokens=128, step_tokens=9, batch_rows=3),
    Limits(kv_tokens=160, block_size=8, step_tokens=11),
    Limits(kv_tokens=1024, step_tokens=64),
    Limits(kv_tokens=1024, block_size=32, step_tokens=64, idle_steps=2),
]
# For models whose layers all see a window: they keep little, and memory is to be short.
WINDOWED = ["mistral", "phi3"]
WINDOWED_LIMITS = [
    Limits(kv_tokens=32, step_tokens=5, batch_rows=4),
    Limits(kv_tokens=64, step_tokens=24),
    Limits(kv_tokens=40, step_tokens=9, batch_rows=3),
    Limits(kv_tokens=48, block_size=8, step_tokens=11),
    *LIMITS[-2:],
]
GROUPS = {"qwen2": 2, "qwen3": 3, "gemma2": 2, "gemma3_text": 2, "gpt_oss": 2}  # of layers; one sees all
# Beginnings that prompts share, so that prefixes are found; blocks end within them and at them.
TEXTS = [[(number * 37 + at * at * 11) % 400 for at in range(60)] for number in range(2)]


def limits_of(architecture: str) -> list[Limits]:
    """So that memory is short, and one sequence has room."""
    if architecture in WINDOWED:
        return WINDOWED_LIMITS
    if architecture not in GROUPS:
        return LIMITS
    windows = (None, *[WINDOW] * (GROUPS[architecture] - 1))
    return [replace(limits, kv_tokens=enough(limits, windows)) for limits in LIMITS]


def enough(limits: Limits, windows: tuple[int | None, ...]) -> int:
    return (
        Windows(windows, limits.block_size, limits.step_tokens).blocks(limits.kv_tokens * 2 // 3)
        * limits.block_size
    )


@dataclass(frozen=True)
class Start:
    at: int
    text: int
    length: int
    tokens: int
    credit: int
    tenant: int
    priority: int

    def submit(self, stream: int) -> api.Submit:
        prompt = TEXTS[self.text][: self.length]
        return api.Submit(stream, prompt, greedy(self.tokens), self.credit, self.priority, self.tenant)


@dataclass(frozen=True)
class Action:
    at: int
    stream: int
    kind: str
    amount: int


MOVES = [
    "grant",
    "grant",
    "hold",
    "release",
    "resume",
    "bounce",
    "bounce",
    "adjust",
    "rewind",
    "rewind",
    "inject",
]


@st.composite
def schedules(draw: st.DrawFn, sizes: list[Limits]) -> tuple[Limits, list[Start], list[Action]]:
    def start() -> Start:
        return Start(
            at=draw(st.integers(0, 10)),
            text=draw(st.sampled_from([0, 0, 0, 1])),
            length=draw(st.sampled_from([1, 2, 7, 8, 9, 23, 39, 40, 40, 60])),
            tokens=draw(st.integers(20, 36)),
            credit=draw(st.sampled_from([0, 3, 9, 1000])),
            tenant=draw(st.sampled_from([0, 0, 0, 1])),
            priority=draw(st.sampled_from([0, 0, 0, 1])),
        )

    starts = [start() for _ in range(draw(st.integers(4, 6)))]
    action = st.builds(
        Action,
        at=st.integers(2, STEPS - 1),
        stream=st.integers(0, len(starts) - 1),
        kind=st.sampled_from(MOVES * 3 + ["cancel"]),
        amount=st.integers(1, 20),
    )
    host = draw(st.sampled_from([0, 4, 32]))
    limits = replace(draw(st.sampled_from(sizes)), overlap=draw(st.booleans()), host_blocks=host)
    return limits, starts, draw(st.lists(action, min_size=30, max_size=60))


def commands(driver: Driver, action: Action) -> list[api.StreamCommand]:
    """What an action sends, in view of what its stream has been told so far."""
    stream, told = action.stream, driver.told[action.stream]
    match action.kind:
        case "grant":
            return [api.Grant(stream, max(told.credit, len(told.tokens) + action.amount))]
        case "hold" | "release":
            return [api.Pause(stream, release=action.kind == "release")]
        case "resume":
            return [api.Resume(stream)]
        case "bounce":
            return [api.Pause(stream, release=True), api.Resume(stream)]
        case "adjust":
            return [api.Adjust(stream, told.submit.sampling)]
        case "rewind":
            return [api.Truncate(stream, max(0, len(told.tokens) - action.amount))]
        case "inject":
            return [api.Append(stream, TEXTS[action.amount % 2][: 1 + action.amount % 9])]
        case _:
            return [api.Cancel(stream)]


def play(architecture: str, limits: Limits, starts: list[Start], actions: list[Action]) -> Driver:
    driver = Driver(engine_of(architecture, limits))
    for step in range(STEPS):
        driver.send(*(start.submit(stream) for stream, start in enumerate(starts) if start.at == step))
        due = [action for action in actions if action.at == step and action.stream in driver.told]
        for action in due:
            if driver.told[action.stream].finish is None:
                driver.send(*commands(driver, action))
        driver.step()
    left = [stream for stream, told in driver.told.items() if told.finish is None]
    driver.settle(*(api.Resume(stream) for stream in left), *(api.Grant(stream, 1000) for stream in left))
    return driver


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, TOY])
def test_tokens_are_those_of_generate_whatever_happens_meanwhile(architecture: str) -> None:
    happened = Counter[str]()

    @settings(
        max_examples=int(EXAMPLES or (14 if architecture in GROUPS else 8)),
        derandomize=EXAMPLES is None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(schedules(limits_of(architecture)))
    def hold_against_generate(schedule: tuple[Limits, list[Start], list[Action]]) -> None:
        driver = play(architecture, *schedule)
        for told in driver.told.values():
            oracle(architecture).check(told)
            assert told.finish == api.Finish("cancelled") or (
                told.finish == LENGTH and is_whole(driver, told)
            )
        assert driver.stats.kv_used == 0
        assert driver.stats.kv_free + driver.stats.kv_cached == driver.engine.cache.total
        happened.update(events(driver))

    hold_against_generate()
    assert all(happened[event] for event in EVENTS), happened  # else the schedules prove less than they say


def is_whole(driver: Driver, told: Told) -> bool:
    return len(told.tokens) == told.submit.sampling.max_tokens or told.known == driver.engine.runner.context


EVENTS = [
    "evictions",
    "preemptions",
    "found",
    "recomputed",
    "rewound",
    "injected",
    "cancelled",
    "chunked",
    "discarded",
    "loaded",
]


def events(driver: Driver) -> dict[str, int]:
    stats, every, copier = driver.stats, driver.told.values(), driver.engine._swapping._copier
    changes = [change for told in every for change in told.changes]
    return {
        "evictions": stats.evictions_total,
        "preemptions": stats.preemptions_total,
        "loaded": copier.loaded if isinstance(copier, LateBlockCopier) else 0,
        "discarded": sum(output.stats.discarded for output in driver.outputs),
        "found": sum(told.admitted or 0 for told in every),
        "recomputed": sum(change.recomputed for change in changes if isinstance(change, api.Resumed)),
        "rewound": sum(isinstance(change, api.Truncated) for change in changes),
        "injected": sum(isinstance(change, api.Appended) for change in changes),
        "cancelled": len(driver.ended("cancelled")),
        "chunked": sum(len(told.submit.tokens) > driver.engine.scheduler.step_tokens for told in every),
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_the_oracle_writes_is_what_it_prefers_to_read_and_nothing_else(architecture: str) -> None:
    prompt, injections = TEXTS[0][:23], [(7, TEXTS[1][:5]), (7, TEXTS[1][:2])]
    tokens = oracle(architecture).output(prompt, injections, 20)
    assert oracle(architecture).is_preferred(prompt, tokens, injections)
    for at in (0, 6, 7, 19):
        other = [*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]]
        assert not oracle(architecture).is_preferred(prompt, other, injections)


# -- what random schedules rarely bring about ------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [2, WINDOW - 1, WINDOW, WINDOW + 1, 64])
def test_a_prompt_may_be_cut_anywhere_in_a_sliding_window(architecture: str, chunk: int) -> None:
    driver = Driver(engine_of(architecture, Limits(kv_tokens=512, step_tokens=chunk, batch_rows=2)))
    driver.settle(api.Submit(1, TEXTS[0], greedy(12), credit=1000))
    assert len(driver.told[1].tokens) == 12
    oracle(architecture).check(driver.told[1])


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, TOY])
def test_a_rewind_into_a_shared_block_copies_it(architecture: str) -> None:
    """Twins: one gives its memory up and takes the other's blocks, output too; both rewind into them, not so
    far that a window is gone."""
    driver = Driver(engine_of(architecture, PLENTY, FaultyRunner))
    driver.send(*(api.Submit(stream, TEXTS[0][:13], greedy(40), credit=29) for stream in (1, 2)))
    driver.until(driver.has(2, 29))
    driver.settle(api.Pause(2, release=True), api.Resume(2))
    assert any(refs == 2 for refs in driver.engine.cache.blocks.refs)
    put = TEXTS[1][:5]
    driver.settle(
        api.Truncate(2, 27), api.Append(2, put), api.Truncate(1, 27), api.Grant(1, 40), api.Grant(2, 40)
    )
    assert isinstance(driver.engine.runner, FaultyRunner)
    assert driver.engine.runner.copies
    assert [len(told.tokens) for told in driver.told.values()] == [40, 40]
    assert driver.told[1].tokens != driver.told[2].tokens
    for told in driver.told.values():
        oracle(architecture).check(told)


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss", TOY])
def test_a_stream_rebuilt_from_what_it_said_goes_on_as_it_would_have(architecture: str) -> None:
    prompt, put = TEXTS[0][:21], TEXTS[1][:6]
    first = Driver(engine_of(architecture))
    first.settle(api.Submit(1, prompt, greedy(30), credit=11))
    first.settle(api.Append(1, put), api.Grant(1, 30))
    said = first.told[1].tokens
    rebuilt = api.Submit(
        1,
        [*prompt, *said[:11], *put, *said[11:17]],
        greedy(30),
        credit=30,
        prompt=len(prompt),
        injections=[(11, len(put))],
        paused=True,
    )
    engine = engine_of(architecture)
    engine.send([rebuilt])
    assert [news for _ in range(3) for news in engine.step().news] == []
    engine.send([api.Resume(1)])
    news = [news for _ in range(30) for news in engine.step().news]
    assert [item.index for item in news if item.tokens] == list(range(17, 30))
    assert [token for item in news for token in item.tokens] == said[17:]
