"""A misstep is recorded, and reproduced: the same start, steered at the same tokens, says the same."""

import asyncio
import sys
import tempfile
from pathlib import Path

import midstream

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "misstep.jsonl")
        async with midstream.connect(URL) as client:
            with client.record(file):
                stream = await client.start(prompt="Once upon a time", max_tokens=40, ignore_eos=True)
                async for chunk in stream:
                    if chunk.index == 10:
                        await stream.adjust(at=chunk.end, temperature=1.5)
                    if chunk.index == 20:
                        await stream.inject(at=chunk.end, text=" Suddenly")
            (record,) = midstream.read_records(file)
            print("equal" if (await client.replay(record)).equal else "not equal")
            record.start.params.seed = 7
            difference = (await client.replay(record)).difference
            if difference is not None and difference.recorded is not None:
                print(f"with another seed token {difference.index} is not {difference.recorded.text!r}")


asyncio.run(main())
