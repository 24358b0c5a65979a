"""Recording: what clients ask of their streams and what comes of it, as lines of a file.

A stream's recorder sees the frames that steer it and its events, and writes what took effect, at the index
that the server said. The format is `record_format`'s; who is recorded is the client's business.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from midstream import protocol, record_format
from midstream.forked_record import lines_of_fork
from midstream.guard_acts import GuardActs
from midstream.protocol import AnyPauseReason, Frame, StreamEvent
from midstream.record_format import Line, Record, RecordError, encode_line, parse_records

SNAPSHOT = "the connection was lost, and the server had forgotten what happened meanwhile"
ELSEWHERE = "another connection injected something here"
FORK = "the stream is a fork, which cannot be played without the one that it forks"


def read_records(file: str | Path) -> list[Record]:
    """Every record of a file, for `Client.replay`. Raises RecordError where the file is none."""
    try:
        return parse_records(Path(file).read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"byte {error.start} is not UTF-8") from None


class Recording:
    """A file that is being recorded to, until `close` or the end of its `with` block. What is told of a
    stream after that is not recorded."""

    def __init__(self, file: str | Path, on_close: Callable[[], None]) -> None:
        self._file = Path(file).open("wb", buffering=0)  # noqa: SIM115 - closed in `close`
        self._on_close = on_close
        self._numbers = itertools.count(1)
        self._by_request = dict[str, int]()  # the stream's number
        self._failure: OSError | None = None
        self._writing = threading.Lock()  # a synchronous client's streams are read in a thread of its own

    def recorder(self, start: protocol.Start) -> StreamRecorder:
        """For a stream that is about to be started. Its tokens come with ids and log probabilities."""
        start.return_tokens = True
        if not isinstance(start.params.logprobs, int):
            start.params.logprobs = 0
        number = next(self._numbers)
        self._by_request[start.request_id] = number
        return StreamRecorder(number, start, self._write, self._so_far)

    def _so_far(self, request_id: str) -> Record | None:
        """What is recorded of a stream: a fork's begins with it. Others' lines, of which there may be a
        million, are only looked at."""
        its = b'"stream":%d' % self._by_request.get(request_id, 0)
        try:
            with Path(self._file.name).open("rb") as lines:
                text = b"".join(line for line in lines if line.split(b",", 2)[1:2] == [its])
            return parse_records(text.decode(errors="replace"))[0]  # the last may be cut off
        except (RecordError, OSError):
            return None

    def _write(self, line: Line) -> None:
        """A full disk is no reason to lose the stream: whoever closes the recording hears of it."""
        data = encode_line(line)
        with self._writing:
            if self._file.closed or self._failure is not None:
                return
            try:
                self._file.write(data)
            except OSError as error:
                error.filename = self._file.name
                self._failure = error

    def close(self) -> None:
        """Stop recording. Raises OSError if something could not be written. May be called again."""
        with self._writing:
            if self._file.closed:
                return
            self._on_close()
            self._file.close()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class StreamRecorder:
    """One stream's: frames and events in, lines out. Pure."""

    def __init__(
        self,
        number: int,
        start: protocol.Start,
        write: Callable[[Line], None],
        so_far: Callable[[str], Record | None] = lambda request_id: None,
    ) -> None:
        """`so_far`: what is recorded of the stream of this request id."""
        self._number = number
        self._start = start
        self._write = write
        self._so_far = so_far
        self._forked: protocol.Started | None = None  # until it is known what it begins with
        self._frames: list[Frame] = []  # that were sent, and have no answer yet
        self._end = 0  # of the output that has come and stands
        self._paused: AnyPauseReason | None = None
        self._calls: list[str] = []  # the ids of those that stand
        self._ends: dict[str, int] = {}  # of those that were whole
        self._results: dict[str, protocol.ToolResult] = {}  # by call, that wait and have no effect yet
        self._guard_acts = GuardActs()
        self._behind_act: list[Line] = []  # what changes where a guard is about to act
        self._lost = False

    def sent(self, frame: Frame) -> None:
        self._frames.append(frame)

    def refused(self, frame: Frame) -> None:
        self._frames = [one for one in self._frames if one is not frame]

    def sent_again(self, results: list[protocol.ToolResult]) -> None:
        """Before all that has no answer."""
        self._frames[:0] = results

    def receive(self, event: StreamEvent) -> None:
        """The stream's next event."""
        if not self._lost:
            self._receive(event, self._answered(event.ref))

    def _answered(self, ref: str | None) -> Frame | None:
        """The frame that has its answer. Whatever was asked before it will not be answered any more."""
        at = next((at for at, frame in enumerate(self._frames) if ref is not None and frame.ref == ref), None)
        if at is None:
            return None
        frame, self._frames = self._frames[at], self._frames[at + 1 :]
        return frame

    def _receive(self, event: StreamEvent, frame: Frame | None) -> None:
        number = self._number
        match event:
            case protocol.Started() if self._start.fork is not None:
                self._forked = event
            case protocol.Started():
                self._write_start(event)
            case protocol.Token():
                self._write_tokens(event)
            case protocol.ToolCall(call_id=call_id):
                self._calls.append(call_id)
            case protocol.ToolCallDone(call_id=call_id, end=end):
                self._ends[call_id] = end
            case protocol.Snapshot() if self._forked is not None:
                self._begin_fork(self._forked, event)
            case protocol.Snapshot():
                self._lose(SNAPSHOT)
            case protocol.Final(index=index, finish_reason=reason, stop_reason=stop):
                self._write(
                    record_format.Final(stream=number, index=index, finish_reason=reason, stop_reason=stop)
                )
            case _:
                self._receive_steering(event, frame)

    def _receive_steering(self, event: StreamEvent, frame: Frame | None) -> None:
        number, act = self._number, self._guard_acts.receive(event)
        if act is not None:
            assert act.do != "tell", "that is no act"
            self._write(record_format.Guard(stream=number, index=act.index, name=act.name, do=act.do))
            for line in self._behind_act:
                self._write(line)
            self._behind_act.clear()
        match event:
            case protocol.Adjusted(index=index):
                params = frame.params if isinstance(frame, protocol.Adjust) else event.params
                adjust = record_format.Adjust(stream=number, index=index, params=params)
                about = self._guard_acts.pending
                if about is not None and about.index <= index:  # what it acts upon was sampled without
                    self._behind_act.append(adjust)
                else:
                    self._write(adjust)
            case protocol.Injected(reason=None):
                self._write_injection(event, frame)
            case protocol.Rewound(index=index):
                self._end = index
                del self._calls[event.tool_calls :]
                stand = [call for call in self._calls if self._ends.get(call, index) <= index]
                self._results = {call: one for call, one in self._results.items() if call in stand}
                if act is None and (event.ref is not None or self._guard_acts.pending is None):
                    self._write(record_format.Rewind(stream=number, index=index))
            case protocol.Paused():
                self._write_pause(event, frame)
            case protocol.Resumed():
                self._write_resumption(event, frame)

    def _write_start(self, event: protocol.Started) -> None:
        self._write(
            record_format.Start(
                stream=self._number,
                record=record_format.VERSION,
                request_id=event.request_id,
                model=event.model,
                fingerprint=event.fingerprint,
                prompt=self._start.prompt,
                messages=self._start.messages,
                fork=self._start.fork,
                tools=self._start.tools,
                tool_choice=self._start.tool_choice,
                parallel_tool_calls=self._start.parallel_tool_calls,
                on_tool_call=self._start.on_tool_call,
                prompt_tokens=event.prompt_tokens,
                params=event.params,
            )
        )

    def _begin_fork(self, started: protocol.Started, begun: protocol.Snapshot) -> None:
        assert self._start.fork is not None
        self._forked = None
        parent = self._so_far(self._start.fork.request_id)
        on_tool_call = self._start.on_tool_call
        lines = parent and lines_of_fork(
            parent, begun.index, begun.tokens or (), started.params, on_tool_call, self._number
        )
        if not lines:
            self._write_start(started)
            self._lose(FORK)
            return
        for line in lines:
            self._write(line)
        known = [
            line.fingerprint for line in lines if isinstance(line, record_format.Start | record_format.Moved)
        ]
        if started.fingerprint != known[-1]:
            self.moved(begun.index, started.fingerprint)
        self._end = begun.index
        self._calls = [call.call_id for call in begun.tool_calls]
        self._ends = {call.call_id: call.end for call in begun.tool_calls if call.end is not None}

    def _write_tokens(self, event: protocol.Token) -> None:
        self._end = event.index + event.count
        logprobs = None if event.logprobs is None else [one.logprob for one in event.logprobs]
        tokens = record_format.Tokens(
            stream=self._number,
            index=event.index,
            text=event.delta,
            tokens=event.tokens or [],
            logprobs=logprobs,
        )
        self._write(tokens)

    def _write_injection(self, event: protocol.Injected, frame: Frame | None) -> None:
        if isinstance(frame, protocol.ToolResult):
            self._results[frame.call_id] = frame
        if isinstance(frame, protocol.ToolResult) or (event.ref is None and self._results):
            if event.count:
                self._write_results(event.index)
            return
        if isinstance(frame, protocol.Amend):
            self._write_amendment(event, frame)
            return
        if not isinstance(frame, protocol.Inject):
            self._lose(ELSEWHERE)
            return
        for message in frame.messages or ():  # its call has a result now, and none that waits is put in
            self._results.pop(message.tool_call_id or "", None)
        self._write(
            record_format.Inject(
                stream=self._number,
                index=event.index,
                text=frame.text,
                messages=frame.messages,
                tokens=frame.tokens,
                grammar=frame.grammar,
            )
        )

    def _write_results(self, index: int) -> None:
        """They go in together, whenever each was told."""
        results, self._results = self._results, {}
        for call_id, result in results.items():
            self._write(
                record_format.ToolResult(
                    stream=self._number,
                    index=index,
                    call=self._calls.index(call_id),
                    content=result.content,
                    error=result.error,
                )
            )

    def _write_amendment(self, event: protocol.Injected, frame: protocol.Amend) -> None:
        if event.count:  # else nothing differed
            self._write(
                record_format.Amend(
                    stream=self._number,
                    index=event.index,
                    call=self._calls.index(frame.call_id),
                    arguments=frame.arguments,
                    partial=frame.partial,
                )
            )

    def _write_pause(self, event: protocol.Paused, frame: Frame | None) -> None:
        self._paused = event.reason
        if event.reason == "client":
            kv = frame.kv if isinstance(frame, protocol.Pause) else "hold"
            self._write(record_format.Pause(stream=self._number, index=event.index, kv=kv))
        elif event.reason == "tool_call":
            self._write(record_format.Waits(stream=self._number, index=event.index))

    def _write_resumption(self, event: protocol.Resumed, frame: Frame | None) -> None:
        if event.fingerprint is not None:
            self.moved(event.index, event.fingerprint)
        if self._paused in ("client", "guard") or frame is not None:
            self._write(record_format.Resume(stream=self._number, index=event.index))
        self._paused = None

    def moved(self, index: int, fingerprint: str | None) -> None:
        """It goes on elsewhere, where it was started again."""
        if fingerprint is not None and not self._lost:
            line = record_format.Moved(stream=self._number, index=index, fingerprint=fingerprint)
            self._write(line)

    def _lose(self, why: str) -> None:
        self._lost = True
        self._write(record_format.Lost(stream=self._number, index=self._end, why=why))
