"""The request file of `midstream run`, and the message for each way in which it may be wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from ssl import SSLError
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

import midstream
from midstream.cli import ask_server, batch_work
from midstream.cli.answer_view import AnswerView
from midstream.cli.batch_work import BatchWork
from midstream.cli.error_messages import error_message
from midstream.cli.http_post import HttpAnswer, post
from midstream.cli.jobs import Job, Unattended
from midstream.cli.request_file import BatchRequest, Request, RequestFileError, parse_requests
from midstream.cli.stream_work import _next
from midstream.cli.summary import summary
from midstream.errors import ConnectionLost, ProtocolError, StreamFailed, connection_closed, from_code
from midstream.options import start_frame
from midstream.protocol import Grammar, Message
from tests.fakes.scripted_server import FakeServer
from tests.unit.test_cli_answer_view import final

URL = "http://127.0.0.1:8000"


BATCH_LINE = (
    '{"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "toy",'
    ' "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}}'
)


def streamed(text: str) -> list[Request]:
    requests = parse_requests(text)
    return [request for request in requests if isinstance(request, Request)]


def test_an_array_and_lines_say_the_same() -> None:
    array = streamed('[{"prompt": "a"},\n {"prompt": "b", "stream": false}]')
    lines = streamed('{"prompt": "a"}\n\n{"prompt": "b", "stream": false}\n')
    assert array == lines
    assert [request.stream for request in array] == [True, False]


def test_a_request_is_started_with_what_it_says_and_nothing_else() -> None:
    (request,) = streamed(
        '[{"request_id": "r", "messages": [{"role": "user", "content": "Hi"}], "priority": 2,'
        ' "params": {"temperature": 0, "stop": ["x"]}, "stream": false}]'
    )
    frame = start_frame(request.options)
    assert (frame.request_id, frame.messages, frame.priority) == (
        "r",
        [Message(role="user", content="Hi")],
        2,
    )
    assert (frame.params.temperature, frame.params.stop) == (0, ["x"])


def test_parameters_stand_beside_the_rest_or_under_params() -> None:
    beside, under, both = streamed(
        '{"prompt": "a", "max_tokens": 3, "seed": 1}\n'
        '{"prompt": "a", "params": {"max_tokens": 3, "seed": 1}}\n'
        '{"prompt": "a", "seed": 1, "params": {"max_tokens": 3}}'
    )
    assert beside == under == both
    assert start_frame(beside.options).params.max_tokens == 3


def test_tools_and_whatever_else_start_takes() -> None:
    (request,) = streamed(
        '{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"function": {"name": "f"}}],'
        ' "tool_choice": "none", "stream_interval": 4, "on_disconnect": "continue", "grace_ms": 5}'
    )
    frame = start_frame(request.options)
    assert frame.tools is not None
    assert (frame.tools[0].function.name, frame.tool_choice, frame.stream_interval) == ("f", "none", 4)
    assert (frame.on_disconnect, frame.grace_ms) == ("continue", 5)


def test_a_line_of_a_batch_is_taken_as_it_is() -> None:
    request, other = parse_requests(BATCH_LINE + '\n{"prompt": "a"}')
    assert isinstance(request, BatchRequest)
    assert (request.custom_id, request.url, request.title) == ("one", "/v1/chat/completions", "Hi")
    assert request.body["max_tokens"] == 3
    assert isinstance(other, Request)


def test_a_grammar_is_for_those_that_name_none() -> None:
    grammar = Grammar(regex="a+")
    first, second, third = parse_requests(
        '{"prompt": "a"}\n{"prompt": "a", "grammar": {"regex": "b"}}\n{"prompt": "a", "grammar": null}',
        grammar,
    )
    given = [request.params.grammar for request in (first, second, third) if isinstance(request, Request)]
    assert given == [grammar, Grammar(regex="b"), None]
    (plain,) = streamed('{"prompt": "a"}')
    assert plain.params.grammar is UNSET
    with pytest.raises(RequestFileError, match=r"line 1: a line of a batch has its grammar in its body"):
        parse_requests(BATCH_LINE, grammar)


def test_a_title_is_the_last_that_was_said() -> None:
    said = streamed(
        '[{"prompt": "a"}, {"prompt": [1, 2]}, {"messages": [{"role": "user", "content":'
        ' [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}]}]'
    )
    assert [request.title for request in said] == ["a", "2 tokens", "bc"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there are no requests in it"),
        ("[]", "there are no requests in it"),
        (
            '[{"prompt": "a"},\n {"prompt": }]',
            "line 2, column 13: this is not JSON: Expecting value",
        ),
        ('{"prompt": "a"}\n{"prompt"}', "line 2, column 10: this is not JSON: Expecting ':' delimiter"),
        ("[" * 100_000, "line 1: it is nested too deep"),
        (
            '{"prompt": "cut \\ud83d"}',
            "line 1: 'utf-8' codec can't encode character '\\ud83d' in position 4: surrogates not allowed",
        ),
        ('{"prompt": "a"}\n3', "line 2: Expected `object`, got `int`"),
        ('[{"prompt": "a"}, {"prompt": 3}]', "request 2: prompt: Expected `str | array | null`, got `int`"),
        ('{"prompt": "a", "stream": "no"}', "line 1: stream: Expected `bool`, got `str`"),
        ('{"prompt": "a", "sream": false}', "line 1: there is no field `sream`"),
        ('{"prompt": "a", "params": {"top_p": 3}}', "line 1: params.top_p: Expected `float` <= 1.0"),
        (
            '{"prompt": "a", "seed": 1, "params": {"seed": 1}}',
            "line 1: `seed` is there twice, beside `params` and in them",
        ),
        ('{"prompt": "a", "top_p": 3}', "line 1: params.top_p: Expected `float` <= 1.0"),
        ('{"custom_id": "a", "url": "/v1/x", "body": {}, "bdy": {}}', "line 1: there is no field `bdy`"),
        (
            '{"custom_id": "a", "method": "GET", "url": "/v1/x", "body": {}}',
            "line 1: method: it must be POST, not GET",
        ),
        (
            '{"prompt": "a", "on_disconnect": "stop"}',
            "line 1: on_disconnect: it must be cancel or pause or continue, not stop",
        ),
        (
            '{"custom_id": "a", "url": "/v1/x", "body": {"stream": true}}',
            "line 1, body: a line of a batch is answered whole: leave out `stream`",
        ),
        (
            '{"custom_id": "a", "url": "/v1/ch\u00e4t", "body": {}}',
            "line 1: url: Expected `str` matching regex '^/v1/[!-~]+$'",
        ),
        (
            f"{BATCH_LINE}\n{BATCH_LINE}",
            "the custom_id 'one' is there twice: each must be another",
        ),
        ('{"params": {}}', "line 1: it must have either `messages` or `prompt`"),
        (
            '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
            "line 1: it must have either `messages` or `prompt`",
        ),
        (
            '{"prompt": "a", "request_id": "x"}\n{"prompt": "b", "request_id": "x"}',
            "the request_id 'x' is there twice: each must be another",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence_that_says_where(text: str, problem: str) -> None:
    with pytest.raises(RequestFileError) as caught:
        parse_requests(text)
    assert str(caught.value) == problem


def test_a_number_of_thousands_of_digits_is_none() -> None:
    with pytest.raises(RequestFileError, match="line 2: Exceeds the limit"):
        parse_requests('{"prompt": "a"}\n{"prompt": "a", "seed": ' + "9" * 5000 + "}")


def test_a_parameter_misspelt_is_told_from_those_that_are() -> None:
    with pytest.raises(
        RequestFileError, match=r"line 1, params: there is no `temperatur`; there are temperature, "
    ):
        parse_requests('{"prompt": "a", "params": {"temperatur": 1}}')


# -- what went wrong elsewhere ---------------------------------------------------------------------


def test_no_server_is_told_with_what_to_do() -> None:
    assert error_message(ConnectionLost("no", code=None, retryable=True), URL) == (
        f"no server answers at {URL}: start one with `midstream serve`, or name another with --url"
    )


def test_a_server_that_speaks_otherwise_is_not_said_to_be_none() -> None:
    """As where its certificate is its own, or it has none."""
    lost = ConnectionLost("no connection to https://h: certificate verify failed", code=None, retryable=True)
    lost.__cause__ = SSLError()
    assert error_message(lost, URL) == "no connection to https://h: certificate verify failed"


def test_a_stream_that_was_lost_alone_says_why() -> None:
    alone = ConnectionLost("the stream could not be taken up again", code=None, retryable=False)
    assert error_message(alone, URL) == "the stream could not be taken up again"


def test_a_lost_connection_says_whether_to_try_again() -> None:
    assert (
        error_message(connection_closed(1012, ""), URL)
        == f"the connection to {URL} was lost (close code 1012): try again"
    )
    assert (
        error_message(connection_closed(4403, ""), URL)
        == f"the connection to {URL} was lost (close code 4403)"
    )


def test_a_refusal_is_one_line_with_advice() -> None:
    refused = from_code("unauthenticated", "A key\nis needed.")
    assert error_message(refused, URL) == (
        "A key is needed; put your key into the environment variable MIDSTREAM_API_KEY"
    )
    busy = from_code("rate_limited", "Too many.")
    busy.retry_after_ms = 1500
    assert error_message(busy, URL) == "Too many; try again in 1.5 s"


def test_a_failed_answer_says_so_and_is_disarmed() -> None:
    failed = StreamFailed(final(finish_reason="error", stop_reason="out of memory\x1b[0m"))
    assert error_message(failed, URL) == "the answer ended in an error: out of memory␛[0m"


def test_why_a_batchs_answer_ended_is_disarmed() -> None:
    (request,) = parse_requests(BATCH_LINE)
    assert isinstance(request, BatchRequest)
    work = BatchWork(request, "http://h", None)
    work._answer = HttpAnswer(200, None, {"choices": [{"finish_reason": "\x1b[2Jstop"}]})
    assert work.summary == "0 tokens · ␛[2Jstop"
    assert summary(final(finish_reason="\x1b[2Jend")).endswith(" · ␛[2Jend (eos)")


def test_the_file_in_the_documentation_is_right() -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    first, second = streamed(page.partition("```json\n")[2].partition("```")[0])
    assert (first.stream, second.stream) == (True, False)
    assert all(f"`{name}`" in page for name in Request.__struct_fields__)


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def models_of_who_answers(answer: Answer) -> None:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        await asyncio.to_thread(
            ask_server.ask_server, f"http://{host}:{port}", "/v1/models", None, dict, about="list its models"
        )


@pytest.mark.parametrize("limit", [("MOST_BYTES", 2**20), ("ANSWER_S", 0)])
async def test_an_answer_without_end_is_none(monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 2**16)
                await writer.drain()

    monkeypatch.setattr(ask_server, *limit)
    with pytest.raises(ProtocolError, match="does not list its models as Midstream does"):
        await models_of_who_answers(answer)


async def test_an_answer_that_breaks_off_is_none() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"data":')
        writer.close()

    with pytest.raises(ConnectionLost, match="92 more expected"):
        await models_of_who_answers(answer)


async def test_a_guard_that_paused_it_while_the_connection_was_lost_has_no_name() -> None:
    channel = SimpleNamespace(core=SimpleNamespace(acts=[]))
    paused: Any = SimpleNamespace(try_next=lambda: None, final=None, pause_reason="guard", channel=channel)
    with pytest.raises(Unattended, match="a guard has paused it"):
        await _next(paused)


async def test_a_mistake_of_ours_is_no_answer_that_was_skipped() -> None:
    (request,) = parse_requests(BATCH_LINE)
    assert isinstance(request, BatchRequest)

    class Mistaken(BatchWork):
        async def do(self, client: midstream.Client, view: AnswerView, changed: asyncio.Event) -> None:
            raise KeyError("a mistake")

    job = Job(1, Mistaken(request, "http://h", None))
    async with FakeServer() as server, midstream.connect(server.url) as client:
        await job.run(client, asyncio.Semaphore())
    with pytest.raises(KeyError, match="a mistake"):
        job.check()
    assert b"client_error" in job.line()


async def test_a_line_of_a_batch_does_not_wait_for_a_server_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing comes of its connection, not even an end."""
    asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(writer)

    monkeypatch.setattr(batch_work, "LOOK_S", 0)
    async with FakeServer() as server, await asyncio.start_server(accept, "127.0.0.1", 0) as silent:
        host, port = silent.sockets[0].getsockname()
        request = BatchRequest(custom_id="a", url="/v1/completions", body={})
        work = BatchWork(request, f"http://{host}:{port}", None)
        client = await midstream.connect(server.url)
        doing = asyncio.create_task(work.do(client, AnswerView(), asyncio.Event()))
        writer = await asked.get()
        await client.close()
        with pytest.raises(ConnectionLost):
            await doing
        writer.close()
    assert work.result(1, None).response is None


async def test_a_connection_that_is_never_made_holds_up_no_program_that_gives_it_up() -> None:
    """As to a server that answers no handshake of TLS."""
    asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    before = set(threading.enumerate())
    async with await asyncio.start_server(lambda _, it: asked.put_nowait(it), "127.0.0.1", 0) as silent:
        host, port = silent.sockets[0].getsockname()
        asking = asyncio.create_task(post(f"https://{host}:{port}/v1/completions", {}, None))
        writer = await asked.get()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        left = set(threading.enumerate()) - before
        assert left
        assert all(thread.daemon for thread in left)
        writer.close()
