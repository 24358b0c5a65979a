"""What is done about the calls of one stream: whether each may run, its function, and what the model is told.

Which calls stand is the stream's to know. From that, and from what has come of them, follows what is to be
done, after every event anew: so a call that is taken back, changed or made again needs no rule. It holds the
stream's channel and never the stream, which ends when nobody else holds it, and with it whatever runs here.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from midstream.backoff import Backoff
from midstream.daemon_thread import in_thread
from midstream.errors import ConnectionLost, InvalidParams, RequestError, RequestFinished
from midstream.options import frame
from midstream.protocol import (
    Amend,
    Approve,
    Approved,
    Event,
    Injected,
    Message,
    Reasoning,
    Rewound,
    Snapshot,
    Token,
    Tool,
    ToolArguments,
    ToolCall,
    ToolResult,
)
from midstream.schemas import from_json, result_text, to_json
from midstream.spans import Call
from midstream.stream_channel import Channel
from midstream.stream_core import Noted
from midstream.tools import JsonTool, run_call, tool_name

if TYPE_CHECKING:
    from midstream.agent import Agent

T = TypeVar("T")

# Events that make no call whole, nor any that is another: to look at all calls with each of them is too much.
_OTHERS = Token | Reasoning | ToolCall | ToolArguments
REFUSED = "the user said no"
MOST_UNREAD = 100  # words of tools on how far they are, which somebody else's may say without end


class ToolProgress(Noted, kw_only=True, tag="tool_progress"):
    """How far a tool has come, as it says itself: `done` of `total`."""

    call: Call
    done: float
    total: float | None = None
    message: str | None = None


class ToolOutcome(Noted, kw_only=True, tag="tool_outcome"):
    """What came of a call: what the model is told, or the error. `index`: the output token before which it
    stands, once it does."""

    call: Call
    content: str | None = None
    error: str | None = None
    index: int | None = None

    @property
    def message(self) -> Message:
        """The turn that tells it."""
        content = to_json({"error": self.error}) if self.content is None else self.content
        return Message(role="tool", content=content, name=self.call.name, tool_call_id=self.call.call_id)


_report: ContextVar[Callable[[float, float | None, str | None], None]] = ContextVar("midstream.progress")


def progress(done: float, total: float | None = None, message: str | None = None) -> None:
    """Say, out of a tool that an agent runs, how far it has come: whoever reads the run sees a
    `ToolProgress`. Elsewhere it does nothing."""
    report = _report.get(None)
    if report is not None:
        report(done, total, message)


class _Work(Struct):
    """A whole call, and what is done about it."""

    call: Call
    task: asyncio.Task[None] | None = None
    begun: bool = False  # whether its function is what the task runs
    outcome: ToolOutcome | None = None


class ToolTasks:
    def __init__(self, channel: Channel, agent: Agent) -> None:
        self.failure: Exception | None = None  # why the stream was cancelled, where it was from here
        self._channel = channel
        self._agent = agent
        self._functions = [tool for tool in agent.tools if not isinstance(tool, Tool | Mapping)]
        self._by_hand = {tool_name(tool) for tool in agent.tools if isinstance(tool, Tool | Mapping)}
        self._work: dict[str, _Work] = {}  # by the id of the call
        self._agreed: dict[str, Any] = {}  # the arguments with which a call may be made, where it was changed
        self._keeper: asyncio.Task[None] | None = None
        self._unread: deque[ToolProgress] = deque()

    # -- what came of it -------------------------------------------------------------------------------

    @property
    def outcomes(self) -> list[ToolOutcome]:
        """Of the calls that stand."""
        results = self._channel.core.told.results
        return [
            replace(work.outcome, index=results[call_id].index if call_id in results else None)
            for call_id, work in list(self._work.items())  # which another thread may look at while calls come
            if work.outcome is not None
        ]

    def inherit(self, parent: ToolTasks, at: int) -> None:
        """Of a fork at this token: what came of a call that stands here is known, and nothing runs twice for
        it. Where the model was not told it yet, it is."""
        told = self._channel.core.told
        told.inherit(parent._channel.core.told, at)
        for work in parent._work.values():
            if work.outcome is not None and (work.call.end or 0) <= at:
                again = self._work[work.call.call_id] = _Work(work.call, outcome=work.outcome)
                place = told.results.get(work.call.call_id)
                # What was put in right there may have come behind the fork; where it did not, it is refused.
                if work.call.call_id not in told or (place is not None and place.index == at):
                    again.task = self._spawn(self._tell(again))

    # -- events ----------------------------------------------------------------------------------------

    def receive(self, event: Event) -> None:
        """The next event that is read. What it makes of calls is begun, or cancelled."""
        if isinstance(event, ToolProgress):
            self._unread.popleft()
        if not isinstance(event, Noted | _OTHERS):
            self._follow()
        if isinstance(event, Rewound | Snapshot):
            self._tell_again()

    def _tell_again(self) -> None:
        """What was told, and taken back without its call, or may have been: else it is refused."""
        told = self._channel.core.told
        for call_id, work in self._work.items():
            is_lost = call_id not in told or call_id in told.doubtful
            if work.outcome is not None and is_lost and not _runs(work):
                work.task = self._spawn(self._tell(work))

    def _follow(self) -> None:
        standing = {call.call_id: call for call in self._channel.core.spans.calls if call.whole}
        for call_id, work in list(self._work.items()):
            call = standing.get(call_id)
            if call is None or call.arguments != work.call.arguments:
                del self._work[call_id]
                if work.task is not None:
                    work.task.cancel()
        for call in standing.values() if not self._channel.ended else ():
            work = self._work.setdefault(call.call_id, _Work(call))
            if work.outcome is None and call.approval:
                self._have_approved(work)
            elif work.outcome is None and not work.begun and call.name not in self._by_hand:
                self._begin(work)

    def _begin(self, work: _Work) -> None:
        if work.task is not None:  # it asks for a yes, and somebody else has said it
            work.task.cancel()
        work.begun = True
        work.task = self._spawn(self._serve(work))

    def _have_approved(self, work: _Work) -> None:
        """Where nobody is to be asked it is waited for."""
        if self._agent.approve is not None and work.task is None:
            work.task = self._spawn(self._ask(work, self._agent.approve))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._cancel_in_the_end())
        return asyncio.create_task(work)

    async def _cancel_in_the_end(self) -> None:
        """Whoever ends the stream, and however: nobody waits for its tools any more."""
        while not self._channel.ended:
            await self._channel.wait()
        for work in self._work.values():
            if work.task is not None:
                work.task.cancel()

    # -- a call ----------------------------------------------------------------------------------------

    async def _ask(self, work: _Work, approve: Callable[[Call], Any]) -> None:
        """Have it approved, refused, or changed; then it comes again, and has been approved."""
        try:
            verdict = await _apart(self._verdict(work.call, approve))
            if self._stands(work):
                await self._judge(work, verdict)
        except RequestFinished:
            pass
        except Exception as error:  # noqa: BLE001 - whoever reads the run is told
            self._fail(error)

    async def _verdict(self, call: Call, approve: Callable[[Call], Any]) -> Any:
        with suppress(ValueError):  # it may be no JSON now
            if call.call_id in self._agreed and self._agreed[call.call_id] == call.parsed:
                return True
        waits = inspect.iscoroutinefunction(approve)
        verdict = approve(call) if waits else await in_thread(partial(approve, call))
        return await _own(verdict) if inspect.isawaitable(verdict) else verdict

    async def _judge(self, work: _Work, verdict: Any) -> None:
        request_id, call = self._channel.request_id, work.call
        if isinstance(verdict, Mapping):
            arguments = to_json(verdict)
            self._agreed[call.call_id] = from_json(arguments, dict)
            amend = Amend(request_id=request_id, call_id=call.call_id, arguments=arguments)
            if (await self._in_time(lambda: self._channel.request(amend, Injected))).count:
                return
            verdict = True  # nothing differs
        if verdict is True:
            with suppress(InvalidParams):  # it stands no more, or has its result from somebody else
                yes = Approve(request_id=request_id, call_id=call.call_id)
                await self._in_time(lambda: self._channel.request(yes, Approved))
        elif verdict is False or isinstance(verdict, str):
            why = REFUSED if verdict is False else verdict
            await self._settle(work, ToolOutcome(call=call, error=why))
        else:
            raise TypeError(
                f"`approve` returned {verdict!r}: a verdict is True, False, a text or other arguments"
            )

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._channel.abandon()
        self._channel.wake()  # where the connection is gone, no end of the stream tells of it

    async def _serve(self, work: _Work) -> None:
        outcome = await self._outcome(work.call)
        if self._stands(work):
            await self._settle(work, outcome)

    def _stands(self, work: _Work) -> bool:
        """Whether the call still is what this was about. Who reads slowly hears later that it was changed,
        and then it is begun with anew."""
        stands = self._channel.core.spans.has(work.call)
        if not stands:
            del self._work[work.call.call_id]
        return stands

    async def give(self, call: Call, content: object = None, error: str | None = None) -> None:
        """By hand: what runs for the call is cancelled. Where the server refuses it, it was not said, and
        what was said before stands."""
        told = None if error is not None else result_text(content)
        work = self._work.setdefault(call.call_id, _Work(call))
        if work.task is not None:
            work.task.cancel()
        before, work.outcome = work.outcome, ToolOutcome(call=call, content=told, error=error)
        self._channel.note(work.outcome)
        try:
            await self._say(work.call, work.outcome)
        except (RequestError, ConnectionLost):
            work.outcome = before
            if before is not None and call.call_id not in self._channel.core.told and not self._channel.ended:
                work.task = self._spawn(self._tell(work))  # as it was being told, or was to be
            raise

    async def _outcome(self, call: Call) -> ToolOutcome:
        loop = asyncio.get_running_loop()

        def report(done: float, total: float | None, message: str | None) -> None:
            noted = ToolProgress(call=call, done=done, total=total, message=message)
            loop.call_soon_threadsafe(self._note_progress, noted)  # functions that do not wait are in threads

        _report.set(report)
        try:
            result = await _apart(self._run(call), self._agent.tool_timeout_s)
            return ToolOutcome(call=call, content=result_text(result))
        except Exception as error:  # noqa: BLE001 - whatever it is, the model is told
            return ToolOutcome(call=call, error=_words(error))

    def _note_progress(self, told: ToolProgress) -> None:
        """Where nobody reads, the newest takes the place of the one before it."""
        if len(self._unread) == MOST_UNREAD:
            last = self._unread[-1]
            last.call, last.done, last.total, last.message = told.call, told.done, told.total, told.message
            return
        self._unread.append(told)
        self._channel.note(told)

    async def _run(self, call: Call) -> Any:
        """In a thread, unless it is known to wait: a slow function does not hold up the connection."""
        run = partial(run_call, call, self._functions)
        tool = next((one for one in self._functions if tool_name(one) == call.name), None)
        function = tool.function if isinstance(tool, JsonTool) else tool
        result = run() if inspect.iscoroutinefunction(function) else await in_thread(run)
        return await _own(result) if inspect.isawaitable(result) else result

    async def _settle(self, work: _Work, outcome: ToolOutcome) -> None:
        work.outcome = outcome
        self._channel.note(outcome)
        await self._tell(work)

    async def _tell(self, work: _Work) -> None:
        """Where it cannot be told, as a text too long, the model is told that."""
        assert work.outcome is not None, "it is told once there is one"
        refusal = await self._refusal(work.call, work.outcome)
        if refusal is not None:
            what = "error" if work.outcome.content is None else "result"
            work.outcome = ToolOutcome(call=work.call, error=f"the {what} cannot be told: {refusal}")
            refusal = await self._refusal(work.call, work.outcome)
        if refusal is not None:  # for that there is no room either
            self._fail(refusal)

    async def _refusal(self, call: Call, outcome: ToolOutcome) -> RequestError | None:
        """Why it cannot be told. What the stream does not take it has, or needs no more."""
        try:
            await self._in_time(lambda: self._say(call, outcome))
        except (RequestFinished, InvalidParams, ConnectionLost):
            return None
        except RequestError as refusal:
            return None if self._channel.ended else refusal
        return None

    async def _in_time(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What is refused for now alone, as where a minute's tokens are taken, is asked again: until the
        stream ends, and with it whatever runs here."""
        backoff = Backoff(math.inf)
        while True:
            try:
                return await ask()
            except RequestError as refusal:
                if not refusal.retryable or self._channel.ended:
                    raise
                now, after_s = asyncio.get_running_loop().time(), (refusal.retry_after_ms or 0) / 1000
            wait_s = backoff.wait_s(now, random.random(), after_s)
            assert wait_s is not None, "it never gives up"
            await asyncio.sleep(wait_s)

    async def _say(self, call: Call, outcome: ToolOutcome) -> None:
        """Where the connection was lost meanwhile nobody knows whether it was heard, and it is said again; so
        is what was heard and taken back by now."""
        told = {"content": outcome.content, "error": outcome.error}
        request_id = self._channel.request_id
        while True:
            result = frame(ToolResult, request_id=request_id, call_id=call.call_id, **told)
            try:
                await self._channel.request(result, Injected)
            except ConnectionLost:
                if self._channel.ended:
                    raise
            else:
                if call.call_id in self._channel.core.told:
                    return


async def _apart(asked: Coroutine[Any, Any, T], within_s: float | None = None) -> T:
    """What somebody's function comes to, in a task of its own: it may not end where it is cancelled, and may
    cancel its own task."""
    running = asyncio.create_task(asked)
    try:
        await asyncio.wait((running,), timeout=within_s)
        if not running.done():
            raise TimeoutError(f"it took longer than {within_s} s")
        if running.cancelled():  # by itself: whoever wants it no more cancels who waits here
            raise RuntimeError("it ended in CancelledError()")
        return running.result()
    finally:
        _let_go(running)


async def _own(awaited: Awaitable[Any]) -> Any:
    """What somebody's function comes to. Where it ends itself, as by waiting for a task that was cancelled,
    that is an error as in a thread, and does not end whoever called it."""
    try:
        return await awaited
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as ended:
        caller = asyncio.current_task()
        if isinstance(ended, asyncio.CancelledError) and caller is not None and caller.cancelling():
            raise  # it is the caller who is to end
        raise RuntimeError(f"it ended in {ended!r}") from ended


def _let_go(running: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more, nor wants to know what it still raises."""
    running.cancel()
    running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _words(error: Exception) -> str:
    """As Python prints them: the name of a file may have bytes in it that are no text, and an error may not
    know how to say itself."""
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - whatever it is
        words = ""
    return (words or type(error).__name__).encode(errors="backslashreplace").decode()


def _runs(work: _Work) -> bool:
    return work.task is not None and not work.task.done()
