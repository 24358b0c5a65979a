"""The end of a story: engines live, connections read, everything is granted and let through; and when all
streams have ended, what was told of them must be what they are.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from bench.reliability.story_accounts import Account
from bench.reliability.story_readers import Listener
from bench.reliability.story_world import World
from midstream import protocol
from midstream.protocol import Params, StreamFrame
from realtime.stream.stream import Stream

ROUNDS, CANCELLED = 400, 200  # in which all must end; those that have not by then are cancelled


class Told(Protocol):
    """A story that was told so far."""

    world: World
    accounts: dict[str, Account]

    def send(self, frame: StreamFrame, listener: Listener) -> None: ...

    def acknowledge(self, account: Account, stream: Stream) -> None: ...


async def end(story: Told) -> None:
    world, accounts = story.world, story.accounts.values()
    world.revive()
    for listener in world.listeners:
        listener.ready = True
        listener.flush()
    await world.until_texts_are_tokens()
    for number in range(ROUNDS):
        left = [account for account in accounts if account.live]
        if not left:
            break
        for account in left:
            _urge(story, account, number)
        for _ in range(8):
            world.server.tick()
        await asyncio.sleep(0)
    else:
        raise AssertionError(f"streams do not end: {[account.name for account in left]}")
    world.answers.check()
    for account in accounts:
        stream = world.find(account.name)
        if stream is not None and not account.unknown:
            account.check(stream)
    world.check_nothing_is_held()


def _urge(story: Told, account: Account, number: int) -> None:
    """To its end, so many rounds after it was first urged."""
    world, listener = story.world, story.world.listeners[0]
    stream = world.find(account.name)
    if stream is None:
        account.unknown = True
        return
    story.acknowledge(account, stream)
    name, core = account.name, account.core
    if world.server.hub._subscriptions.listener_of(stream) not in world.listeners:
        story.send(protocol.Attach(request_id=name, after=core.seq, epoch=core.epoch), listener)
    elif number > CANCELLED:
        story.send(protocol.Cancel(request_id=name), listener)
    elif number % 20 == 3:
        free = Params(max_tokens=core.index + 60, guards=None, logit_bias={})
        story.send(protocol.Adjust(request_id=name, params=free), listener)
        story.send(protocol.Grant(request_id=name, limit=core.index + 300), listener)
        story.send(protocol.Resume(request_id=name), listener)
