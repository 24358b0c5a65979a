"""Many streams at once in a task group: the first that says enough wins, and the others are cancelled.

python docs/examples/race.py [URL]
"""

import asyncio
import sys

import midstream

ENOUGH = 40  # words


class Won(Exception):
    """Somebody has said enough."""


async def run(client: midstream.Client, runner: int) -> None:
    stream = await client.start(
        prompt="Once upon a time", temperature=1.2, seed=runner, priority=1 if runner == 3 else 0
    )
    async for _ in stream:
        if len(stream.text.split()) >= ENOUGH:
            raise Won(f"runner {runner}, after {stream.index} tokens: {stream.text.strip()}")
    print(f"runner {runner} came to its end after {stream.index} tokens")


async def main(url: str) -> None:
    async with midstream.connect(url) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for runner in range(8):
                    group.create_task(run(client, runner))
        except* Won as winners:
            print(winners.exceptions[0])
        # The group has cancelled the other tasks, and with each task its stream.


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
