"""A story: what clients say about a few streams, and what befalls these, drawn from a seed, until all have
come to their ends.

At any time an engine must have of a stream what another would be given of it, another gateway must build the
same of what engines keep, and any server of what the SDK begins it with; what was told must be what would be
told anew; and nothing may be complained of. In the end what was told must be what is, each frame must have
its answer, and nothing may be held for what is over.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from unittest import mock

from msgspec.structs import replace

from bench.reliability.story_accounts import Account
from bench.reliability.story_end import end
from bench.reliability.story_frames import Frames
from bench.reliability.story_readers import Listener
from bench.reliability.story_restarts import Elsewhere
from bench.reliability.story_world import Complaints, World
from midstream import protocol
from midstream.protocol import StreamFrame
from realtime.stream import params as stream_params
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.stream import Stream

ACTS = 150
STEERING = {
    "tool_result": 12, "amend": 8, "approve": 5, "call": 10, "text": 4, "messages": 4, "rewind": 6,
    "adjust": 6, "adjust_at": 3, "pause": 3, "resume": 6, "grant": 4, "cancel": 1.5,
}  # fmt: skip
COMING = {"start": 2, "fork": 3, "attach": 3, "start_again": 0.5}
HAPPENING = {
    "tick": 14, "part_of_a_tick": 10, "kill": 0.6, "revive": 3, "wait": 2, "leave": 0.7, "stall": 2,
    "look": 6,
}  # fmt: skip
WEIGHTS = STEERING | COMING | HAPPENING
OF_CALLS = ("tool_result", "amend", "approve")
LIVE = 3  # streams at a time, and one more that forks another


class Story:
    def __init__(self, seed: int, tell: Callable[[str], object] = lambda line: None) -> None:
        """`tell`: each line of it, as it happens."""
        self.accounts: dict[str, Account] = {}
        self._seeds = itertools.count(seed * 1000)  # of streams that ask for none
        self._tell = tell
        self._chance = chance = random.Random(seed)
        self._frames = Frames(chance)
        self.world = World(chance, self)
        self.elsewhere = Elsewhere(self.world.server)
        self._readers: dict[str, Listener] = {}  # by stream: who asked for it last
        self._complaints = Complaints()

    async def run(self) -> None:
        with mock.patch.object(stream_params, "_seed", self._seeds.__next__), self._complaints:
            for _ in range(ACTS):
                self._act()
                if self._chance.random() < 0.5:
                    await asyncio.sleep(0)
                if self._chance.random() < 0.1:
                    await self.world.until_texts_are_tokens()
                if self._chance.random() < 0.3:
                    await self.elsewhere.check(self.accounts.values(), self.world.find)
                assert not self._complaints.said, self._complaints.said
            self._tell("the end")
            await end(self)
            assert not self._complaints.said, self._complaints.said

    # -- what happens ------------------------------------------------------------------------------

    def _act(self) -> None:
        what = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        account = self._pick()
        if what in OF_CALLS and account is not None and not account.calls:
            what = self._chance.choice(["call", "tick"])  # there is none yet
        if what in HAPPENING:
            self._tell(what)
            getattr(self.world, what)()
        elif what == "start" or account is None:
            self._start()
        elif what in COMING:
            getattr(self, f"_{what}")(account)
        else:
            self.send(self._frames.steering(what, account), self._listener(account))

    def _pick(self) -> Account | None:
        """One of the last, mostly, and now and then one that has ended."""
        known = [account for account in self.accounts.values() if not account.unknown]
        if known and self._chance.random() < 0.04:
            return self._chance.choice(known)
        live = [account for account in known if account.live]
        return self._chance.choice(live[-LIVE:]) if live else None

    def _listener(self, account: Account) -> Listener:
        """Mostly who reads it."""
        reader = self._readers[account.name]
        if reader in self.world.listeners and self._chance.random() < 0.9:
            return reader
        return self._chance.choice(self.world.listeners)

    def send(self, frame: StreamFrame, listener: Listener) -> None:
        if isinstance(frame, protocol.Start | protocol.Attach):
            self._readers[frame.request_id] = listener
        arrives = self.world.answers.ask(frame, listener)
        self.accounts[frame.request_id].say(arrives)
        self._tell(f"{self.world.listeners.index(listener)} -> {frame}")
        listener.send(arrives)

    # -- what is heard -----------------------------------------------------------------------------

    def hear(self, stream: Stream, events: list[OutgoingEvent]) -> None:
        account, answers = self.accounts[stream.request_id], self.world.answers
        account.unknown = False  # it may be another start that began it than the one that was refused
        for event in events:
            self._tell(f"     <- {event}")
            if not isinstance(event, protocol.StreamEvent) or account.hear(event):
                answers.hear(event)
            for answer in (isinstance(event, protocol.Snapshot) and event.answered) or ():
                answers.hear(answer, again=True)
        account.check_so_far(stream)
        if self._chance.random() < 0.7:
            self.acknowledge(account, stream)

    def hear_refusal(self, frame: StreamFrame, error: protocol.Error) -> None:
        self._tell(f"     <- {error}")
        account = self.accounts[frame.request_id]
        if isinstance(frame, protocol.Attach):
            account.remember()
        elif isinstance(frame, protocol.Start):
            account.unknown = account.core.seq < 0

    def acknowledge(self, account: Account, stream: Stream) -> None:
        self.world.server.hub.acknowledge(stream, stream.outbox.sent, account.core.seq)
        self.world.server.hub.flush()

    # -- streams that come -------------------------------------------------------------------------

    @property
    def _live(self) -> int:
        return sum(account.live for account in self.accounts.values())

    def _start(self) -> None:
        if self._live < LIVE:
            self._begin(self._frames.starts.start(str(len(self.accounts))))

    def _fork(self, account: Account) -> None:
        if self._live <= LIVE:
            self._begin(self._frames.starts.fork(str(len(self.accounts)), account))

    def _begin(self, start: protocol.Start) -> None:
        account = self.accounts[start.request_id] = Account(start)
        account.guarded = start.fork is not None and self.accounts[start.fork.request_id].guarded
        self.send(start, self._chance.choice(self.world.listeners))

    def _start_again(self, account: Account) -> None:
        self.send(replace(account.start), self._listener(account))

    def _attach(self, account: Account) -> None:
        frame = protocol.Attach(request_id=account.name, after=account.core.seq, epoch=account.core.epoch)
        match self._chance.choice(["knowing", "knowing", "forgetful", "of another epoch", "behind"]):
            case "forgetful" if account.name not in self.world.waiting_for_tokens:
                account.forget()
                frame.after, frame.epoch = -1, 0
            case "of another epoch":
                frame.epoch += 1
            case "behind":
                frame.after = max(-1, frame.after - self._chance.randint(0, 9))
        self.send(frame, self._chance.choice(self.world.listeners))
