"""Streams of stories begun again elsewhere, with the past that the SDK has kept of them, as by a client whose
server is gone for good: what comes of it must be what stands.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

from bench.reliability.story_accounts import Account
from realtime.stream.owner import Owner
from realtime.stream.stream import Stream
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_server import SimulatedServer
from tests.fakes.unhurried_pool import UnhurriedPool

NO_LIMIT = 1_000_000
TURNS = 40  # of the event loop, in which its texts have become tokens

NOBODY = Owner(0, 0)


class Elsewhere:
    """Another server, whose engine computes nothing."""

    def __init__(self, like: SimulatedServer) -> None:
        self.begun = 0  # streams there
        self._tenants = itertools.count()
        self._server = SimulatedServer(
            like.size, tokenizer=like._tokenizer, window=like.window, max_streams=NO_LIMIT
        )
        self._server.hub._long_texts._pool = UnhurriedPool(random.Random(0))

    async def check(self, accounts: Iterable[Account], find: Callable[[str], Stream | None]) -> None:
        for account in accounts:
            stream = find(account.name) if account.live else None
            if stream is not None:
                await self._begin(account, stream)

    async def _begin(self, account: Account, stream: Stream) -> None:
        """Where all is told of it, and the SDK can say what begins it again."""
        under_way = stream._commands.waiting or stream.outbox.waiting or stream.reading
        if stream.concluded or under_way or account.past is None or not account.has_heard_all(stream):
            return
        core = account.core
        start = account.past.start(account.start, core.tokens, core.index, len(core.text), core.spans)
        if start is None:
            return
        stands = _seen_of(stream)
        listener = RecordingListener(self._server, tenant=f"tenant {next(self._tenants)}")
        listener.send(start)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not listener.errors, f"stream {account.name} is not begun again: {listener.errors}"
        again = self._server.hub.streams[-1]
        began = _seen_of(again)
        differs = {what: (stands[what], began[what]) for what in stands if stands[what] != began[what]}
        assert not differs, f"stream {account.name} as it stands, and begun again: {differs}"
        self.begun += 1


def _seen_of(stream: Stream) -> dict[str, Any]:
    """All that is of its content: what an engine would be given, and what was read of it."""
    output = stream.output
    submit = stream.context.submission(
        0, credit=0, priority=0, owner=NOBODY, paused=False, hold_at_eos=False, yields=False, keep=None
    )
    return {
        "tokens": submit.tokens,
        "injections": submit.injections,
        "grammar": submit.grammar_starts,
        "sampling": submit.sampling,
        "parameters": stream.context.params,
        "text": output.text(len(output), flushed=False),
        "reasoning": output.reasoning(),
        "calls": [
            (call.call_id, call.name, call.index, call.end, "".join(call.arguments), call.answered)
            for call in output.calls
        ],
    }
