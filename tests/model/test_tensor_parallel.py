"""Tensor parallelism: a model that two processes share gives the tokens of one process, and of `generate`.

On the CPU, where the processes stand in for devices: what is divided, what all agree on and who dies with
whom is the same code, but for the library that carries their numbers.
"""

from __future__ import annotations

import math
import os
import random
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.forward.toy_runner import ToyRunner
from engine.model import tensor_parallel
from engine.model.preflight import ModelError
from engine.parallel.ranks import RankLauncher
from engine.pipe import Pipe
from engine.sampling.sampler import Sampler
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler
from tests.fakes import grammars
from tests.fakes.engine_driver import Driver, greedy
from tests.fakes.faulty_runner import FaultyRunner
from tests.fakes.greedy_oracle import oracle
from tests.fakes.tiny_models import tiny_folder

TEXT = [(at * 37 + 11) % 400 for at in range(60)]
WILD = api.Sampling(temperature=1.0, top_p=0.9, seed=5, repetition_penalty=1.2, max_tokens=30, logprobs=2)
WAIT_S = 60.0
needs_torch_for_the_cpu = pytest.mark.skipif(
    torch.accelerator.current_accelerator() is not None,
    reason="this torch would share a model on its devices",
)


def options_for(folder: Path, devices: int, **changes: int) -> api.EngineOptions:
    options = api.EngineOptions(
        model=str(folder),
        devices=devices,
        device="cpu",
        dtype="float64",
        kv_tokens=72 if folder.name == "tiny-qwen3" else 112,  # most of its layers slide, and keep less
        block_size=4,
        step_tokens=24,
        batch_rows=4,
        max_streams=16,
        log_level="error",
    )
    return replace(options, **changes)


@contextmanager
def shared_by_two(folder: Path, **changes: int) -> Iterator[Engine]:
    """An engine in this process that is one half, and another process with the other."""
    options, lost = options_for(folder, 2, **changes), list[str]()
    launcher = RankLauncher(options, lambda: lost.append("a follower"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCAL_RANK", "0")  # what a rank sets is to be unset afterwards
        environment.setenv("GLOO_SOCKET_IFNAME", "lo")
        try:
            yield build(options, launcher.start)[0]
            assert lost == []
        finally:
            launcher.close()
            if dist.is_initialized():
                dist.destroy_process_group()


def steered(engine: Engine) -> Driver:
    """Five streams in a memory for three, and everything that may be done to them, often."""
    driver, dice = Driver(engine), random.Random(3)
    for step in range(60):
        if step % 3 == 0 and step < 15:
            sampling = WILD if step == 6 else greedy(30)
            prompt = TEXT[: 40 - step]
            driver.send(
                api.Submit(step // 3, prompt, sampling, credit=dice.choice([5, 99]), priority=step % 2)
            )
        stream = dice.choice(sorted(driver.told))
        told = driver.told[stream]
        if told.finish is None:
            written = len(told.tokens)
            does: list[list[api.StreamCommand]] = [
                [api.Pause(stream)],
                [api.Pause(stream, release=True), api.Resume(stream)],
                [api.Resume(stream), api.Grant(stream, written + 9)],
                [api.Truncate(stream, max(0, written - dice.randrange(6)))],
                [api.Append(stream, TEXT[: dice.randrange(1, 6)])],
                [api.Adjust(stream, told.submit.sampling)],
            ]
            driver.send(*dice.choice(does))
        driver.step()
    left = [stream for stream, told in driver.told.items() if told.finish is None]
    driver.settle(*(api.Resume(stream) for stream in left), *(api.Grant(stream, 99) for stream in left))
    return driver


@needs_torch_for_the_cpu
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_two_processes_say_what_one_says_and_what_generate_says(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, a step takes all commands that there are: else some come a token later.
    monkeypatch.setattr("engine.engine.CROWD_S", math.inf)
    folder = tiny_folder(tmp_path, architecture, dtype=torch.float64)
    with shared_by_two(folder) as engine:
        pool = engine.runner.pool  # type: ignore[attr-defined]
        assert pool.keys[0].shape[0] == 1, "each holds one of the two heads"
        two = steered(engine)
        assert two.stats.kv_used == 0
    one = steered(build(options_for(folder, 1))[0])
    for stream, told in two.told.items():
        alone = one.told[stream]
        assert (told.tokens, told.changes, told.admitted) == (alone.tokens, alone.changes, alone.admitted)
        if told.submit.sampling is not WILD:
            oracle(architecture).check(told)
        else:
            assert [lp.logprob for lp in told.logprobs] == pytest.approx(
                [lp.logprob for lp in alone.logprobs]
            )
    kinds = {type(change) for told in two.told.values() for change in told.changes}
    assert kinds >= {api.Paused, api.Resumed, api.Truncated, api.Appended, api.Adjusted}
    assert two.stats.preemptions_total
    assert sum(told.admitted or 0 for told in two.told.values()), "prefixes were shared"


def constrained(engine: Engine) -> Driver:
    """Streams that follow grammars, steered where they have no credit: at the same indices in any process."""
    driver, steps = Driver(engine), [3, 4, 9, 30]
    asked = [grammars.told(one, force=at % 2 == 0) for at, one in enumerate(grammars.MANY[:6])]
    for stream, grammar in enumerate(asked, 1):
        sampling = replace(WILD, grammar=grammar, seed=stream, temperature=2.0, logprobs=None)
        driver.settle(api.Submit(stream, TEXT[: 9 + stream], sampling, credit=0, tenant=stream % 2))
    driver.send(api.Submit(9, TEXT[:7], greedy(60), credit=60, tenant=3))
    for at, more in enumerate(steps):
        lives = [stream for stream, one in driver.told.items() if one.finish is None and stream != 9]
        driver.settle(*(api.Grant(stream, len(driver.told[stream].tokens) + more) for stream in lives))
        lives = [stream for stream in lives if driver.told[stream].finish is None]
        for stream in lives:
            grammar = asked[(stream + at) % len(asked)]
            does: list[list[api.StreamCommand]] = [
                [api.Append(stream, [44, 32])],
                [api.Truncate(stream, len(driver.told[stream].tokens) // 2)],
                [api.Adjust(stream, replace(driver.told[stream].submit.sampling, grammar=grammar))],
                [api.Append(stream, [44], grammar_anew=True)],
            ]
            driver.settle(*does[(stream + at) % len(does)])
    driver.settle(*(api.Grant(stream, 99) for stream in driver.told))
    return driver


@needs_torch_for_the_cpu
def test_two_processes_follow_grammars_as_one_does(tmp_path: Path) -> None:
    """Though one of the two alone has matchers."""
    folder = tiny_folder(tmp_path, "llama", dtype=torch.float64)
    plenty = {"kv_tokens": 1024, "batch_rows": 8}
    with shared_by_two(folder, **plenty) as engine:
        two = constrained(engine)
        assert two.stats.kv_used == 0
    one = constrained(build(options_for(folder, 1, **plenty))[0])
    for stream, told_by_two in two.told.items():
        alone = one.told[stream]
        assert (told_by_two.tokens, told_by_two.finish) == (alone.tokens, alone.finish)
        assert told_by_two.changes == alone.changes
    kinds = {type(change) for told in two.told.values() for change in told.changes}
    assert kinds >= {api.Truncated, api.Appended, api.Adjusted, api.Refused}


# -- who dies with whom ----------------------------------------------------------------------------


def gone(pid: int) -> bool:
    handle = os.pidfd_open(pid)
    try:
        return bool(select.select([handle], [], [], WAIT_S)[0])
    finally:
        os.close(handle)


@needs_torch_for_the_cpu
@pytest.mark.parametrize("killed", ["the engine", "its follower"])
def test_no_process_outlives_the_others(killed: str, tmp_path: Path) -> None:
    options = options_for(tiny_folder(tmp_path, "llama", dtype=torch.float64), 2)
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "engine", str(theirs.fileno()), options.model]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    pipe, decoder = Pipe(ours), msgspec.msgpack.Decoder(api.AnyMessage)
    pipe.send(options)

    def heard() -> api.AnyMessage:
        message = pipe.receive()
        assert message is not None
        said: api.AnyMessage = decoder.decode(message)
        return said

    try:
        while isinstance(said := heard(), api.Starting | api.Prepared):
            pass
        assert isinstance(said, api.Hello)
        pipe.send([api.Submit(1, TEXT[:9], greedy(6), credit=6)])
        tokens = list[int]()
        while len(tokens) < 6:
            output = heard()
            assert isinstance(output, api.StepOutput)
            tokens += [token for news in output.news for token in news.tokens]
        assert tokens == oracle("llama").after(TEXT[:9], 6)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (follower,) = map(int, children)
        if killed == "the engine":
            process.kill()
            assert gone(follower)
        else:
            os.kill(follower, 9)
            assert process.wait(WAIT_S) == 1
    finally:
        process.kill()
        process.wait()
        pipe.close()


def test_what_fails_in_one_of_several_processes_ends_it() -> None:
    """It could compute its rows again, in parts; the others would not."""
    sampler, cache = Sampler(4, 400, eos=[]), BlockCache(16, 4)
    runner = ToyRunner(tokens=64, block_size=4, context=64)
    scheduler = Scheduler(cache, step_tokens=8, batch_rows=4, tenant_prefill=64)
    engine = Engine(FaultyRunner(runner, raises=1), sampler, cache, scheduler, slots=4, retry=False)
    engine.send([api.Submit(1, TEXT[:3], greedy(), credit=4)])
    engine.step()  # takes it in
    with pytest.raises(RuntimeError, match="cannot be computed"):
        engine.step()


# -- who cannot share ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "device", "devices", "why"),
    [
        ("gpt_oss", "cpu", 2, "gpt_oss cannot be shared among 2 devices: transformers has no plan for it"),
        ("llama", "cpu", 3, "shared among 3 devices: its num_attention_heads is 4; --devices must divide it"),
        ("llama", "cpu", 4, "shared among 4 devices: its num_key_value_heads is 2; --devices must divide it"),
        ("llama", "cuda:1", 2, "--devices 2 takes the first 2 devices: --device must be cuda, not cuda:1"),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused_before_it_is_read(
    architecture: str, device: str, devices: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=why):
        tensor_parallel.check(tiny_folder(tmp_path, architecture), device, devices)


def test_more_devices_than_there_are_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ModelError, match="--devices is 2, and torch sees 1 CUDA devices"):
        tensor_parallel.check(tiny_folder(tmp_path, "llama"), "cuda", 2)


def test_neither_the_toy_nor_an_engine_in_a_thread_is_shared(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the toy has no weights to share"):
        build(api.EngineOptions(model="toy", devices=2))
    with pytest.raises(ModelError, match="--devices 2 needs an engine in a process of its own"):
        build(options_for(tiny_folder(tmp_path, "llama"), 2))
