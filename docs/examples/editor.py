"""An agent that steers: it reads along, and where a sentence gets too long, it rewinds to where that began
and asks for a shorter one. The model goes on from there; nothing is generated again from the start.

python docs/examples/editor.py [URL]
"""

import asyncio
import sys

import midstream

LONGEST = 20  # words in a sentence
PATIENCE = 3  # corrections


async def edited(client: midstream.Client, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    stream = await client.start(messages=messages, temperature=0.7, seed=2, max_tokens=150)
    corrections = 0
    begin, sentence = 0, ""  # the token at which the sentence begins, and its text up to now
    async for chunk in stream:
        sentence += chunk.text
        if sentence.rstrip().endswith((".", "!", "?")):
            begin, sentence = chunk.end, ""
        elif len(sentence.split()) > LONGEST and corrections < PATIENCE:
            note = {"role": "user", "content": "Your last sentence was too long. Go on, in short sentences."}
            try:
                begin = await stream.inject(messages=[note], at=begin)
            except midstream.RequestFinished:  # the model had come to its end, ahead of what was read
                continue
            corrections += 1
            print(f"[taken back to token {begin}: {sentence.strip()!r}]")
            sentence = ""
    assert stream.final is not None
    print(f"[{corrections} corrections, {stream.final.usage.discarded_tokens} tokens were discarded]")
    return stream.text


async def main(url: str) -> None:
    async with midstream.connect(url) as client:
        print(await edited(client, "How does a steam engine work?"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"))
