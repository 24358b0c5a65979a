"""Best of four: one stream is forked where the story may turn, each fork goes its own way, and the likeliest
is kept. What they have in common is computed once, and held once.

python docs/examples/forks.py [URL]
"""

import asyncio
import sys

import midstream

TURN, LENGTH, BRANCHES = 12, 40, 4  # tokens, tokens, forks


async def likelihood(branch: midstream.Stream) -> float:
    """The mean log probability of what it says for itself."""
    told = [one.logprob async for chunk in branch for one in chunk.logprobs or ()]
    return sum(told) / len(told)


async def main(url: str) -> None:
    async with midstream.connect(url) as client:
        stem = await client.start(prompt="Once upon a time", seed=1, window=1, max_tokens=LENGTH, logprobs=0)
        while stem.consumed < TURN:
            await stem.next()
        branches = [await client.fork(stem, temperature=1.2) for _ in range(BRANCHES)]
        scores = await asyncio.gather(*map(likelihood, branches))
        print(f"{TURN} tokens in common: {stem.text}")
        for score, branch in sorted(zip(scores, branches, strict=True), key=lambda one: one[0]):
            assert branch.final is not None
            inherited = branch.final.usage.inherited_tokens
            print(f"{score:.2f}, {inherited} tokens inherited: {branch.text[len(stem.text) :]!r}")
        await stem.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
