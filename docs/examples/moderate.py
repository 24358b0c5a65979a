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
    """What is wrong with it: here, a word that ends like this one is ending."""
    found = re.search(r"\w+ing\b", passage)
    return found and found[0]


async def moderated(client: midstream.Client, prompt: str) -> str:
    # With `window=1` nothing is decoded that the moderator has not asked for.
    stream = await client.start(prompt=prompt, seed=4, max_tokens=120, window=1)
    begin, passage, tries = 0, "", 0
    async for chunk in stream:
        passage += chunk.text
        if chunk.end - begin < PASSAGE:
            continue
        wrong = await objection(passage)
        if wrong is not None and tries < PATIENCE:
            tries += 1
            await stream.adjust(at=begin, seed=tries)
            print(f"[{wrong!r} is taken back, to token {begin}]")
        else:
            begin, tries = chunk.end, 0
        passage = ""
    assert stream.final is not None
    print(f"[{stream.final.usage.discarded_tokens} tokens were discarded]")
    return stream.text


async def main(url: str) -> None:
    async with midstream.connect(url) as client:
        print(await moderated(client, "Once upon a time"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
