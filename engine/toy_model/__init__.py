"""The toy model's tokenizer, as a model folder without weights, and what its token ids mean.

Byte-level, so that it spells any text, and a byte a token, so that most characters come in pieces:

- ids 0 to 255 are the bytes of these values;
- `WORDS` are common English words, each with a space before it;
- `BOS`, `MESSAGE` and `EOS` are special: `<|bos|>`, `<|im_start|>` and `<|im_end|>`.

`tokenizer.json` is a BPE model without merges, that takes a piece of text whole where the vocabulary has it
(`ignore_merges`) and byte by byte where not. `tokenizer_config.json` holds the chat template.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
WORDS = range(256, 461)
BOS, MESSAGE, EOS = 461, 462, 463
VOCAB = 464
CONTEXT = 8192
