"""An agent in one stream: its tools are functions, each starts when its call is whole, and the model goes on
with what came of them in the very same memory. Every event can be watched, and the whole run is recorded.

python docs/examples/agent.py [URL]
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Literal

import midstream
from midstream.protocol import Injected, Token, ToolArguments, ToolCall

City = Literal["Paris", "Oslo", "Lima"]
DEGREES = {"Paris": 17, "Oslo": 4, "Lima": 23}
PRICES = {"Paris": 120, "Oslo": 140, "Lima": 60}


async def weather(city: City) -> dict[str, object]:
    """The weather of a city, today."""
    await asyncio.sleep(0.2)  # somebody has to be asked
    return {"city": city, "degrees": DEGREES[city]}


def hotel(city: City, nights: Literal[1, 2, 3]) -> str:
    """What a hotel costs there."""
    if city == "Oslo":
        raise LookupError("everything is taken")  # the model is told, and may do better
    return f"{PRICES[city] * nights} euros"


def approve(call: midstream.Call) -> bool | str:
    """Asked before a hotel is: nobody stays for long without a word."""
    return call.parsed["nights"] < 3 or "three nights are too many"


agent = midstream.Agent(
    tools=[weather, hotel],
    approvals=["hotel"],
    approve=approve,
    system="You find out where somebody should go. Answer in one sentence.",
    tool_choice="required",  # the first turn calls; what follows is the model's own
    max_calls=6,
    tool_timeout_s=10,
    timeout_ms=60_000,
    max_tokens=300,
    temperature=0.2,
    seed=3,
)


async def watch(run: midstream.Run) -> None:
    """Hooks are a loop over what happens."""
    try:
        async for event in run:
            match event:
                case Token(delta=delta):
                    print(delta, end="", flush=True)
                case ToolCall(name=name):
                    print(f"\n[{name} ", end="")
                case ToolArguments(delta=delta):  # they are told while they are written
                    print(delta, end="", flush=True)
                case midstream.ToolOutcome(call=call, content=content, error=error):
                    print(f"]\n[{call.name} said: {content or error}]")
                case Injected(index=index, count=count) if count:
                    print(f"[{count} tokens of results stand before token {index}]")
    except midstream.LimitReached as reached:  # small models may call without end
        print(f"\n[{reached}]")


async def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trip.jsonl")
        async with midstream.connect(url) as client:
            with client.record(file):
                run = await client.run(agent, "Paris, Oslo or Lima: where is it warm, and what does it cost?")
                await watch(run)
            (record,) = midstream.read_records(file)
            again = await client.replay(record)  # with the results that there were: no tool runs
            print(f"\n{len(run.outcomes)} calls; again: {'equal' if again.equal else 'not equal'}")
            other = await run.fork(at=run.stream.calls[0].end, seed=4)  # from the first call on, otherwise
            print("otherwise: ", end="")
            await watch(other)
            print()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
