"""The Containerfile of ops/container, as its instructions. It knows the file's grammar, and no container."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "ops/container/Containerfile"


@dataclass(frozen=True)
class Instruction:
    name: str
    text: str

    @property
    def flags(self) -> dict[str, str]:
        """Those that stand before all else, such as `--from=build`."""
        return dict(re.findall(r"(?:^|(?<=\s))--([a-z-]+)=(\S+)(?=\s)", self.text.partition("[")[0]))

    @property
    def arguments(self) -> str:
        return re.sub(r"^(--[a-z-]+=\S+\s+)+", "", self.text)

    @property
    def command(self) -> list[str]:
        """As it would be run: a JSON list as it is, and anything else by a shell."""
        words: list[str] = (
            json.loads(self.arguments)
            if self.arguments.startswith("[")
            else ["/bin/sh", "-c", self.arguments]
        )
        return words


def stages() -> list[list[Instruction]]:
    """The instructions of each stage. What stands before the first `FROM` is everybody's."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    instructions = [Instruction(*line.split(None, 1)) for line in lines if line]
    begins = [place for place, each in enumerate(instructions) if each.name == "FROM"]
    return [
        instructions[begin:end] for begin, end in zip(begins, [*begins[1:], len(instructions)], strict=True)
    ]


def of(stage: list[Instruction], name: str) -> list[Instruction]:
    return [each for each in stage if each.name == name]


def one(stage: list[Instruction], name: str) -> Instruction:
    (found,) = of(stage, name)
    return found


def environment(stage: list[Instruction]) -> dict[str, str]:
    words = (word for each in of(stage, "ENV") for word in shlex.split(each.text))
    return dict(word.split("=", 1) for word in words)


def copied(stage: list[Instruction]) -> list[tuple[str, str]]:
    """From where in the repository to where in the image."""
    pairs = []
    for each in of(stage, "COPY"):
        *sources, target = each.arguments.split()
        if "from" not in each.flags:
            pairs += [(source, target) for source in sources]
    return pairs
