"""A guard of one's own: a moderator reads along, passage by passage; what it objects to is taken back and
drawn anew, and the rest stands. It could as well ask another model: the stream waits for its word.

python docs/examples/moderate.py [URL]
"""

import asyncio
import re
import sys

import midstream

PASSAGE = 8  # tokens that the moderator reads at a time
PATIENCE = 5  # times that a passage is drawn anew, before it stands as it is


async def objection(passage: str) -> str | None:
    """What is wrong with it: here, a word of more than six letters."""
    found = re.search(r"\b[a-z]{7,}\b", passage)
    return found and found[0]


async def drawn_anew(
    client: midstream.Client, stream: midstream.Stream, begin: int, seed: int
) -> midstream.Stream:
    """What goes on from there otherwise: the stream, or where that has ended by now, a fork of it."""
    try:
        await stream.adjust(at=begin, seed=seed)
    except midstream.RequestFinished:
        stream = await client.fork(stream, at=begin, seed=seed, window=1)
        while stream.consumed < begin:
            await stream.next()
    return stream


async def moderated(client: midstream.Client, prompt: str) -> str:
    # With `window=1` nothing is decoded that the moderator has not asked for.
    stream = await client.start(prompt=prompt, seed=4, max_tokens=120, window=1)
    begin, passage, tries = 0, "", 0
    while True:
        chunk = await stream.next()
        if chunk is not None:
            passage += chunk.text
            if chunk.end - begin < PASSAGE:
                continue
        wrong = await objection(passage)
        if wrong is not None and tries < PATIENCE:
            tries += 1
            stream = await drawn_anew(client, stream, begin, tries)
            print(f"[{wrong!r} is taken back, to token {begin}]")
        elif chunk is None:
            return stream.text
        else:
            begin, tries = chunk.end, 0
        passage = ""


async def main(url: str) -> None:
    async with midstream.connect(url) as client:
        print(await moderated(client, "Once upon a time"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
