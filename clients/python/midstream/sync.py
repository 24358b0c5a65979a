"""The synchronous client, for scripts and notebooks: the same names and laziness, no `async` and `await`.

    with midstream.sync.connect("http://127.0.0.1:8000") as client:
        stream = client.start(prompt="Once upon a time")
        for chunk in stream:
            print(chunk.text, end="")

A thread of its own runs the asynchronous client; every call here is that client's, waited for. Leaving a
`for` loop, an exception, and dropping a stream cancel it here too. May be used from several threads at
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

from midstream import agent, client, stream
from midstream.agent import Agent
from midstream.client import RECONNECT_S, SILENCE_S, Completion
from midstream.dial import Encoding
from midstream.errors import ConnectionLost
from midstream.options import DEFAULT_WINDOW, CreditLike, MessageLike, ParamOptions, StartOptions
from midstream.protocol import AnyPauseReason, Event, Final, Message, Params, Ready, StreamEvent
from midstream.reconnecting import ClientState
from midstream.record_format import Record
from midstream.recording import Recording
from midstream.replay import Replay
from midstream.spans import Call, Thought
from midstream.stream_core import Chunk, Restarted, State
from midstream.tool_tasks import REFUSED, ToolOutcome

T = TypeVar("T")

PATIENCE_S = 1.0  # with what was cancelled: a function of an agent's that catches that is not waited for

__all__ = ["Client", "Run", "Stream", "connect"]


class LoopThread:
    """An event loop in a thread of its own, and a way to wait for what runs in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._waiting: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._keep_running, name="midstream", daemon=True)
        self._thread.start()

    def _keep_running(self) -> None:
        """Until it is stopped: what a callback raises to end the program, as `sys.exit` does, would end this
        thread alone, and have whoever waits for it wait for ever."""
        while True:
            try:
                self._loop.run_forever()
                return
            except BaseException as error:  # noqa: BLE001 - it is told as of any that a callback raises
                told = {"message": "what runs in the client's thread cannot end the program"}
                self._loop.call_exception_handler(told | {"exception": error})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        outcome = Future[T]()
        self._waiting.add(outcome)
        try:
            # Ctrl-C may come as soon as this is handed over, and must not leave it waiting there.
            self._hand_over(work, outcome)
            return outcome.result()
        except BaseException:
            outcome.cancel()
            raise
        finally:
            self._waiting.discard(outcome)

    def _hand_over(self, work: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
        """Where nobody would ever do it, that is said."""
        why: Exception = _gone()
        if threading.current_thread() is self._thread:
            why = RuntimeError("this would wait for itself: what runs in the client's thread must not wait")
        elif self._thread.is_alive():
            with suppress(RuntimeError):  # it has just been stopped
                self._loop.call_soon_threadsafe(self._start, work, outcome)
                return
        work.close()
        raise why

    def _start(self, work: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
        task = self._loop.create_task(_deliver(work, outcome))
        outcome.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(task.cancel) if done.cancelled() else None
        )

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._end()))
        self._thread.join()
        self._loop.close()
        for outcome in list(self._waiting):  # of what was handed over since
            if not outcome.done() and outcome.set_running_or_notify_cancel():
                outcome.set_exception(_gone())

    async def _end(self) -> None:
        """What others have handed over meanwhile begins, and is ended."""
        await asyncio.sleep(0)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=PATIENCE_S)
        self._loop.stop()


def _gone() -> ConnectionLost:
    """Each who waits is given one of his own."""
    message = "the client was closed, or belongs to the process of which this is a fork"
    return ConnectionLost(message, code=None, retryable=False)


async def _deliver(work: Coroutine[Any, Any, T], outcome: Future[T]) -> None:
    """Whatever comes of it, somebody in another thread waits for it, or waits no longer."""
    try:
        result = await work
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        task = asyncio.current_task()
        stopped = task is not None and task.cancelling()
        if outcome.set_running_or_notify_cancel():
            outcome.set_exception(_gone() if stopped else error)
    else:
        if outcome.set_running_or_notify_cancel():
            outcome.set_result(result)


class Stream:
    """A running stream of output, made by `Client.start`: see `midstream.Stream`, which it is the twin of."""

    def __init__(self, thread: LoopThread, stream: stream.Stream) -> None:
        self._thread = thread
        self._stream = stream

    def __repr__(self) -> str:
        return repr(self._stream)

    @property
    def request_id(self) -> str:
        """Its name in the protocol."""
        return self._stream.request_id

    @property
    def model(self) -> str | None:
        """The model that answers."""
        return self._stream.model

    @property
    def prompt_tokens(self) -> int | None:
        """The length of the prompt."""
        return self._stream.prompt_tokens

    @property
    def fingerprint(self) -> str | None:
        """Of what computes it now: equal ones promise equal tokens for the same start, steered the same."""
        return self._stream.fingerprint

    @property
    def restarts(self) -> list[Restarted]:
        """Each time that nobody knew it any more, and it was started again from what had come: where it went
        on."""
        return self._stream.restarts

    @property
    def params(self) -> Params:
        """The sampling parameters in force, as the server resolved them."""
        return self._stream.params

    @property
    def text(self) -> str:
        """All text received that still stands. It may be ahead of the chunks taken; `rewind` shortens it."""
        return self._stream.text

    @property
    def reasoning(self) -> str:
        """What the model has said to itself, of what still stands: it is in no chunk."""
        return self._stream.reasoning

    @property
    def thoughts(self) -> list[Thought]:
        """The same, at which tokens it stands: each stretch of it on its own."""
        return self._stream.thoughts

    @property
    def calls(self) -> list[Call]:
        """The calls of tools that still stand; the last may be incomplete: see `Call.whole`."""
        return self._stream.calls

    @property
    def message(self) -> Message:
        """What has come and still stands, as a turn of the conversation: the text, and the calls that are
        whole."""
        return self._stream.message

    @property
    def tokens(self) -> list[int]:
        """The ids of all tokens received that still stand, if it was started with `return_tokens=True`."""
        return self._stream.tokens

    @property
    def index(self) -> int:
        """How many output tokens were received and still stand; `consumed` of them were taken."""
        return self._stream.index

    @property
    def consumed(self) -> int:
        """The index after the last token taken: where the next chunk begins."""
        return self._stream.consumed

    @property
    def state(self) -> State:
        """ "running", "paused" or "finished"."""
        return self._stream.state

    @property
    def pause_reason(self) -> AnyPauseReason | None:
        """Why it is paused: "client" (somebody asked), "tool_call" (it waits for results), "guard",
        "memory", "engine" (it failed), "loading" (its model is) or "detached"."""
        return self._stream.pause_reason

    @property
    def final(self) -> Final | None:
        """How it ended, with usage and timing; None until it has."""
        return self._stream.final

    def __iter__(self) -> Reading[Chunk]:
        return Reading(self._thread, aiter(self._stream))

    def events(self) -> Reading[StreamEvent]:
        """Everything that happens, up to `Final`: see `midstream.Stream.events`."""
        return Reading(self._thread, self._stream.events())

    def tool_calls(self) -> Reading[Call]:
        """The calls of tools, each as soon as it is whole: see `midstream.Stream.tool_calls`."""
        return Reading(self._thread, self._stream.tool_calls())

    def next(self, *, timeout: float | None = None) -> Chunk | None:
        """The next chunk, or None at the end. Raises TimeoutError if none comes for `timeout` seconds."""
        return self._thread.run(self._stream.next(timeout=timeout))

    def try_next(self) -> Chunk | None:
        """The next chunk if it is here already; None if it is not, or the stream has ended: see `final`."""
        return self._thread.run(_call(self._stream))

    def grant(self, limit: int) -> None:
        """Let it decode up to the token at index `limit`: see `midstream.Stream.grant`."""
        self._thread.run(_grant(self._stream, limit))

    def pause(self, *, kv: Literal["hold", "release"] = "hold") -> int:
        """Stop decoding. With kv="release" its memory is given up at once, to be rebuilt on `resume`."""
        return self._thread.run(self._stream.pause(kv=kv))

    def resume(self) -> int:
        """Go on after a pause."""
        return self._thread.run(self._stream.resume())

    def adjust(self, *, at: int | None = None, **params: Unpack[ParamOptions]) -> int:
        """Change sampling parameters: the token at the index returned is the first sampled with them."""
        return self._thread.run(self._stream.adjust(at=at, **params))

    def inject(
        self,
        *,
        text: str | None = None,
        messages: Sequence[MessageLike] | None = None,
        tokens: Sequence[int] | None = None,
        at: int | None = None,
        grammar: Literal["fit", "anew"] = "fit",
    ) -> int:
        """Put text, messages or tokens into the context, before the output token at the index returned."""
        return self._thread.run(
            self._stream.inject(text=text, messages=messages, tokens=tokens, at=at, grammar=grammar)
        )

    def tool_result(self, call: Call | str, content: object = None, *, error: str | None = None) -> int:
        """Tell the model what came of a call: see `midstream.Stream.tool_result`."""
        return self._thread.run(self._stream.tool_result(call, content, error=error))

    def approve(self, call: Call | str) -> int:
        """Say yes to a call that waits for it: see `midstream.Stream.approve`."""
        return self._thread.run(self._stream.approve(call))

    def amend(self, call: Call | str, arguments: Mapping[str, Any] | str, *, partial: bool = False) -> int:
        """Change a call's arguments: see `midstream.Stream.amend`."""
        return self._thread.run(self._stream.amend(call, arguments, partial=partial))

    def rewind(self, to: int) -> int:
        """Forget the output from token `to` on, and go on from there. `text` and `tokens` follow."""
        return self._thread.run(self._stream.rewind(to))

    def cancel(self) -> int:
        """End it now, if it has not ended, and return the length of its output. May be called again."""
        return self._thread.run(self._stream.cancel())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._stream.__aexit__(kind, error, trace))


class Run:
    """A run of an agent, made by `Client.run`: see `midstream.Run`, which it is the twin of. Its tools run in
    other threads, async ones in the client's own."""

    def __init__(self, thread: LoopThread, run: agent.Run) -> None:
        self._thread = thread
        self._run = run

    @property
    def stream(self) -> Stream:
        """The stream, to be steered as any; its `calls`, `text` and `final` are the run's."""
        return Stream(self._thread, self._run.stream)

    @property
    def outcomes(self) -> list[ToolOutcome]:
        """What came of the calls that stand."""
        return self._run.outcomes

    @property
    def messages(self) -> list[Message]:
        """The whole conversation so far: with another question behind it, the next run's."""
        return self._run.messages

    def __iter__(self) -> Reading[Event]:
        return Reading(self._thread, aiter(self._run))

    def answer(self) -> Any:
        """Read it to its end: see `midstream.Run.answer`."""
        return self._thread.run(self._run.answer())

    def approve(self, call: Call) -> None:
        """A call that waits for a yes is made."""
        self._thread.run(self._run.approve(call))

    def amend(self, call: Call, arguments: Mapping[str, Any] | str, *, partial: bool = False) -> None:
        """A call has other arguments: see `midstream.Run.amend`."""
        self._thread.run(self._run.amend(call, arguments, partial=partial))

    def give(self, call: Call, content: object) -> None:
        """Answer a call by hand, whatever runs for it."""
        self._thread.run(self._run.give(call, content))

    def refuse(self, call: Call, why: str = REFUSED) -> None:
        """A call does not run, and the model is told why."""
        self._thread.run(self._run.refuse(call, why))

    def fork(self, *, at: int | None = None, **options: Unpack[StartOptions]) -> Run:
        """Another run, which begins as this one stands: see `midstream.Run.fork`."""
        return Run(self._thread, self._thread.run(self._run.fork(at=at, **options)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._run.__aexit__(kind, error, trace))


class Reading(Generic[T]):
    """One reading of a stream to its end. Where it is dropped before, the stream is cancelled."""

    def __init__(self, thread: LoopThread, reading: stream.Reading[T]) -> None:
        self._thread = thread
        self._reading = reading

    def __iter__(self) -> Reading[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._thread.run(self._reading.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Say now that nobody reads on, as dropping it does: for `contextlib.closing`."""
        self._thread.run(self._reading.aclose())


class Client:
    """A client of a server. Any number of streams may run on it at once, and they outlive its connections."""

    def __init__(self, thread: LoopThread, asynchronous: client.Client) -> None:
        self._thread = thread
        self._client = asynchronous
        self._closed = False

    @property
    def ready(self) -> Ready:
        """What the server said of itself in its last `ready`: `models`, `limits`, `session_id`."""
        return self._client.ready

    @property
    def state(self) -> ClientState:
        """ "open", "reconnecting" or "closed": for ever, by `close` or because it could not be helped."""
        return self._client.state

    @property
    def draining(self) -> bool:
        """Whether the server has said that it is going away: running streams go on, new ones are refused."""
        return self._client.draining

    def start(
        self,
        *,
        window: int = DEFAULT_WINDOW,
        credit: CreditLike | None = None,
        **options: Unpack[StartOptions],
    ) -> Stream:
        """Start a stream: see `midstream.Client.start`."""
        return Stream(
            self._thread, self._thread.run(self._client.start(window=window, credit=credit, **options))
        )

    def attach(
        self, request_id: str, *, window: int = DEFAULT_WINDOW, credit: Literal["auto"] | None = None
    ) -> Stream:
        """Take over a stream that was started elsewhere: see `midstream.Client.attach`."""
        return Stream(
            self._thread, self._thread.run(self._client.attach(request_id, window=window, credit=credit))
        )

    def fork(
        self,
        stream: Stream | str,
        *,
        at: int | None = None,
        window: int = DEFAULT_WINDOW,
        credit: CreditLike | None = None,
        **options: Unpack[StartOptions],
    ) -> Stream:
        """A stream that begins as another one stands: see `midstream.Client.fork`."""
        parent = stream if isinstance(stream, str) else stream._stream
        branch = self._client.fork(parent, at=at, window=window, credit=credit, **options)
        return Stream(self._thread, self._thread.run(branch))

    def run(
        self,
        agent: Agent,
        question: str | Sequence[MessageLike],
        *,
        window: int = DEFAULT_WINDOW,
        credit: CreditLike | None = None,
        **options: Unpack[StartOptions],
    ) -> Run:
        """Have an agent answer: see `midstream.Client.run`."""
        run = self._client.run(agent, question, window=window, credit=credit, **options)
        return Run(self._thread, self._thread.run(run))

    def complete(self, **options: Unpack[StartOptions]) -> Completion:
        """Start a stream, wait for its end and return the whole. Raises StreamFailed if that is an error."""
        return self._thread.run(self._client.complete(**options))

    def parse(self, kind: type[T], **options: Unpack[StartOptions]) -> T:
        """Have it answered by a value of this type: see `midstream.Client.parse`."""
        return self._thread.run(self._client.parse(kind, **options))

    def record(self, file: str | Path) -> Recording:
        """Record every stream started from now on to a file: see `midstream.Client.record`."""
        return self._client.record(file)

    def replay(self, record: Record) -> Replay:
        """Play a record on this server, and say whether the same tokens come."""
        return self._thread.run(self._client.replay(record))

    def ping(self) -> None:
        """Ask the server for a sign of life, and wait for it."""
        self._thread.run(self._client.ping())

    def close(self) -> None:
        """Close the connection: see `midstream.Client.close`. May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.run(self._client.close())
        except BaseException:  # as from the client's own thread: it is open still
            self._closed = False
            raise
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    url: str | Sequence[str],
    *,
    api_key: str | None = None,
    encoding: Encoding = "json",
    open_timeout: float | None = 10,
    reconnect_s: float = RECONNECT_S,
    silence_s: float | None = SILENCE_S,
    on_state: Callable[[ClientState], object] | None = None,
    ssl: SSLContext | None = None,
) -> Client:
    """Connect to a server: `with midstream.sync.connect(url) as client`. Arguments as `midstream.connect`.

    `on_state` is called in the client's own thread, and must not wait for anything of the client's.
    """
    opening = client.connect(
        url,
        api_key=api_key,
        encoding=encoding,
        open_timeout=open_timeout,
        reconnect_s=reconnect_s,
        silence_s=silence_s,
        on_state=on_state,
        ssl=ssl,
    )
    thread = LoopThread()
    try:
        return Client(thread, thread.run(_await(opening)))
    except BaseException:
        thread.stop()
        raise


async def _await(opening: client.connect) -> client.Client:
    return await opening


async def _grant(stream: stream.Stream, limit: int) -> None:
    stream.grant(limit)


async def _call(stream: stream.Stream) -> Chunk | None:
    return stream.try_next()
