"""Pull one token at a time: with `window=1` the server decodes one for each that is asked for, and no more.

python docs/examples/pull.py [URL]
"""

import asyncio
import sys

import midstream


async def main(url: str) -> None:
    async with midstream.connect(url) as client:
        stream = await client.start(prompt="The capital of France is", window=1, temperature=0)
        async with stream:
            for _ in range(5):
                chunk = await stream.next(timeout=60)
                if chunk is None:  # the model had no more to say
                    break
                print(f"token {chunk.index}: {chunk.text!r}")
            # Between two calls nothing is decoded, however long it takes.
        assert stream.final is not None
        print(f"decoded and delivered: {stream.final.usage.completion_tokens}")
        print(f"decoded in vain: {stream.final.usage.discarded_tokens}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
