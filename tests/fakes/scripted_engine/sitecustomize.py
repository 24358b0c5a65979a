"""A scripted model: put this folder first on PYTHONPATH, and the toy says what it is told to.

What the conversation has between the last `⟦` and `⟧` is what the answer will be, a byte a token, and then
its end. `⏭` stands between the answers before and behind each injection, and `☠` where the engine that is to
compute it is killed. A token follows from the prompt, what was injected and its index alone, as a seeded
model's does.
"""

from __future__ import annotations

import os
import signal
import sys

DEATH = "☠".encode()


def follow_scripts() -> None:
    from tokenizers import Tokenizer

    from engine import toy_model
    from engine.forward.toy_runner import ToyRunner

    spell = Tokenizer.from_file(str(toy_model.FOLDER / "tokenizer.json"))
    forward = ToyRunner.forward

    def scripted(self, rows):  # type: ignore[no-untyped-def]
        logits = forward(self, rows)
        sampled = [(row, row.index + at) for row in rows for at in range(row.num_sampled)]
        for (row, index), to_sample in zip(sampled, logits, strict=True):
            sequence = row.sequence
            prompt = spell.decode(sequence.tokens[: sequence.num_prompt].tolist(), skip_special_tokens=False)
            script = prompt.rpartition("⟦")[2].partition("⟧")[0] if "⟦" in prompt else ""
            if script:
                answer, at = _answer(script.split("⏭"), sequence.injections, index)
                if answer[at:].startswith(DEATH):
                    os.kill(os.getpid(), signal.SIGKILL)
                to_sample.fill_(-1e4)
                to_sample[answer[at] if at < len(answer) else toy_model.EOS] = 1e4
        return logits

    setattr(ToyRunner, "forward", scripted)  # noqa: B010 - a method is not assigned to, says mypy


def _answer(answers: list[str], injections: list[tuple[int, int]], index: int) -> tuple[bytes, int]:
    """The one that the token is of, and its index there."""
    at = min(len(injections), len(answers) - 1)
    return answers[at].encode(), index - (injections[at - 1][0] if at else 0)


if "engine" in sys.orig_argv:
    follow_scripts()
