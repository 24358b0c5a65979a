"""Two models under one real server, of which one comes and goes: whoever asks for it is told that it is
loaded, and when nobody does, its memory is given back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.fakes.adapters import lora
from tests.fakes.tiny_models import tiny_folder
from tests.server.independent_client import Client, Stream, client_of
from tests.server.server_process import PATIENCE_S, POLL_S, Metrics, Served, serving, serving_models
from tests.server.streams_that_move import paused

GREEDY = {"ignore_eos": True, "temperature": 0, "max_tokens": 40}
FILE = """
[models.large]
source = "toy"
aliases = ["best"]

[models.small]
source = "toy"
keep_alive = "1s"
toy_step_ms = 20
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_models(tmp_path_factory.mktemp("models"), FILE) as served:
        yield served


async def begun(client: Client, name: str, model: str | None) -> Stream:
    asked: dict[str, Any] = {} if model is None else {"model": model}
    return await client.start(name, params=GREEDY, credit={"limit": 1000}, **asked)


def gone(now: Metrics) -> bool:
    return now.get(serving("small"), 0.0) == 0


async def alone(served: Served) -> None:
    """When the small model's process is no more."""
    await served.until(gone)
    async with asyncio.timeout(20):
        while len(served.engines) > 1:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_S)


async def states(served: Served) -> dict[str, str]:
    _, body = await served.ask("/v1/models")
    return {model["id"]: model["state"] for model in json.loads(body)["data"]}


async def test_each_start_has_its_model_and_a_cold_one_says_that_it_is_loaded(served: Served) -> None:
    await alone(served)
    assert await states(served) == {"large": "ready", "small": "cold"}
    async with client_of(served.url) as client:
        streams = [await begun(client, str(at), name) for at, name in enumerate([None, "best", "small"])]
        assert {(await stream.rest())["finish_reason"] for stream in streams} == {"length"}
        assert [stream.events[0]["model"] for stream in streams] == ["large", "large", "small"]
        assert list(map(paused, streams)) == [[], [], ["loading"]]
        assert await states(served) == {"large": "ready", "small": "ready"}
        await alone(served)  # it was let go, and its memory with it
        again = await begun(client, "again", "small")
        await again.rest()
        (told,) = (event for event in again.events if event["type"] == "paused")
        assert told["eta_ms"] > 0
        assert again.text == streams[2].text


@pytest.mark.parametrize("door", ["chat", "completions"])
async def test_who_will_not_wait_is_refused_by_openais_doors_and_may_ask_again(
    served: Served, door: str
) -> None:
    await alone(served)
    async with AsyncOpenAI(base_url=f"{served.http}/v1", api_key="none", max_retries=0) as client:

        async def asked() -> Any:
            one = {"model": "small", "max_tokens": 4, "extra_body": {"on_cold": "refuse", "ignore_eos": True}}
            if door == "completions":
                return await client.completions.create(prompt="Hello", **one)  # type: ignore[call-overload]
            one["messages"] = [{"role": "user", "content": "Hello"}]
            return await client.chat.completions.create(**one)  # type: ignore[call-overload]

        with pytest.raises(openai.InternalServerError) as refused:
            await asked()
        assert (refused.value.status_code, refused.value.code) == (503, "model_loading")
        assert int(refused.value.response.headers["retry-after"]) > 0
        async with asyncio.timeout(PATIENCE_S):
            while (await states(served))["small"] != "ready":  # noqa: ASYNC110 - of another process
                await asyncio.sleep(POLL_S)
        answer = await asked()
        assert answer.usage.completion_tokens == 4


async def test_a_paused_streams_model_goes_and_comes_back(served: Served) -> None:
    async with client_of(served.url) as client:
        truth = await begun(client, "truth", "small")
        stream = await begun(client, "paused", "small")
        await stream.until("token")
        await stream.send("pause")
        await stream.until("paused")
        assert (await truth.rest())["finish_reason"] == "length", "nobody cuts what runs"
        await alone(served)
        await stream.send("resume")
        assert (await stream.rest())["finish_reason"] == "length"
        assert stream.text == truth.text
        assert paused(stream)[-2:] == ["client", "loading"]


async def test_one_models_death_is_nothing_to_the_other(served: Served) -> None:
    await alone(served)
    (large,) = served.engines
    async with client_of(served.url) as client:
        stream = await begun(client, "small", "small")
        await stream.until("token")
        os.kill(large, signal.SIGKILL)
        assert (await stream.rest())["finish_reason"] == "length"
        assert paused(stream) == ["loading"]
        await served.until(lambda now: now.get(serving("large")) == 1)
        again = await begun(client, "large", "large")
        assert (await again.rest())["finish_reason"] == "length"


async def test_an_adapter_is_a_model_of_its_own(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path, "llama")
    lora(base, tmp_path / "own")
    file = tmp_path / "models.toml"
    file.write_text(f"""
        [models.tiny]
        source = "{base}"
        kv_tokens = 1024
        keep_alive = "1h"
        adapters.own = "{tmp_path / "own"}"
    """)
    served = Served("--models", str(file), "--engine-spare", "off", "--exact", "off")
    try:
        _, told = await served.ask("/v1/models/tiny:own")
        assert json.loads(told)["parent"] == "tiny"
        async with client_of(served.url) as client:
            streams = [await begun(client, name, name) for name in ("tiny", "tiny:own")]
            assert {(await stream.rest())["finish_reason"] for stream in streams} == {"length"}
            plain, changed = streams
            assert plain.text != changed.text
            resumed = [next(event for event in one.events if event["type"] == "resumed") for one in streams]
            assert len({event["fingerprint"] for event in resumed}) == 2, "which nobody knew when they began"
    finally:
        served.end()


def test_a_file_that_is_wrong_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    for text, why in (
        ('[models.a]\nsource = "toy"\nreplicas = "many"\n', "models.a.replicas: it is 'many'"),
        ('[models.a]\nsource = "/nowhere/at/all"\nkeep_alive = 0\n', '"a": no model /nowhere/at/all'),
    ):
        file.write_text(text)
        with pytest.raises(AssertionError, match=why):
            Served("--models", str(file))
