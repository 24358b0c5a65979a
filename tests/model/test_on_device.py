"""An engine as it is served, on a device, where `make test-gpu` has one: built by the one place that builds
engines, with its own kernels, captured steps, overlap and offloading, steered, and held against the model."""

from __future__ import annotations

import pytest
import torch

from bench.exact import SLOTS, Engines, alone, differing, scripts, ways
from engine import api, toy_model
from engine.build.build import build_around
from engine.engine import Engine
from engine.forward.model_runner import ModelRunner
from engine.memory.host_pool import HostPool
from engine.schedule.host_cache import BlockCopy
from tests.fakes.devices import DEVICE, needs_device
from tests.fakes.engine_driver import Driver, Told, greedy
from tests.fakes.small_tokenizers import toy_vocabulary
from tests.fakes.tiny_models import ARCHITECTURES, tiny_model

pytestmark = needs_device
TEXT = [(at * 37 + 11) % 400 for at in range(300)]
WITH_EXPERTS = ["qwen3_moe", "gpt_oss"]
# By how much of the spread of its logits a token may be worse than the model's own best in float64.
WORSE = {torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}


def built(
    architecture: str, dtype: torch.dtype = torch.float32, kv_tokens: int = 8192, **asked: object
) -> tuple[Engine, api.Hello]:
    options = api.EngineOptions(
        model="tiny",
        device=str(DEVICE),
        kv_tokens=kv_tokens,
        max_streams=SLOTS,
        batch_rows=8,
        **({"host_kv_gib": 0.0} | asked),  # type: ignore[arg-type]
    )
    model = tiny_model(architecture, dtype=dtype).to(DEVICE)  # type: ignore[arg-type]
    return build_around(model, toy_model.FOLDER, options)


def runner_of(engine: Engine) -> ModelRunner:
    assert isinstance(engine.runner, ModelRunner)
    return engine.runner


def check(architecture: str, dtype: torch.dtype, told: Told) -> None:
    """Every token that stands is the model's best or about as good, for the same weights in float64."""
    context, at, places = list(told.submit.tokens), 0, list[int]()
    for index, put in [*told.injections, (len(told.tokens), [])]:
        places += range(len(context), len(context) + index - at)
        context += [*told.tokens[at:index], *put]
        at = index
    model = tiny_model(architecture, dtype=dtype, attn_implementation="eager").double()
    model.set_experts_implementation("eager")  # grouped products know no float64
    with torch.inference_mode():
        logits = model(torch.tensor([context])).logits[0]
    rows = logits[[place - 1 for place in places]]
    said = rows[torch.arange(len(places)), torch.tensor(told.tokens)]
    assert ((rows.amax(1) - said) / rows.std(1)).max() <= WORSE[dtype]


def steered(driver: Driver) -> None:
    driver.send(
        *(api.Submit(at, TEXT[: 3 + 31 * at], greedy(24), credit=4 + 20 * (at % 2)) for at in range(6))
    )
    driver.until(driver.has(1, 3))
    driver.send(api.Pause(1), api.Adjust(3, greedy(24)))
    driver.settle()
    driver.send(api.Truncate(3, 2), api.Resume(1), api.Append(2, TEXT[40:45]), api.Append(4, TEXT[:100]))
    driver.settle(*(api.Grant(at, 100) for at in range(6)))


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    # In half precision routers choose other experts by rounding alone.
    [
        (name, each)
        for name in ARCHITECTURES
        for each in WORSE
        if name not in WITH_EXPERTS or each.itemsize > 2
    ],
    ids=str,
)
def test_steered_streams_say_what_the_model_says(architecture: str, dtype: torch.dtype) -> None:
    engine, hello = built(architecture, dtype)
    assert hello.attention == "triton"
    driver = Driver(engine)
    steered(driver)
    for told in driver.told.values():
        assert told.finish == api.Finish("length")
        check(architecture, dtype, told)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_its_decoding_step_is_captured(architecture: str, dtype: torch.dtype) -> None:
    grouped = dtype is torch.bfloat16 and torch.cuda.get_device_capability()[0] in (9, 10)
    runner = runner_of(built(architecture, dtype)[0])
    captured = architecture not in WITH_EXPERTS or grouped
    assert (runner._decode_graphs is not None) == captured


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_exact_engine_is(architecture: str, dtype: torch.dtype) -> None:
    engine, hello = built(architecture, dtype, exact="on")
    assert hello.exact
    windows, vocabulary = engine.cache.windows.sizes, toy_vocabulary()
    engines = Engines(
        engine.runner, hello.vocab, engine.cache.total, hello.block, windows, vocabulary, hello.device
    )
    wanted = scripts(5, 9, engines.vocab, longest=150)
    expected = alone(engines, wanted)
    for name in ("staggered", "in a third of the memory", "in three engines", "with pauses and releases"):
        assert differing(expected, ways(wanted)[name](engines, wanted)) == (0, 0), name


ASKED = {
    "greedy": greedy(500),
    "drawn": api.Sampling(seed=1, max_tokens=500),
    "filtered": api.Sampling(seed=1, top_k=5, top_p=0.8, min_p=0.01, max_tokens=500),
    "edited": api.Sampling(
        repetition_penalty=1.3, frequency_penalty=0.1, logit_bias={3: 2.0}, min_tokens=400, max_tokens=500
    ),
    "told": api.Sampling(temperature=0, logprobs=3, max_tokens=500),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_no_step_of_decoding_makes_the_host_wait(asked: api.Sampling) -> None:
    driver = Driver(built("llama")[0])
    driver.send(*(api.Submit(at, TEXT[: 5 + at], asked, credit=1000) for at in range(3)))
    driver.until(driver.has(2, 3))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            driver.engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_pauses_goes_to_the_host_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.memory.offload_trial._is_faster", lambda *_: True)  # tiny ones never are
    load, loaded = HostPool.load, list[BlockCopy]()

    def counted(pool: HostPool, copies: list[BlockCopy]) -> object:
        loaded.extend(copies)
        return load(pool, copies)

    monkeypatch.setattr(HostPool, "load", counted)
    driver = Driver(built("llama", kv_tokens=1024, host_kv_gib=0.0625)[0])
    for at in range(12):  # together three times of what there is room for
        driver.settle(api.Submit(at, [*TEXT[at:], *TEXT[:at]][:250], greedy(30), credit=5))
    driver.settle(*(api.Grant(at, 30) for at in range(12)))
    assert driver.stats.kv_host
    assert loaded
    for told in driver.told.values():
        assert told.finish == api.Finish("length")
        check("llama", torch.float32, told)


def test_the_cache_takes_what_is_left_of_its_share() -> None:
    share = 0.2
    engine, hello = built("llama", kv_tokens=0, gpu_memory_fraction=share)
    free, total = torch.cuda.mem_get_info()
    assert total - free <= 1.02 * share * total
    assert hello.kv_tokens > 10**6
    engine.send([api.Submit(at, TEXT, greedy(40), credit=40) for at in range(8)])
    while engine.scheduler.sequences:
        engine.step()
    assert total - torch.cuda.mem_get_info()[0] <= 1.02 * share * total
