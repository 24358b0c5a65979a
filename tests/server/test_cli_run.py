"""The command `midstream run`: a file of requests, at a terminal and in a pipe, results and exit status."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.cli.answer_view import REWOUND
from midstream.protocol import Cancel, Guarded, Paused, Rewound
from tests.fakes.pseudo_terminal import CTRL_C, Terminal
from tests.fakes.scripted_server import FakeServer, final
from tests.server.server_process import PATIENCE_S, Served, environment, streams

SUMMARY = r"\d+ tokens · first after [\d.]+ s · total [\d.]+ s · [\d.]+ tok/s · "


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    """A server slow enough to skip in."""
    server = Served("--toy-step-ms", "20")
    yield server
    server.end()


def request(words: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": words, "params": {"ignore_eos": True, "max_tokens": tokens}} | more


def file_of(folder: Path, *requests: dict[str, Any]) -> str:
    path = folder / "requests.json"
    path.write_text(json.dumps(requests))
    return str(path)


def piped(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "midstream", "run", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment() | {"PYTHONUTF8": "1"},
        check=False,
    )


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- in a pipe -------------------------------------------------------------------------------------


def test_piped_it_writes_plain_text_and_whole_results(toy: Served, tmp_path: Path) -> None:
    requests = file_of(
        tmp_path,
        request("Once", 10),
        request("Twice", 12, stream=False, request_id="whole", return_tokens=True),
        {"messages": [{"role": "user", "content": "Hi"}], "params": {"max_tokens": 3, "ignore_eos": True}},
    )
    output = tmp_path / "results.jsonl"
    done = piped("--url", toy.http, "--input", requests, "--output", str(output), "--parallel", "2")
    assert (done.stderr, done.returncode) == ("", 0)
    assert "\x1b" not in done.stdout
    first, second, third = results(output)
    assert [result["number"] for result in (first, second, third)] == [1, 2, 3]
    pattern = "".join(
        rf"# {number}/3 {title}\n{re.escape(result['text'])}\n# {SUMMARY}length\n\n"
        for number, title, result in ((1, "Once", first), (2, "Twice", second), (3, "Hi", third))
    )
    assert re.fullmatch(pattern, done.stdout)
    assert second["request_id"] == "whole"
    assert len(second["tokens"]) == second["usage"]["completion_tokens"] == 12
    assert (first["finish_reason"], first["model"], first["error"]) == ("length", "toy", None)
    assert first["timing"]["total_ms"] >= first["timing"]["ttft_ms"] > 0


def test_what_fails_is_told_and_the_others_are_answered(toy: Served, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    lines = [request("a", 3), request("b", 3, model="nope"), request("c", 3)]
    stdin = "\n".join(map(json.dumps, lines))
    done = piped("--url", toy.http, "--input", "-", "--output", str(output), stdin=stdin)
    assert done.returncode == 1
    assert '# 2/3 b\n# error: There is no model "nope"' in done.stdout
    assert [result["finish_reason"] for result in results(output)] == ["length", "error", "length"]
    assert results(output)[1]["error"]["code"] == "unknown_model"


async def test_answers_that_run_beside_one_another_are_shown_in_their_order(tmp_path: Path) -> None:
    requests = file_of(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    async with FakeServer() as fake:
        running = asyncio.create_task(
            asyncio.to_thread(piped, "--url", fake.url, "--input", requests, "--parallel", "2")
        )
        peer = await fake.peer()
        first, second = await peer.accept_start(), await peer.accept_start()
        await peer.send_tokens(second, 0, "later")
        await peer.send(final(second.request_id, 1, "stop"))
        await peer.send_tokens(first, 0, "sooner\x1b[31m")
        await peer.send(final(first.request_id, 1, "stop"))
        shown = (await running).stdout
    assert re.findall(r"sooner.*|later", shown) == ["sooner␛[31m", "later"]


async def test_what_is_taken_back_is_said_and_its_line_comes_again(tmp_path: Path) -> None:
    """As by a guard, in whose request a rewind is nobody's here."""
    requests, output = file_of(tmp_path, {"prompt": "a"}), tmp_path / "results.jsonl"
    async with FakeServer() as fake:
        command = ["run", "--url", fake.url, "--input", requests, "--output", str(output)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "midstream", *command, stdout=PIPE, env=environment()
        )
        assert process.stdout is not None
        peer = await fake.peer()
        start = await peer.accept_start()
        await peer.send_tokens(start, 0, "One\n", "two ", "thr")
        shown = await process.stdout.readuntil(b"thr")
        await peer.send(Rewound(request_id=start.request_id, index=2, text_length=8))
        await peer.send_tokens(start, 2, "four")
        shown += await process.stdout.readuntil(b"four")
        await peer.send(Rewound(request_id=start.request_id, index=1, text_length=4))
        await peer.send(final(start.request_id, 1, "guard", stop_reason="g"))
        shown += await process.stdout.read()
        assert await process.wait() == 0
    said = f"# 1/1 a\nOne\ntwo thr\n{REWOUND}\ntwo four\n{REWOUND}\n# 0 tokens"
    assert shown.decode().startswith(said)
    assert results(output)[0]["text"] == "One\n"


async def test_one_at_a_time_is_one_at_a_time(toy: Served, tmp_path: Path) -> None:
    requests = file_of(tmp_path, request("a", 40), request("b", 3))
    running = asyncio.create_task(asyncio.to_thread(piped, "--url", toy.http, "--input", requests))
    assert streams(await toy.until(lambda now: streams(now) > 0)) == 1
    assert (await running).returncode == 0


async def test_a_stream_that_fails_in_the_middle_keeps_what_came(tmp_path: Path) -> None:
    requests, output = file_of(tmp_path, {"prompt": "a"}), tmp_path / "results.jsonl"
    async with FakeServer() as fake:
        running = asyncio.create_task(
            asyncio.to_thread(piped, "--url", fake.url, "--input", requests, "--output", str(output))
        )
        peer = await fake.peer()
        start = await peer.accept_start()
        await peer.send_tokens(start, 0, "half")
        await peer.send(final(start.request_id, 1, "error", stop_reason="out of memory"))
        done = await running
    assert done.returncode == 1
    assert "half\n# error: the answer ended in an error: out of memory\n" in done.stdout
    (result,) = results(output)
    assert (result["text"], result["error"]["code"]) == ("half", "engine_error")


async def test_what_a_guard_pauses_fails_since_nobody_is_there_to_let_it_go_on(tmp_path: Path) -> None:
    requests, output = file_of(tmp_path, {"prompt": "a"}), tmp_path / "results.jsonl"
    async with FakeServer() as fake:
        running = asyncio.create_task(
            asyncio.to_thread(piped, "--url", fake.url, "--input", requests, "--output", str(output))
        )
        peer = await fake.peer()
        start = await peer.accept_start()
        name = start.request_id
        await peer.send_tokens(start, 0, "half")
        await peer.send(Guarded(request_id=name, index=1, name="words", do="pause"))
        await peer.send(Paused(request_id=name, index=1, reason="guard"))
        cancel = await peer.receive(Cancel)
        await peer.send(final(name, 1, "cancelled", ref=cancel.ref))
        done = await running
    assert done.returncode == 1
    assert (
        'half\n# error: the guard "words" has paused it, and nobody is here to let it go on\n' in done.stdout
    )
    (result,) = results(output)
    assert (result["text"], result["error"]["code"]) == ("half", "guard")


async def test_whoever_reads_the_output_may_have_enough(toy: Served, tmp_path: Path) -> None:
    command = ["run", "--url", toy.http, "--input", file_of(tmp_path, request("a", 4000))]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "midstream", *command, stdout=PIPE, stderr=PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert await process.stdout.readline() == b"# 1/1 a\n"
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # there is no public way
    assert await process.stderr.read() == b""
    assert await process.wait() == 1
    await toy.until_idle()


async def test_an_interrupted_run_leaves_nothing_decoding(toy: Served, tmp_path: Path) -> None:
    command = ["run", "--url", toy.http, "--input", file_of(tmp_path, request("a", 4000))]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "midstream", *command, stdout=PIPE, stderr=PIPE, env=environment()
    )
    await toy.until(lambda now: streams(now, "running") == 1)
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (errors, process.returncode) == (b"", 130)
    await toy.until_idle()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"prompt": "a"}\n{"prompt": }', "line 2, column 12: this is not JSON: Expecting value"),
        ('[{"prompt": "a", "stream": 1}]', "request 1: stream: Expected `bool`, got `int`"),
    ],
)
def test_a_file_that_is_not_right_is_told_in_a_sentence(text: str, problem: str) -> None:
    done = piped("--input", "-", stdin=text)
    assert (done.stdout, done.stderr, done.returncode) == ("", f"midstream: standard input: {problem}\n", 1)


def test_what_is_not_there_is_told_in_a_sentence(tmp_path: Path) -> None:
    requests = file_of(tmp_path, request("a", 3))
    assert (
        piped("--input", f"{tmp_path}/no.json").stderr
        == f"midstream: {tmp_path}/no.json: No such file or directory\n"
    )
    nobody = piped("--input", requests, "--url", "http://127.0.0.1:1")
    assert nobody.stderr.startswith("midstream: no server answers at http://127.0.0.1:1: start one with")
    assert nobody.returncode == 1


def test_a_file_that_is_not_text_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    path.write_bytes(b"[\xff]")
    assert piped("--input", str(path)).stderr == f"midstream: {path}: byte 1 is not UTF-8\n"


# -- grammars, tools, batches ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def scripted() -> Iterator[Served]:
    server = Served(scripted=True)
    yield server
    server.end()


def test_a_grammar_for_all(toy: Served, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"enum": ["yes", "no"]}')
    output, url = tmp_path / "results.jsonl", toy.http.removeprefix("http://")
    for option, value, expected in [
        ("--json-schema", str(tmp_path / "schema.json"), r'"(yes|no)"'),
        ("--regex", "[ab]{3}", "[ab]{3}"),
        ("--choice", "maybe", "maybe"),
    ]:
        given = ["--url", url, "--input", "-", "--output", str(output), option, value]
        done = piped(*given, stdin='{"prompt": "Well", "max_tokens": 20, "temperature": 1.5}')
        assert (done.stderr, done.returncode) == ("", 0)
        assert re.fullmatch(expected, results(output)[0]["text"])
    refused = piped("--input", "-", "--json-schema", str(tmp_path / "none.json"))
    assert "none.json: " in refused.stderr
    assert refused.returncode == 2


def test_calls_are_shown_and_are_in_the_results(scripted: Served, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    said = 'So.<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    requests = file_of(
        tmp_path,
        {
            "messages": [{"role": "user", "content": f"⟦{said}⟧"}],
            "tools": [{"function": {"name": "weather", "parameters": {"type": "object"}}}],
        },
    )
    done = piped("--url", scripted.http, "--input", requests, "--output", str(output))
    assert 'So.\n⚙ weather {"city": "Rome"}\n' in done.stdout
    (result,) = results(output)
    assert (result["text"], result["finish_reason"]) == ("So.", "tool_calls")
    assert json.loads(result["tool_calls"][0]["function"]["arguments"]) == {"city": "Rome"}


def batch_line(custom_id: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    url = "/v1/chat/completions"
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"messages": messages} | body}


def test_lines_of_a_batch_are_answered_in_its_shape(toy: Served, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    lines = [
        batch_line("a", model="toy", max_tokens=4, ignore_eos=True),
        batch_line("b", model="nope"),
        request("c", 3),
    ]
    stdin = "\n".join(map(json.dumps, lines))
    given = ["--url", toy.http, "--input", "-", "--output", str(output), "--parallel", "3"]
    done = piped(*given, stdin=stdin)
    first, second, third = results(output)
    assert (first["custom_id"], first["error"], first["response"]["status_code"]) == ("a", None, 200)
    choice = first["response"]["body"]["choices"][0]
    assert choice["finish_reason"] == "length"
    assert f"# 1/3 Hi\n{choice['message']['content']}\n# 4 tokens · length\n" in done.stdout
    assert (second["custom_id"], second["error"], second["response"]["status_code"]) == ("b", None, 404)
    assert "no model" in second["response"]["body"]["error"]["message"]
    assert "# 2/3 Hi\n# error: " in done.stdout
    assert (third["number"], third["finish_reason"]) == (3, "length")
    assert done.returncode == 1


async def test_a_line_of_a_batch_is_given_up_with_its_work(toy: Served, tmp_path: Path) -> None:
    line = batch_line("a", max_tokens=4000, ignore_eos=True)
    requests, output = file_of(tmp_path, line, request("b", 3)), tmp_path / "results.jsonl"
    terminal = Terminal("run", "--url", toy.http, "--input", requests, "--output", str(output))
    try:
        await toy.until(lambda now: streams(now) == 1)
        terminal.type("s")
        assert await terminal.ended() == 0
    finally:
        await terminal.end()
    await toy.until_idle()
    first, second = results(output)
    assert (first["response"], first["error"]["code"]) == (None, "request_cancelled")
    assert second["finish_reason"] == "length"


# -- at a terminal ---------------------------------------------------------------------------------


async def test_s_skips_to_the_next(toy: Served, tmp_path: Path) -> None:
    requests, output = file_of(tmp_path, request("a", 4000), request("b", 5)), tmp_path / "results.jsonl"
    terminal = Terminal("run", "--url", toy.http, "--input", requests, "--output", str(output))
    try:
        await terminal.until("▸ 1/2 a", "● writing", "s skip")
        terminal.type("s")
        assert await terminal.ended() == 0
        seen = terminal.screen.everything()
        assert re.search(rf"▸ 1/2 a\n[^▸]*{SUMMARY}cancelled\n\n▸ 2/2 b\n[^▸]*\n5 tokens .* length", seen)
        assert [result["finish_reason"] for result in results(output)] == ["cancelled", "length"]
    finally:
        await terminal.end()
    await toy.until_idle()


@pytest.mark.parametrize(("key", "status"), [("q", 0), (CTRL_C, 130)])
async def test_leaving_cancels_all_that_runs(toy: Served, tmp_path: Path, key: str, status: int) -> None:
    requests, output = file_of(tmp_path, *[request("a", 4000)] * 3), tmp_path / "results.jsonl"
    terminal = Terminal(
        "run", "--url", toy.http, "--input", requests, "--parallel", "2", "--output", str(output)
    )
    try:
        await toy.until(lambda now: streams(now, "running") == 2)
        await terminal.until("● writing")
        terminal.type(key)
        assert await terminal.ended() == status
    finally:
        await terminal.end()
    await toy.until_idle()
    assert [result["finish_reason"] for result in results(output)] == ["cancelled", "cancelled"]
