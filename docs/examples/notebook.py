"""Without `async`: the same client for scripts and notebooks. Each `# %%` begins a cell.

python docs/examples/notebook.py [URL]
"""

# %%
import sys

import midstream

url = sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8000"
client = midstream.sync.connect(url)
print("models:", *client.ready.models)

# %% A whole answer at once
answer = client.complete(prompt="The capital of France is", max_tokens=8, temperature=0)
print(answer.text, "|", answer.finish_reason, "|", answer.usage.completion_tokens, "tokens")

# %% An answer as it is written. Leaving the loop cancels it.
stream = client.start(prompt="Once upon a time", seed=1)
for chunk in stream:
    print(chunk.text, end="", flush=True)
    if chunk.end == 20:
        break
print("\nleft after", stream.consumed, "tokens")

# %% Read a few tokens, look, and decide in the next cell. Nothing more than the window is decoded meanwhile.
stream = client.start(prompt="Once upon a time", seed=1, window=8)
for _ in range(10):
    stream.next(timeout=60)
print(stream.text)

# %% Go back to the fifth token, and on from there otherwise
print("rewound to", stream.adjust(at=5, seed=2, temperature=1.5))
for _ in range(10):
    stream.next(timeout=60)
print(stream.text)

# %%
print("cancelled at", stream.cancel())
client.close()
