"""A real server whose model has a draft model: what clients are told is what they are told without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.tiny_models import tiny_folder
from tests.server.independent_client import client_of
from tests.server.server_process import Metrics, serving_models

FILE = """
[models.plain]
source = "{folder}"
device = "cpu"
drafts = "off"
kv_tokens = 4096

[models.quick]
source = "{folder}"
device = "cpu"
draft_model = "{folder}"
kv_tokens = 4096
"""
STARTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 3, "frequency_penalty": 0.4},
    {"seed": 4, "temperature": 0.8, "top_p": 0.9},
]


def by_model(name: str, metrics: Metrics) -> float:
    return metrics[f'midstream_{name}_total{{kind="model"}}']


async def test_clients_are_told_what_they_are_told_without(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    with serving_models(tmp_path, FILE.format(folder=folder)) as served:
        async with client_of(served.url) as client:
            said: dict[str, list[str]] = {"plain": [], "quick": []}
            for model, texts in said.items():
                params = [{"max_tokens": 60, "ignore_eos": True, **each} for each in STARTS]
                for at, each in enumerate(params):
                    stream = await client.start(
                        f"{model} {at}", params=each, credit={"limit": 1000}, model=model
                    )
                    assert (await stream.rest())["finish_reason"] == "length"
                    texts.append(stream.text)
            assert said["quick"] == said["plain"]
            assert all(said["plain"])
        metrics = await served.metrics()
        assert 0 < by_model("accepted_drafts", metrics) <= by_model("drafted_tokens", metrics)
