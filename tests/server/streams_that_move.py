"""Streams whose engines die or leave under them: they go on at others, with the text they would have had."""

from __future__ import annotations

from tests.server.independent_client import Client, Stream

GREEDY = {"ignore_eos": True, "temperature": 0, "max_tokens": 80}


async def started(client: Client, count: int, **params: object) -> list[Stream]:
    """All read at the same time, by whoever asks each for its rest."""
    return [
        await client.start(
            f"stream {number}", params=GREEDY | params, credit={"limit": 8000}, return_tokens=True
        )
        for number in range(count)
    ]


def paused(stream: Stream) -> list[str]:
    """For which reasons it was."""
    return [event["reason"] for event in stream.events if event["type"] == "paused"]


async def far(stream: Stream, index: int) -> None:
    """It has come so far, whatever befell it on the way."""
    while stream.index < index:
        event = await stream.next()
        assert event["type"] in ("token", "paused", "resumed"), event


async def go_on_and_say_the_same(client: Client, streams: list[Stream]) -> None:
    """Each goes on from where it is, has said what all others have, and heard of nothing but engines."""
    for stream in streams:
        await far(stream, stream.index + len(client.heard(stream.request_id)) + 5)
        await stream.send("cancel")
        await stream.rest()
    longest = max((stream.tokens for stream in streams), key=len)
    assert all(stream.tokens == longest[: len(stream.tokens)] for stream in streams)
    assert all(set(paused(stream)) <= {"engine"} for stream in streams)
