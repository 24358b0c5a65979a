"""An answer outlives its connection; and a stream that was left is taken up again elsewhere.

Cut the connection while it runs, or restart what lies between: the loop notices nothing.

python docs/examples/tunnel.py [URL]
"""

import asyncio
import sys

import midstream


async def main(url: str) -> None:
    async with midstream.connect(url, reconnect_s=60, on_state=lambda state: print(f"[{state}]")) as client:
        stream = await client.start(prompt="Once upon a time", seed=1, max_tokens=60)
        async for chunk in stream:
            print(repr(chunk.text))
        print(f"{stream.index} tokens")

    # What is to outlive its client says so in its start: leaving this block does not cancel it.
    async with midstream.connect(url) as client:
        stream = await client.start(
            prompt="Once upon a time", max_tokens=60, on_disconnect="pause", grace_ms=10_000
        )
        await stream.next()
        name = stream.request_id

    async with midstream.connect(url) as client:  # as another process would, that knows the name
        stream = await client.attach(name)
        async for _ in stream:
            pass
        print(f"taken up again: {stream.index} tokens, from the first on")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
