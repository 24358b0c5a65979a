"""The command `midstream chat` at a terminal: every key does to the server what it says it does."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from midstream.cli.tool_functions import NotFound, load_agent, load_tool
from midstream.protocol import Attach, Attached, Pause, Paused, Replace, Rewound, Start
from tests.fakes.pseudo_terminal import CTRL_C, CTRL_D, DOWN, ENTER, ESCAPE, UP, Terminal
from tests.fakes.scripted_server import FakeServer, Peer, final
from tests.server.server_process import PATIENCE_S, Served, decoded, environment, streams

Open = Callable[..., Awaitable[Terminal]]
ENDLESS = ("--param", "ignore_eos=true", "--param", "max_tokens=4000")


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    """A server slow enough to be steered by hand."""
    server = Served("--toy-step-ms", "20")
    yield server
    server.end()


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Open a terminal with `midstream chat` in it, at its prompt."""
    terminals: list[Terminal] = []

    async def open_(url: str, *options: str, lines: int = 30) -> Terminal:
        terminals.append(Terminal("chat", "--url", url, *options, lines=lines))
        await terminals[-1].until("Ctrl-D quits", "▸")
        return terminals[-1]

    yield open_
    for terminal in terminals:
        await terminal.end()


@pytest.fixture
async def chat(toy: Served, opened: Open) -> AsyncIterator[Terminal]:
    """A conversation with the toy, whose first answer is being written and never ends by itself."""
    await toy.until_idle()
    terminal = await opened(toy.http, *ENDLESS)
    terminal.type("Hello" + ENTER)
    await terminal.until("● writing")
    yield terminal
    await terminal.end()
    await toy.until_idle()


def tokens(seen: str) -> float:
    """What the status line says; while it is being drawn, what is neither more nor less than any number."""
    said = re.findall(r"(\d+) tokens", seen)
    return int(said[-1]) if said else math.nan


async def paused(chat: Terminal) -> float:
    """Pause: how many tokens there are."""
    chat.type(" ")
    return tokens(await chat.until("‖ paused"))


# -- tools -----------------------------------------------------------------------------------------

TOOLS = """
def weather(city: str) -> str:
    return f"warm in {city}"

async def time(place: str) -> dict:
    raise RuntimeError("no clock")

number = 3
"""


async def test_tools_are_called_and_the_answer_goes_on(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    file = tmp_path / "tools.py"
    toy = Served(scripted=True)
    try:
        calls = "".join(
            f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
            for name, arguments in [("time", {"place": "Rome"}), ("weather", {"city": "Rome"})]
        )
        tools = ("--tool", f"{file}:weather", "--tool", f"{file}:time")
        terminal = await opened(toy.http, *tools, "--system", f"Say ⟦Well.{calls}⏭It is warm.⟧")
        terminal.type("Hello" + ENTER)
        seen = await terminal.until_so(lambda seen: seen.count("▸") == 2, "the next prompt")
        assert "\nIt is warm.\n" in seen
        seen = re.sub(r"\s+", " ", seen)
        assert 'Well. ⚙ time {"place": "Rome"} ⚙ weather {"city": "Rome"}' in seen
        assert "⚙ time → error: no clock" in seen
        assert "⚙ weather → warm in Rome" in seen
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0
    finally:
        toy.end()


AGENT = """
import asyncio, midstream

async def weather(city: str) -> str:
    await asyncio.sleep(3600)

agent = midstream.Agent(tools=[weather], system="Say ⟦Well.CALL⏭Never.⟧")
"""


async def test_an_agent_answers_and_its_tools_go_with_it(opened: Open, tmp_path: Path) -> None:
    """A tool is waited for; who leaves takes it along."""
    file = tmp_path / "meteo.py"
    called = json.dumps({"name": "weather", "arguments": {"city": "Rome"}})
    call = f"<tool_call>\\n{called}\\n</tool_call>".replace('"', '\\"')
    file.write_text(AGENT.replace("CALL", call))
    toy = Served(scripted=True)
    try:
        terminal = await opened(toy.http, "--agent", str(file))
        terminal.type("Hello" + ENTER)
        seen = await terminal.until("‖ paused (tool_call)")
        assert 'Well.\n⚙ weather {"city": "Rome"}' in seen
        terminal.type(CTRL_C)
        assert await terminal.ended() == 130
        await toy.until_idle()
    finally:
        toy.end()


ASKING = """
import midstream

def weather(city: str) -> str:
    return f"mild in {city}"

agent = midstream.Agent(tools=[weather], approvals=True, system="Say ⟦ROMEOSLO⏭ROME⏭Thanks.⟧")
"""


ROME = 'weather {"city": "Rome"}'


async def test_a_call_is_asked_about_and_may_be_edited(opened: Open, tmp_path: Path) -> None:
    file = tmp_path / "asking.py"
    text = ASKING
    for city in ("Rome", "Oslo"):
        called = json.dumps({"name": "weather", "arguments": {"city": city}})
        call = f"<tool_call>\\n{called}\\n</tool_call>".replace('"', '\\"')
        text = text.replace(city.upper(), call)
    file.write_text(text)
    toy = Served(scripted=True)
    try:
        terminal = await opened(toy.http, "--agent", str(file))
        terminal.type("Hello" + ENTER)
        await terminal.until(f"{ROME}: y runs it, n does not, e edits ▸")
        terminal.type("n" + ENTER)
        await terminal.until('weather {"city": "Oslo"}: y runs it, n does not, e edits ▸')
        terminal.type("y" + ENTER)
        await terminal.until("⚙ weather → error: the user said no", "⚙ weather → mild in Oslo", "‖ paused")
        await terminal.until(f"{ROME}: y runs it, n does not, e edits ▸")
        terminal.type("e" + ENTER)
        await terminal.until('weather ▸ {"city": "Rome"}')
        terminal.type(ESCAPE)
        await terminal.until(f"{ROME}: y runs it, n does not, e edits ▸")
        terminal.type("y" + ENTER)
        await terminal.until("Thanks.")
        await terminal.until_so(lambda seen: seen.count("▸") == 2, "the next prompt")
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0
    finally:
        toy.end()


def test_what_defines_no_agent_is_said(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    for place, words in (("tools.py", "has no attribute 'agent'"), ("tools.py:number", "no midstream.Agent")):
        with pytest.raises(NotFound, match=words):
            load_agent(str(tmp_path / place))


@pytest.mark.parametrize(
    ("name", "words"),
    [("missing", "has no attribute 'missing'"), ("number", "is no function"), ("", "has no attribute ''")],
)
def test_what_is_no_tool_is_said(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    with pytest.raises(NotFound, match=re.escape(words)):
        load_tool(f"{tmp_path / 'tools.py'}:{name}")


def test_a_tool_is_found_in_a_module_too() -> None:
    assert load_tool("textwrap:dedent") is textwrap.dedent
    for place in ("textwrap", "no.such.module:f", "nofile.py:f"):
        with pytest.raises(NotFound):
            load_tool(place)


# -- steering --------------------------------------------------------------------------------------


async def test_space_stops_decoding_and_goes_on(chat: Terminal, toy: Served) -> None:
    index = await paused(chat)
    now = await toy.until(lambda now: streams(now, "paused") == 1)
    assert decoded(await toy.metrics()) == decoded(now)
    chat.type(" ")
    assert tokens(await chat.until_so(lambda seen: "● writing" in seen and tokens(seen) > index)) > index
    assert streams(await toy.metrics(), "running") == 1


async def test_arrows_change_the_temperature_at_a_token_that_is_told(chat: Terminal) -> None:
    index = await paused(chat)
    chat.type(UP)
    await chat.until(f"temperature 1.1 since token {index}", "⟨1.1⟩")
    chat.type(DOWN + DOWN)
    seen = await chat.until(f"temperature 0.9 since token {index}", "⟨0.9⟩")
    assert "⟨1.1⟩" not in seen


async def test_an_interjection_is_put_where_it_was_read_and_answered(chat: Terminal, toy: Served) -> None:
    chat.type("i")
    index = tokens(await chat.until("interject ▸", " tokens"))
    await toy.until(lambda now: streams(now, "paused") == 1)
    chat.type("and an s, u, q and i" + ENTER)
    seen = await chat.until_so(lambda seen: "● writing" in seen and tokens(seen) > index)
    assert "▸ and an s, u, q and i" in seen
    assert "interject" not in seen.splitlines()[-2]


async def test_an_interjection_given_up_changes_nothing(chat: Terminal) -> None:
    index = await paused(chat)
    chat.type("i")
    await chat.until("interject ▸")
    chat.type("never" + ESCAPE)
    seen = await chat.until_so(lambda seen: "interject ▸" not in seen)
    assert "never" not in seen
    assert "‖ paused" in seen
    assert tokens(seen) == index


async def test_a_rewind_takes_words_back_and_goes_on_with_others(chat: Terminal, toy: Served) -> None:
    await chat.until_so(lambda seen: "● writing" in seen and tokens(seen) > 45)
    index = await paused(chat)
    before = written(chat)
    discarded = (await toy.metrics())["midstream_tokens_discarded_total"]
    chat.type("u")
    kept = tokens(await chat.until_so(lambda seen: tokens(seen) < index))
    assert kept == index - 10
    assert before.startswith(written(chat))
    chat.type(" ")
    await chat.until_so(lambda seen: tokens(seen) > index)
    assert not written(chat).startswith(before)
    chat.type("s")
    await chat.until("cancelled")
    finished = await toy.until_idle()
    assert finished["midstream_tokens_discarded_total"] >= discarded + 10


def written(chat: Terminal) -> str:
    """The answer as it stands on the screen: from the question to the status line."""
    rows = chat.screen.everything().partition("▸ Hello\n")[2].splitlines()
    return " ".join(row.strip() for row in rows if not re.search(r"\d tokens", row)).strip()


async def test_s_stops_the_answer_and_the_conversation_goes_on(chat: Terminal, toy: Served) -> None:
    chat.type("s")
    await chat.until("cancelled")
    await toy.until_idle()
    chat.type("Again" + ENTER)
    await chat.until("▸ Again", "● writing")


# -- leaving ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "status"), [("q", 0), (CTRL_D, 0), (CTRL_C, 130)])
async def test_leaving_while_an_answer_is_written(chat: Terminal, toy: Served, key: str, status: int) -> None:
    chat.type(key)
    assert await chat.ended() == status
    await toy.until_idle()


async def test_leaving_while_an_interjection_is_typed(chat: Terminal, toy: Served) -> None:
    chat.type("i")
    await chat.until("interject ▸")
    chat.type("q" + CTRL_C)
    assert await chat.ended() == 130
    await toy.until_idle()


@pytest.mark.parametrize("end", ["final", "lost"])
async def test_an_answer_that_ends_while_an_interjection_is_typed(opened: Open, end: str) -> None:
    async with FakeServer() as fake:
        terminal = await opened(fake.url)
        await fake.peer()
        peer, start = await begun(fake, terminal, "Hi")
        await peer.send_tokens(start, 0, "Half an ans")
        await terminal.until("Half an ans")
        terminal.type("i")
        pause = await peer.receive(Pause)
        await peer.send(Paused(request_id=start.request_id, ref=pause.ref, index=1, reason="client"))
        await terminal.until("interject ▸")
        if end == "final":
            await peer.send(final(start.request_id, 1, "cancelled"))
        else:
            await peer.socket.close(4403)
        await terminal.until_so(lambda seen: seen.rstrip().endswith("▸"), "the next prompt")


async def test_a_terminal_that_vanishes_leaves_nothing_decoding(chat: Terminal, toy: Served) -> None:
    chat.vanish()
    await asyncio.to_thread(chat.process.wait, PATIENCE_S)
    await toy.until_idle()


@pytest.mark.parametrize(("key", "status"), [(CTRL_D, 0), (CTRL_C, 130)])
async def test_leaving_at_the_prompt(toy: Served, opened: Open, key: str, status: int) -> None:
    terminal = await opened(toy.http)
    terminal.type(key)
    assert await terminal.ended() == status


# -- what a server may say -------------------------------------------------------------------------


async def begun(fake: FakeServer, terminal: Terminal, words: str) -> tuple[Peer, Start]:
    """Say these words: the connection on which they are to be answered, and the start."""
    terminal.type(words + ENTER)
    peer = await fake.peer()
    return peer, await peer.accept_start()


async def test_the_conversation_is_remembered_as_the_model_had_it(opened: Open) -> None:
    async with FakeServer() as fake:
        terminal = await opened(fake.url, "--system", "Be brief.", "--temperature", "0.5")
        await fake.peer()
        peer, start = await begun(fake, terminal, "Hi")
        assert start.params.temperature == 0.5
        await peer.send_tokens(start, 0, "Hel", "lo.")
        await peer.send(final(start.request_id, 2, "stop"))
        await terminal.until("Hello.", "· stop")
        _, start = await begun(fake, terminal, "Who?")
        assert [(message.role, message.content) for message in start.messages or ()] == [
            ("system", "Be brief."),
            ("user", "Hi"),
            ("assistant", "Hello."),
            ("user", "Who?"),
        ]


async def test_what_a_model_writes_is_seen_and_never_obeyed(opened: Open) -> None:
    async with FakeServer() as fake:
        terminal = await opened(fake.url)
        await fake.peer()
        peer, start = await begun(fake, terminal, "Hi")
        await peer.send_tokens(
            start, 0, "\x1b[2J\x1b]0;owned\x07", "\x1b", "[8m\u202etxt.exe\r", "\x9b2J end"
        )
        await peer.send(final(start.request_id, 4, "stop"))
        await terminal.until("␛[2J␛]0;owned␇␛[8m<202E>txt.exe␍<009B>2J end", "· stop")
        assert terminal.screen.title != "owned"


async def test_an_answer_longer_than_the_screen_can_be_scrolled_back_to_its_beginning(opened: Open) -> None:
    async with FakeServer() as fake:
        terminal = await opened(fake.url, lines=10)
        await fake.peer()
        peer, start = await begun(fake, terminal, "Hi")
        lines = [f"line {number}\n" for number in range(40)]
        for index, line in enumerate(lines):
            await peer.send_tokens(start, index, line)
            await terminal.until(line.strip())
        await peer.send(final(start.request_id, 40, "stop"))
        seen = await terminal.until("· stop")
        assert re.findall(r"line \d+", seen) == [line.strip() for line in lines]


async def test_what_was_scrolled_away_and_is_taken_back_is_said_to_be(opened: Open) -> None:
    async with FakeServer() as fake:
        terminal = await opened(fake.url, lines=10)
        await fake.peer()
        peer, start = await begun(fake, terminal, "Hi")
        lines = [f"line {number}\n" for number in range(20)]
        await peer.send_tokens(start, 0, *lines)
        await terminal.until("line 0", "line 19")
        await peer.send(Rewound(request_id=start.request_id, index=5, text_length=len("".join(lines[:5]))))
        await peer.send_tokens(start, 5, "another line")
        await peer.send(final(start.request_id, 6, "stop"))
        seen = await terminal.until("· stop")
        assert re.search(r"line 4\n(line \d+\n)+⟨taken back; it goes on from here⟩\nanother line\n", seen)


async def test_what_is_refused_is_one_line_and_the_conversation_goes_on(toy: Served, opened: Open) -> None:
    terminal = await opened(toy.http, "--model", "nope")
    terminal.type("Hi" + ENTER)
    refusal = 'There is no model "nope"; this server has "toy"; leave the model out'
    await terminal.until_so(lambda seen: refusal in seen and seen.rstrip().endswith("▸"), "the next prompt")
    terminal.type(CTRL_D)
    assert await terminal.ended() == 0


async def test_a_connection_lost_in_an_answer_comes_back_unnoticed(opened: Open) -> None:
    async with FakeServer() as fake:
        terminal = await opened(fake.url)
        await fake.peer()
        peer, start = await begun(fake, terminal, "Hi")
        await peer.send_tokens(start, 0, "Half an ans")
        await terminal.until("Half an ans")
        fake.status = 503
        await peer.socket.close(1012)
        await terminal.until("↻ connection lost, coming back")
        fake.status = 101
        peer = await fake.peer()
        await peer.receive(Replace)
        frame = await peer.receive(Attach)
        peer.seqs[start.request_id] = frame.after + 1
        await peer.send(Attached(request_id=start.request_id, ref=frame.ref))
        await peer.send_tokens(start, 1, "wer")
        await peer.send(final(start.request_id, 2, "stop"))
        await terminal.until("Half an answer")
        await terminal.until_so(lambda seen: seen.rstrip().endswith("▸"), "the next prompt")


async def test_a_connection_lost_for_good_is_one_line_and_the_conversation_goes_on(opened: Open) -> None:
    async with FakeServer() as fake:
        terminal = await opened(fake.url)
        await fake.peer()
        peer, start = await begun(fake, terminal, "Hi")
        await peer.send_tokens(start, 0, "Half an ans")
        await terminal.until("Half an ans")
        await peer.socket.close(4403)
        await terminal.until("was lost (close code 4403)", "Half an ans")
        _, start = await begun(fake, terminal, "And?")
        assert [message.content for message in start.messages or ()] == ["Hi", "Half an ans", "And?"]


# -- where it cannot work --------------------------------------------------------------------------


async def test_no_server_is_one_line_that_says_what_to_do() -> None:
    terminal = Terminal("chat", "--url", "http://127.0.0.1:1")
    try:
        assert await terminal.ended() == 1
        seen = terminal.screen.everything()
        assert seen.startswith(
            "midstream: no server answers at http://127.0.0.1:1: start one with `midstream serve`"
        )
    finally:
        await terminal.end()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "midstream: chat needs a terminal; for files and pipes there is `midstream run`"),
        (["--temperature", "3"], "--temperature: 3 is not a number from 0 to 2"),
        (["--max-tokens", "x"], "--max-tokens: 'x' is not a whole number"),
        (["--url", "ftp://localhost"], "--url: 'ftp://localhost' is no address of a server"),
        (["--param", "min_p=2"], "--param: min_p=2: Expected `float` <= 1.0"),
        (["--param", "temperatur=1"], "--param: there is no 'temperatur'; there are temperature"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(arguments: list[str], problem: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "midstream", "chat", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment() | {"COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 2
    assert problem in done.stderr.splitlines()[-1]
