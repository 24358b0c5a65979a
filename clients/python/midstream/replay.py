"""Replay: plays a record on a server, each control at the very index at which it took effect, and compares.

Credit makes the position exact: the stream is granted the output up to the next control and stands there,
with nothing decoded behind it, when the control is sent. Grants cannot be taken back, so behind a rewind it
would run on to where it was granted before. So it is paused when it is rewound, and where it has to stand at
an index before that it runs past it and is taken back; meanwhile it must not come to an end that the record
steered it away from, and `ONWARD` keeps it from ending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from msgspec import Struct, UnsetType, to_builtins
from msgspec.structs import asdict

from midstream.errors import MidstreamError, RequestFinished
from midstream.protocol import MAX_INDEX, Guarded, Params
from midstream.record_format import (
    Adjust,
    Amend,
    Control,
    Final,
    Forked,
    Guard,
    Inject,
    Line,
    Moved,
    Pause,
    Record,
    Resume,
    Rewind,
    Tokens,
    ToolResult,
    Waits,
)

if TYPE_CHECKING:
    from midstream.client import Client
    from midstream.spans import Call
    from midstream.stream import Stream
    from midstream.stream_core import Chunk

TOP = 5  # likely tokens that a replay asks for: so the recorded one is mostly among them
ONWARD: dict[str, Any] = {"ignore_eos": True, "stop": [], "max_tokens": MAX_INDEX}


class ReplayError(MidstreamError):
    """The server did not do what the record asks for, so that there is nothing to compare."""


class OutputToken(Struct, frozen=True):
    """`text` is what became whole with it, where that is known of it alone."""

    token: int
    text: str | None = None
    logprob: float | None = None


class Difference(Struct, frozen=True, kw_only=True):
    """The first token that is another. None stands for an end before it."""

    index: int
    recorded: OutputToken | None
    replayed: OutputToken | None
    recorded_logprob_here: float | None = None  # where it is among the most likely


class Replay(Struct, frozen=True, kw_only=True):
    """What came of a replay: it is equal if there is no difference."""

    tokens: int  # that were compared
    difference: Difference | None
    recorded_fingerprints: list[str]
    replayed_fingerprints: list[str]
    recorded_prompt_tokens: int
    replayed_prompt_tokens: int

    @property
    def equal(self) -> bool:
        return self.difference is None

    @property
    def same_fingerprint(self) -> bool:
        """Whether both were computed by what promises equal tokens."""
        recorded, replayed = self.recorded_fingerprints, self.replayed_fingerprints
        return bool(recorded and replayed) and len({*recorded, *replayed}) == 1


async def replay(client: Client, record: Record) -> Replay:
    """Raises a MidstreamError where it cannot be played: the server refuses it, or is not there."""
    start = record.start
    if start.fork is not None:
        raise ReplayError("it is a fork, which cannot be played without the stream that it forks")
    content: Any = {"prompt": start.prompt, "messages": to_builtins(start.messages)}
    options: Any = {name: value for name, value in content.items() if value is not None}
    if start.tools:
        options |= {"tools": start.tools, "tool_choice": start.tool_choice}
        options |= {"parallel_tool_calls": start.parallel_tool_calls, "on_tool_call": start.on_tool_call}
    options |= _given(start.params) | {"logprobs": TOP}
    stream = await client.start(window=1, credit={"limit": 0}, return_tokens=True, **options)
    player = _Player(client, stream, record)
    try:
        return await player.play()
    finally:
        await player.leave()


# -- what is to be played --------------------------------------------------------------------------


class _Step(NamedTuple):
    """A control, or the end, and the output before it: that from `begin` on, which no rewind has cut."""

    control: Control | Waits | Guard | Final | None
    begin: int
    output: list[OutputToken]
    place: int  # where the stream stood, as its reader knows

    @property
    def ends_by_itself(self) -> bool:
        final = self.control
        return isinstance(final, Final) and (
            final.finish_reason == "stop" or (final.finish_reason == "length" and final.stop_reason is None)
        )

    def token(self, index: int) -> OutputToken | None:
        """The output token there, as far as it was told."""
        at = index - self.begin
        return self.output[at] if 0 <= at < len(self.output) else None


def _steps(lines: Iterable[Line]) -> list[_Step]:
    """All of them at once: where a control took effect ahead of what was sent, its output came later."""
    steps = []
    begin, output, final = 0, list[OutputToken](), None
    for line in lines:
        match line:
            case Tokens():
                output.extend(_tokens(line))
            case Rewind(index=index) | Guard(index=index):
                stood = begin + len(output)
                steps.append(_Step(line, begin, output, max(index, stood)))
                if index <= stood:  # else a guard has looked ahead, and nothing that was sent is void
                    begin, output = index, []
            case Pause() | Resume() | Adjust() | Inject() | ToolResult() | Amend() | Forked() | Waits():
                steps.append(_Step(line, begin, output, line.index))
            case Final():
                final = line
    return [*steps, _Step(final, begin, output, begin + len(output))]


def _tokens(line: Tokens) -> Iterator[OutputToken]:
    text = line.text if len(line.tokens) == 1 else None
    for at, token in enumerate(line.tokens):
        yield OutputToken(token, text, None if line.logprobs is None else line.logprobs[at])


def _given(params: Params) -> dict[str, Any]:
    return {name: value for name, value in asdict(params).items() if not isinstance(value, UnsetType)}


# -- playing it ------------------------------------------------------------------------------------


class _Ended(Exception):
    """The stream has come to its end, or to a difference: there is nothing more to play."""


class _Player:
    """Between what it does the stream stands: it is paused, or has no credit left."""

    def __init__(self, client: Client, stream: Stream, record: Record) -> None:
        self._client = client
        self._stream = stream
        self._record = record
        self._params = _given(stream.params) | _given(record.start.params)  # in force, as the record has it
        self._granted = 0
        self._floor = 0  # a control took effect here: what stands before it is not taken back
        self._paused = False  # by the record
        self._held = False  # by us
        self._onward = False
        self._acted = 0  # acts of guards that the record has had
        self._compared = 0
        self._difference: Difference | None = None
        self._fingerprints: list[str] = []

    async def leave(self) -> None:
        """There is nothing more to play."""
        async with self._stream:
            pass

    async def play(self) -> Replay:
        try:
            steps = _steps(self._record.lines)
            self._last = steps[-1]
            for step, following in zip(steps, [*steps[1:], steps[-1]], strict=True):
                self._following = following
                try:
                    await self._play(step)
                except RequestFinished:
                    self._end_early(step)
        except _Ended:
            pass
        return self._outcome()

    async def _play(self, step: _Step) -> None:
        if isinstance(step.control, Guard):
            await self._have_guarded(step.control, step)
            return
        if isinstance(step.control, Control | Waits):
            await self._stand_at(max(step.place, self._floor), step)
        if isinstance(step.control, Waits):
            await self._end_turn(step)
        elif isinstance(step.control, Control):
            await self._apply(step.control)
        else:
            await self._finish(step)

    async def _stand_at(self, place: int, step: _Step) -> None:
        if self._stream.consumed < place:
            await self._advance(place, step)
        await self._take_back(place)

    async def _advance(self, place: int, step: _Step) -> None:
        """Go on, to this place or to where it was granted before."""
        await self._set_onward(place < self._granted)
        if self._paused or self._held or self._waits:  # a beginning of a call may have had it go on
            await self._stream.resume()
        self._grant(place)
        while self._stream.consumed < self._granted and (chunk := await self._next(step)) is not None:
            self._compare(chunk, place, step)
        self._held = False
        if self._paused and self._stream.pause_reason != "guard":
            await self._stream.pause()

    def _grant(self, limit: int) -> None:
        if limit > self._granted:
            self._granted = limit
            self._stream.grant(limit)

    async def _take_back(self, index: int) -> None:
        if self._stream.consumed > index:
            await self._hold()
            await self._rewind(index)

    async def _rewind(self, index: int) -> int:
        """Where it had run on, what guards did behind that token is void as well."""
        effective = await self._stream.rewind(index)
        acts = self._stream.channel.core.acts
        acts[self._acted :] = [act for act in acts[self._acted :] if act.index <= index]
        return effective

    async def _hold(self) -> None:
        """What only waits for results would go on by itself, where these are told or its calls taken back."""
        if self._stream.pause_reason not in ("client", "guard"):
            await self._stream.pause()
        self._held = self._held or not self._paused

    async def _set_onward(self, onward: bool) -> None:
        if onward != self._onward:
            self._onward = onward
            await self._stream.adjust(**ONWARD if onward else {name: self._params[name] for name in ONWARD})

    async def _end_turn(self, step: _Step) -> None:
        """The model ends its turn behind its calls, here or behind what it had decoded ahead of what was
        sent, and waits, as it did then."""
        stream = self._stream
        await self._set_onward(False)
        if self._paused or self._held:
            await stream.resume()
        self._held = False
        self._grant(stream.consumed + 1)
        while (chunk := stream.try_next()) is not None or not self._waits:
            if chunk is not None:
                self._compare(chunk, MAX_INDEX, step)
                self._grant(stream.consumed + 1)
            elif stream.final is not None or stream.pause_reason == "guard":
                self._end_early(step)
            else:
                await stream.channel.wait()
        self._floor = stream.consumed

    async def _have_guarded(self, line: Guard, step: _Step) -> None:
        """The guard acts by itself, as it did, with the first token that nobody is told, and the stream goes
        on."""
        acts, stream = self._stream.channel.core.acts, self._stream
        await self._set_onward(False)
        if len(acts) == self._acted:
            await self._go_on_until_guarded(line, step)
        act, self._acted = acts[self._acted], self._acted + 1
        if not _is(act, line):
            raise ReplayError(
                f'where "{line.name}" acted at token {line.index} "{act.name}" does at {act.index} here'
            )
        stands = min(one.index for one in [act, *acts[self._acted :]])
        while stream.consumed < stands and (chunk := stream.try_next()) is not None:
            self._compare(chunk, stands, step)
        self._floor = act.index
        if act.do == "pause":
            self._paused, self._held = True, False
        elif act.do == "rewind" and not isinstance(self._following.control, Guard):
            await self._stand_behind(act)

    async def _stand_behind(self, act: Guarded) -> None:
        """It runs on, to where it was granted, and is steered before, unless it ends there by itself."""
        acts, stream, following = self._stream.channel.core.acts, self._stream, self._following
        if following.place >= self._granted or following.ends_by_itself:
            return
        try:
            await self._hold()
        except RequestFinished:
            self._end_early(following)
        if stream.index > act.index and all(more.index > act.index for more in acts[self._acted :]):
            await self._rewind(act.index)

    async def _go_on_until_guarded(self, line: Guard, step: _Step) -> None:
        stream = self._stream
        if self._is_paused_again(line):
            await stream.pause()  # to go on from that is to let nothing through
        if self._paused or self._held:
            await stream.resume()
            self._held = False
        while len(stream.channel.core.acts) == self._acted:
            self._grant(stream.consumed + 1)
            if (chunk := stream.try_next()) is not None:
                self._compare(chunk, step.place, step)  # what it takes back was perhaps never told
            elif stream.final is not None or self._waits:
                self._end_early(step)
            else:
                await stream.channel.wait()

    def _is_paused_again(self, control: object) -> bool:
        """Whether the guard that has paused it does so once more: whoever went on, before hearing of that or
        behind a pause of a client's, had let nothing through."""
        if self._stream.pause_reason != "guard" or not isinstance(control, Guard):
            return False
        return self._acted > 0 and _is(self._stream.channel.core.acts[self._acted - 1], control)

    @property
    def _waits(self) -> bool:
        """Whether it stands until results are told; where all were, it goes on by itself."""
        return self._waits_at(self._stream.index)

    def _waits_at(self, index: int) -> bool:
        """The same where output from `index` on is void."""
        calls, told = self._stream.calls, self._stream.channel.core.told
        missing = any(call.whole and (call.end or 0) <= index and call.call_id not in told for call in calls)
        return self._stream.pause_reason == "tool_call" and missing

    async def _apply(self, control: Control) -> None:
        effective = await self._steer(control)
        if effective != self._stream.consumed:
            name = type(control).__name__.lower()
            raise ReplayError(f"the {name} at token {control.index} took effect at token {effective} here")
        if isinstance(control, Adjust | Inject | ToolResult | Amend | Forked):
            self._floor = effective

    async def _steer(self, control: Control) -> int:
        """Send it; the index at which it took effect."""
        stream = self._stream
        match control:
            case Pause(kv=kv):
                return await self._pause(kv)
            case Resume():
                return await self._resume()
            case Adjust(params=params):
                changed = _given(params)
                self._params |= changed
                kept = {"logprobs", *(ONWARD if self._onward else ())}
                sent: Any = {name: value for name, value in changed.items() if name not in kept}
                return await stream.adjust(**sent)
            case Inject(text=text, messages=messages, tokens=tokens, grammar=grammar):
                return await stream.inject(text=text, messages=messages, tokens=tokens, grammar=grammar)
            case ToolResult():
                return await self._tell(control)
            case Amend():
                return await self._amend(control)
            case Rewind(index=index):
                self._floor = index
                if index < self._granted and not self._waits_at(index):
                    await self._hold()
                return await self._rewind(index)
            case Forked():
                return await self._fork(control)

    async def _pause(self, kv: Literal["hold", "release"]) -> int:
        """Not where a guard's has come first here, or the record has let through what that has found: to go
        on is to let it through."""
        stream, self._paused = self._stream, True
        comes = len(stream.channel.core.acts) > self._acted
        if stream.pause_reason == "guard" and (comes or self._held):
            return stream.consumed
        self._held = False
        return await stream.pause(kv=kv)

    async def _fork(self, forked: Forked) -> int:
        """A fork runs, whatever its stream does, which may have ended here, and has from it what guards have
        let by."""
        if self._held and not self._is_paused_again(self._following.control):
            await self._stream.resume()
        self._note_fingerprint()
        place, changed = self._stream.consumed, _given(forked.params)
        options: Any = {name: self._params[name] for name in (*ONWARD, "seed")} | changed | {"logprobs": TOP}
        options |= {"on_tool_call": forked.on_tool_call, "credit": {"limit": place}, "return_tokens": True}
        async with self._stream as other:
            self._stream = await self._client.fork(other, at=place, window=1, **options)
        if place:
            await self._stream.next()  # what it begins with
        self._params |= changed
        self._granted, self._acted = place, 0
        self._paused = self._held = self._onward = False
        return place

    async def _tell(self, result: ToolResult) -> int:
        """Where it goes on with that it is held, and taken back to where it stood: whatever else came at the
        same token is done before."""
        stream, place = self._stream, self._stream.consumed
        await self._set_onward(place < self._granted)
        effective = await stream.tool_result(self._call(result), result.content, error=result.error)
        if place < self._granted and not self._waits:
            await self._hold()
            if stream.index > place:
                await self._rewind(place)
        return effective

    async def _amend(self, amend: Amend) -> int:
        if self._stream.consumed < self._granted:
            await self._hold()
        return await self._stream.amend(self._call(amend), amend.arguments, partial=amend.partial)

    def _call(self, control: ToolResult | Amend) -> Call:
        calls = self._stream.calls
        if control.call >= len(calls):
            raise ReplayError(
                f"what is said at token {control.index} is about call {control.call}, and {len(calls)} stand"
            )
        return calls[control.call]

    async def _resume(self) -> int:
        """Where it would run on at once, it is still held until it is to go on."""
        self._held = self._held or self._stream.consumed < self._granted
        self._paused = False
        return self._stream.consumed if self._held else await self._stream.resume()

    async def _finish(self, step: _Step) -> None:
        """Its own end is awaited; where it was ended from outside, or nobody knows, it is ended there."""
        if step.ends_by_itself:
            await self._set_onward(False)
            self._grant(MAX_INDEX)
            if self._paused or self._held:
                await self._stream.resume()
            while (chunk := await self._next(step)) is not None:
                self._compare(chunk, MAX_INDEX, step)
            self._end_early(step)
        elif self._stream.consumed < step.place:
            await self._advance(step.place, step)

    # -- comparing -------------------------------------------------------------------------------------

    async def _next(self, step: _Step) -> Chunk | None:
        """None where a guard has paused it, as the record does not."""
        while (chunk := self._stream.try_next()) is None:
            if self._stream.final is not None or self._waits:
                self._end_early(step)
            if self._stream.pause_reason == "guard":
                return None
            await self._stream.channel.wait()
        return chunk

    def _end_early(self, step: _Step) -> NoReturn:
        """The stream is over, which is as it should be behind the last token that stands of the record,
        whatever took effect there before its end was told."""
        end, last = self._stream.consumed, self._last
        if last.output is not step.output or end < last.place:
            self._difference = Difference(index=end, recorded=step.token(end), replayed=None)
        raise _Ended

    def _compare(self, chunk: Chunk, place: int, step: _Step) -> None:
        """Up to `place`: what is behind it will be taken back."""
        for at in range(min(chunk.count, place - chunk.index)):
            index, replayed = chunk.index + at, _token(chunk, at)
            recorded = step.token(index)
            if recorded is None and not step.ends_by_itself:
                continue  # it was decoded, and never told
            if recorded is None or recorded.token != replayed.token:
                here = _logprob_here(chunk, at, recorded)
                self._difference = Difference(
                    index=index, recorded=recorded, replayed=replayed, recorded_logprob_here=here
                )
                raise _Ended
            self._compared += 1
        self._note_fingerprint()

    def _note_fingerprint(self) -> None:
        fingerprint = self._stream.fingerprint
        if fingerprint is not None and fingerprint not in self._fingerprints:
            self._fingerprints.append(fingerprint)

    def _outcome(self) -> Replay:
        self._note_fingerprint()
        start = self._record.start
        moved = [line.fingerprint for line in self._record.lines if isinstance(line, Moved)]
        return Replay(
            tokens=self._compared,
            difference=self._difference,
            recorded_fingerprints=[start.fingerprint, *moved] if start.fingerprint is not None else moved,
            replayed_fingerprints=self._fingerprints,
            recorded_prompt_tokens=start.prompt_tokens,
            replayed_prompt_tokens=self._stream.prompt_tokens or 0,
        )


def _is(act: Guarded, line: Guard) -> bool:
    return (act.name, act.do, act.index) == (line.name, line.do, line.index)


def _token(chunk: Chunk, at: int) -> OutputToken:
    if chunk.tokens is None:
        raise ReplayError("the server does not tell its tokens, which were asked for")
    logprob = chunk.logprobs[at].logprob if chunk.logprobs else None
    return OutputToken(chunk.tokens[at], chunk.text if chunk.count == 1 else None, logprob)


def _logprob_here(chunk: Chunk, at: int, recorded: OutputToken | None) -> float | None:
    if recorded is None or not chunk.logprobs:
        return None
    return dict(chunk.logprobs[at].top).get(recorded.token)
