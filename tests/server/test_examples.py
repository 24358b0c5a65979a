"""Every example of the documentation runs as it stands, does what it says, and leaves nothing decoding."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.cutting_proxy import Cut, CuttingProxy
from tests.server.server_process import PATIENCE_S, Served, environment

FOLDER = Path(__file__).parents[2] / "docs/examples"

# What each is to say, whatever the model says.
SAID = {
    "agent": (
        r"(?s).*?\[(weather|hotel) (\{.*?\})\]\n\[\1 said: .+?\]\n"
        r"\[\d+ tokens of results stand before token \d+\].*\n\d calls; again: equal\notherwise: .*\n"
    ),
    "editor": (
        r"(\[taken back to token \d+: '.+'\]\n)+"
        r"\[[1-3] corrections, [1-9]\d* tokens were discarded\]\n.+\n"
    ),
    "forks": r"12 tokens in common: .+\n(-\d+\.\d\d, 12 tokens inherited: ['\"].*['\"]\n){4}",
    "moderate": r"(\['\w{7,}' is taken back, to token \d+\]\n)+.+\n",
    "notebook": (
        r"models: toy\n.+ \| length \| 8 tokens\n"
        r".+\nleft after 20 tokens\n"
        r"(.+)\nrewound to 5\n(?!\1\n).+\ncancelled at \d+\n"
    ),
    "pull": r"(token [0-4]: '.*'\n){5}decoded and delivered: 5\ndecoded in vain: 0\n",
    "race": r"(?:runner \d came to its end after \d+ tokens\n)*runner \d, after \d+ tokens: (\S+ ){39}\S+\n",
    "replay": r"equal\nwith another seed token \d+ is not ('.*'|None)\n",
    "steer": (
        r".+\n\[cooler from token 20\]\n.+\n\[paused at token (\d+); nothing is decoded\]\n"
        r"\[resumed at token \1\]\n.+\n\[cancelled at token \d+\]\ncancelled: \d+ tokens were discarded\n"
    ),
    "tunnel": (
        r"('.*'\n|\".*\"\n|\[(reconnecting|open)\]\n)+\d+ tokens\n\[closed\]\n"
        r"taken up again: [1-9]\d* tokens, from the first on\n"
    ),
}


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    """A server slow enough that what is cancelled had more to say."""
    server = Served("--toy-step-ms", "10")
    yield server
    server.end()


def test_every_example_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
async def test_an_example_runs_as_it_stands(toy: Served, name: str) -> None:
    await asyncio.to_thread(run, name, toy.http)
    await toy.until_idle()


async def test_the_tunnels_example_runs_through_a_tunnel(toy: Served) -> None:
    cuts = [Cut(2000), Cut(2000, "up"), Cut(2000, kind="close")]
    async with CuttingProxy(toy.port, cuts) as proxy:
        said = await asyncio.to_thread(run, "tunnel", proxy.url)
    assert proxy.cuts_done
    assert said.startswith("'")
    assert "[reconnecting]\n" in said
    assert "[open]\n" in said
    await toy.until_idle()


def run(name: str, url: str) -> str:
    """What it says, which is what it is to say."""
    said = said_by(name, url)
    assert re.fullmatch(SAID[name], said), said
    return said


def said_by(name: str, url: str) -> str:
    """What it says before it ends, as it should."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / f"{name}.py"), url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment() | {"PYTHONUTF8": "1"},
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def test_the_examples_are_named_for_readers() -> None:
    assert all(f"examples/{name}.py" in (FOLDER.parent / "python.md").read_text() for name in SAID)
