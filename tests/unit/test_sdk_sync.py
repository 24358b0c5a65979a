"""The synchronous client: the same, waited for. It runs in a thread, the server in the test's own loop."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, TypeVar

import pytest

import midstream
from midstream import sync
from midstream.protocol import Cancel, Grant
from tests.fakes.scripted_server import READY, FakeServer, Responder, final, responder_text

T = TypeVar("T")


@pytest.fixture
def responder() -> Responder:
    return Responder()


@pytest.fixture
async def url(responder: Responder) -> AsyncIterator[str]:
    async with FakeServer(responder) as server:
        yield server.url


async def with_client(url: str, script: Callable[[sync.Client], T]) -> T:
    """Run a script that knows nothing of asyncio."""

    def run() -> T:
        with sync.connect(url) as client:
            return script(client)

    return await asyncio.to_thread(run)


async def test_a_loop_to_the_end(url: str) -> None:
    def script(client: sync.Client) -> None:
        assert client.ready == READY
        assert not client.draining
        stream = client.start(prompt="Hi", max_tokens=100, temperature=0.5)
        assert "".join(chunk.text for chunk in stream) == stream.text == responder_text(100)
        assert (stream.model, stream.prompt_tokens, stream.params.temperature) == ("toy", 3, 0.5)
        assert (stream.tokens[-1], stream.index, stream.consumed, stream.state) == (99, 100, 100, "finished")
        assert stream.final is not None
        assert stream.final.finish_reason == "length"
        assert stream.next(timeout=60) is None

    await with_client(url, script)


async def test_a_reading_that_is_closed_cancels_though_it_is_still_held(
    url: str, responder: Responder
) -> None:
    def script(client: sync.Client) -> None:
        stream = client.start(prompt="Hi", window=1)
        with closing(iter(stream)) as chunks:
            next(chunks)
        client.ping()
        assert responder.finals[stream.request_id].finish_reason == "cancelled"

    await with_client(url, script)


async def test_pure_pull(url: str, responder: Responder) -> None:
    def script(client: sync.Client) -> None:
        stream = client.start(prompt="Hi", window=1)
        for asked in range(4):
            client.ping()  # whatever the server was to decode, it has decoded before it answers
            assert responder.decoded[stream.request_id] == asked
            assert stream.next() == midstream.Chunk(asked, 1, f"{asked} ", [asked])

    await with_client(url, script)


async def test_steering(url: str) -> None:
    def script(client: sync.Client) -> None:
        stream = client.start(prompt="Hi", window=10)
        assert stream.pause() == 10
        assert (stream.state, stream.pause_reason) == ("paused", "client")
        assert stream.adjust(temperature=0.25) == 10
        assert stream.inject(text="oh", at=4) == 4
        assert stream.rewind(2) == 2
        assert stream.text == responder_text(2)
        assert [stream.next(), stream.next()] == [midstream.Chunk(i, 1, f"{i} ", [i]) for i in range(2)]
        assert stream.try_next() is None
        assert stream.resume() == 2
        assert stream.cancel() == stream.cancel() == 10
        assert repr(stream) == f"<Stream {stream.request_id!r} finished at 10>"

    await with_client(url, script)


async def test_break_cancels(url: str, responder: Responder) -> None:
    def script(client: sync.Client) -> sync.Stream:
        stream = client.start(prompt="Hi", window=4)
        for _ in stream:
            break
        return stream

    stream = await with_client(url, script)
    assert responder.finals[stream.request_id].finish_reason == "cancelled"


async def test_dropping_the_stream_cancels(url: str, responder: Responder) -> None:
    def script(client: sync.Client) -> str:
        return client.start(prompt="Hi", window=4).request_id

    name = await with_client(url, script)
    assert responder.finals[name].finish_reason == "cancelled"


async def test_leaving_a_with_block_waits_for_the_end(url: str) -> None:
    def script(client: sync.Client) -> None:
        with client.start(prompt="Hi", window=4) as stream:
            assert stream.next()
        assert stream.final is not None
        assert stream.final.finish_reason == "cancelled"

    await with_client(url, script)


async def test_errors_are_the_same(url: str) -> None:
    def script(client: sync.Client) -> None:
        with pytest.raises(midstream.InvalidParams):
            client.start(prompt="Hi", temperature=3)
        stream = client.start(prompt="Hi", window=1)
        stream.pause()
        with pytest.raises(TimeoutError):
            stream.next(timeout=0.01)
        stream.cancel()
        with pytest.raises(midstream.RequestFinished):
            stream.adjust(temperature=0)

    await with_client(url, script)


async def test_many_threads_on_one_connection(url: str) -> None:
    def script(client: sync.Client) -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda n: client.complete(prompt="Hi", max_tokens=n).text, range(1, 9)))

    assert await with_client(url, script) == [responder_text(n) for n in range(1, 9)]


async def test_a_closed_client_may_be_closed_again_and_leaves_no_thread(url: str) -> None:
    def script() -> None:
        before = threading.active_count()
        client = sync.connect(url)
        client.close()
        client.close()
        with pytest.raises(midstream.Overloaded):
            sync.connect(busy.url)
        assert threading.active_count() == before

    async with FakeServer(status=503) as busy:
        await asyncio.to_thread(script)


def test_an_interrupt_while_waiting_cancels_the_stream() -> None:
    """Ctrl-C comes out of whatever wait the main thread is in."""
    server, thread = FakeServer(), sync.LoopThread()

    async def play() -> None:
        peer = await server.peer()
        await peer.accept_start()
        await peer.receive(Grant)  # the reader waits now
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGINT)
        cancel = await peer.receive(Cancel)
        await peer.send(final(cancel.request_id, 0, "cancelled"))

    thread.run(server.__aenter__())
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(thread.run, play())
        with sync.connect(server.url) as client:
            stream = client.start(prompt="Hi", window=1)
            with pytest.raises(KeyboardInterrupt):
                next(iter(stream))
            playing.result()
    thread.run(server.__aexit__(None, None, None))
    thread.stop()


def test_an_interrupt_as_soon_as_work_is_handed_over_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, ended = sync.LoopThread(), threading.Event()
    hand_over = thread._loop.call_soon_threadsafe

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted(*work: Any) -> None:
        monkeypatch.undo()
        hand_over(*work)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.run(work())
    assert ended.wait(60)
    thread.stop()


async def test_what_is_asked_of_a_closed_client_is_refused_as_of_a_lost_one(url: str) -> None:
    def script() -> None:
        with sync.connect(url) as client:
            stream = client.start(prompt="Hi", window=1)
        for ask in (client.ping, stream.next, stream.cancel, lambda: list(stream)):
            with pytest.raises(midstream.ConnectionLost, match="the client was closed"):
                ask()

    await asyncio.to_thread(script)


def test_what_is_handed_over_beside_the_end_does_not_wait_for_ever() -> None:
    """It stands in the loop's queue when that is stopped."""
    thread, never = sync.LoopThread(), asyncio.Event().wait
    busy, handed_over = threading.Event(), threading.Event()
    hand_over = thread._loop.call_soon_threadsafe

    def noted(*work: Any) -> None:
        hand_over(*work)
        handed_over.set()

    hand_over(busy.wait)
    thread._loop.call_soon_threadsafe = noted  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: thread.run(never()))
        assert handed_over.wait(60)
        handed_over.clear()
        stopping = pool.submit(thread.stop)
        assert handed_over.wait(60)
        busy.set()
        stopping.result(60)
        with pytest.raises(midstream.ConnectionLost, match="the client was closed"):
            waiting.result(60)


def test_the_end_does_not_wait_for_what_catches_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tool of an agent may."""
    thread, kept = sync.LoopThread(), list[asyncio.Task[None]]()

    async def stay() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def begin() -> None:
        kept.append(asyncio.create_task(stay()))

    monkeypatch.setattr(sync, "PATIENCE_S", 0.01)
    thread.run(begin())
    stopping = threading.Thread(target=thread.stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive()


async def test_a_client_that_could_not_be_closed_may_still_be(url: str) -> None:
    refused = threading.Event()

    def script() -> None:
        def close() -> None:
            with pytest.raises(RuntimeError, match="would wait for itself"):
                client.close()
            refused.set()

        client = sync.connect(url)
        client._thread._loop.call_soon_threadsafe(close)
        assert refused.wait(60)
        client.close()
        assert client.state == "closed"

    await asyncio.to_thread(script)


async def test_waiting_in_the_clients_own_thread_is_refused(url: str) -> None:
    refused: list[str] = []
    told = threading.Event()

    def script() -> None:
        def on_state(_: str) -> None:
            try:
                client.ping()
            except RuntimeError as error:
                refused.append(str(error))
            told.set()

        client = sync.connect(url, on_state=on_state)
        client._thread.run(client._client.close())
        assert told.wait(60)
        client.close()

    await asyncio.to_thread(script)
    assert refused == ["this would wait for itself: what runs in the client's thread must not wait"]


async def test_a_callback_that_would_end_the_program_ends_nothing_and_is_told(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would end the client's thread alone, and whoever waits for that would wait for ever."""
    called = threading.Event()

    def script() -> None:
        def on_state(_: str) -> None:
            called.set()
            sys.exit("enough")

        client = sync.connect(url, on_state=on_state)
        client._thread.run(client._client.close())
        assert called.wait(60)
        with pytest.raises(midstream.ConnectionLost, match="connection was closed"):
            client.ping()
        client.close()

    await asyncio.wait_for(asyncio.to_thread(script), 60)
    assert "cannot end the program" in caplog.text


async def test_a_fork_of_the_process_is_told_that_it_has_no_client(url: str) -> None:
    code = """
import os, sys, midstream.sync
client = midstream.sync.connect(sys.argv[1])
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    client.ping()
except midstream.ConnectionLost as lost:
    os._exit("fork" not in str(lost))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", "-c", code, url)
    try:
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
