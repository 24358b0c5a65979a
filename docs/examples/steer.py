"""Steer one answer while it is written: adjust, pause, resume and cancel, each at an exact token.

python docs/examples/steer.py [URL]
"""

import asyncio
import sys

import midstream


async def main(url: str) -> None:
    async with midstream.connect(url) as client:
        stream = await client.start(prompt="Once upon a time", temperature=1.0, seed=1, max_tokens=200)
        async with stream:
            async for chunk in stream:
                print(chunk.text, end="", flush=True)
                if chunk.end == 20:
                    # `at` is where we have read to: what was decoded beyond it is taken back.
                    index = await stream.adjust(temperature=0.2, at=chunk.end)
                    print(f"\n[cooler from token {index}]")
                if chunk.end == 30:
                    print(f"\n[paused at token {await stream.pause()}; nothing is decoded]")
                    await asyncio.sleep(1)
                    print(f"[resumed at token {await stream.resume()}]")
                if chunk.end == 60:
                    print(f"\n[cancelled at token {await stream.cancel()}]")
                    break
    assert stream.final is not None
    print(f"{stream.final.finish_reason}: {stream.final.usage.discarded_tokens} tokens were discarded")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
