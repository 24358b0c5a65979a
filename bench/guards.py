"""Guards: what a character costs of a text that is read as it is written, piece by piece, whatever is looked
for in it; and that it costs no more where the text is ten times as long.

`python -m bench.guards 100` reads a hundred million characters. Time is that of the processor.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.__main__ import report
from bench.result_tables import Figure
from midstream.protocol import Guard
from realtime.guards.acts import Acts
from realtime.guards.guards import Guards
from realtime.stream.accumulated_output import Output
from tests.fakes.simulated_server import toy_tokenizer

MILLIONS, PIECE = 4, 64  # characters: of a text, and of what is known with a token
GOAL = 1.2
PROSE = "".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
TWO_LETTERS = "".join(random.Random(1).choices("ab", k=1 << 20))
LOOKED_FOR = {
    "a key": (r"sk-[a-zA-Z0-9]{20}", PROSE),
    "two words": (r"(?i)\b(?:open ?sesame|abracadabra)\b", PROSE),
    "what backtracks for ever": ("(a+)+c", "a"),
    "what has no small table": ("(a|b)*a(a|b){250}c", TWO_LETTERS),
}


def pieces(text: str, count: int) -> Iterator[str]:
    """So many characters of a text without an end."""
    again = text * (1 + PIECE // len(text)) + text
    for at in itertools.islice(itertools.cycle(range(0, len(text), PIECE)), count // PIECE):
        yield again[at : at + PIECE]


def cost_ns(regex: str, text: str, count: int) -> float:
    """Of one character."""
    output = Output(toy_tokenizer(), (), 0)
    guards, acts = Guards([Guard(name="never", do="tell", regex=regex)], output), Acts()
    began = time.process_time()
    for piece in pieces(text, count):
        assert not guards.judge(piece, (), output, 0.0, acts)
    return (time.process_time() - began) / count * 1e9


def measured(millions: int) -> list[Figure]:
    figures = []
    for name, (regex, text) in LOOKED_FOR.items():
        cost_ns(regex, text, 100_000)  # so that what can be remembered is
        short = cost_ns(regex, text, millions * 100_000)
        whole = cost_ns(regex, text, millions * 1_000_000)
        goal = f"<= {GOAL} x"
        told = f"guards: {name}, a character of {millions} million"
        figures.append(Figure(told, whole, "ns", goal, whole / short, "of a tenth of them"))
    return figures


def main() -> int:
    return report(measured(int(sys.argv[1]) if len(sys.argv) > 1 else MILLIONS))


if __name__ == "__main__":
    sys.exit(main())
