"""A scripted model: put this folder first on PYTHONPATH, and the toy says what it is told to.

What the conversation has between the last `⟦` and `⟧` is what the answer will be, a byte a token, and then
its end. A token follows from the prompt and its index alone, as a seeded model's does.
"""

from __future__ import annotations

import sys


def _follow_scripts() -> None:
    from tokenizers import Tokenizer

    from engine import toy_model
    from engine.forward.toy_runner import ToyRunner

    spell = Tokenizer.from_file(str(toy_model.FOLDER / "tokenizer.json"))
    forward = ToyRunner.forward

    def scripted(self, rows):  # type: ignore[no-untyped-def]
        logits = forward(self, rows)
        for row, to_sample in zip([row for row in rows if row.samples], logits, strict=True):
            sequence = row.sequence
            prompt = spell.decode(sequence.tokens[: sequence.num_prompt], skip_special_tokens=False)
            script = prompt.rpartition("⟦")[2].partition("⟧")[0].encode() if "⟦" in prompt else b""
            if script:
                to_sample.fill_(-1e4)
                to_sample[script[row.index] if row.index < len(script) else toy_model.EOS] = 1e4
        return logits

    setattr(ToyRunner, "forward", scripted)  # noqa: B010 - a method is not assigned to, says mypy


if "engine" in sys.orig_argv:
    _follow_scripts()
