"""Calls that a matcher let through: tools with schemas made by chance, a vocabulary of bytes and of a
format's delimiters, and a model that writes whatever it may."""

from __future__ import annotations

import random
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper

from engine.structure.mask import ALLOWED
from engine.structure.matcher import Matcher
from engine.structure.vocabulary import Vocabulary
from realtime.text.grammar import source_of_lark
from realtime.tools.call_grammar import CallGrammar, HeldTool
from realtime.tools.formats import BY_NAME
from realtime.tools.offered import is_text
from tests.fakes.spelt_calls import THINK, Pieces, Told, told

LIKELY = b"\"}])>'<|/,\n`"  # what closes things


class HeldModel:
    """Of one format, with its delimiters as single tokens, or none."""

    def __init__(self, name: str, *, single: bool) -> None:
        self.form = BY_NAME[name]
        self.pieces = Pieces(name, single=single, reasoning=None if name == "harmony" else THINK)
        self._spelt = _Spelt(self.pieces.single)
        tags = self.form.tags
        closes = [THINK.close, *self.form.fills, tags.value_end, tags.call_end, self.form.quote]
        self._closes = [close.encode() for close in closes if close]
        end = len(self._spelt.tokens) - 1
        self.vocabulary = Vocabulary(LLTokenizer(TokenizerWrapper(self._spelt), slices=[]), frozenset([end]))

    def write(
        self, tools: list[HeldTool], chance: random.Random, *, most: int = 4000, **asked: Any
    ) -> list[int] | None:
        """Tokens of the reader's, to the end; None where that was not reached."""
        lark = CallGrammar(self.pieces.spelling, tools, **asked).lark()
        matcher = Matcher(source_of_lark(lark), self.vocabulary)
        (end,) = self.vocabulary.ends
        written: list[int] = []
        while len(written) < most:
            mask = matcher.mask()
            assert mask is not None
            allowed = [token for token, byte in enumerate(mask) if byte == ALLOWED]
            assert allowed, self.text(written)
            if allowed == [end] or (end in allowed and chance.random() < 0.5):
                return [self._read_as(token) for token in written]
            allowed = [token for token in allowed if token != end]
            written.append(self._going_on(written, allowed, chance) or self._chosen(allowed, chance))
            matcher.accept(written[-1:])
        return None

    def tokens(self, text: str) -> list[int]:
        """As they are the matcher's."""
        first = len(self.pieces.single)
        parts = self.pieces.tokens(text)
        return [token if token < first else first + self.pieces.bytes[token][0] for token in parts]

    def text(self, written: list[int]) -> str:
        return b"".join(self._spelt.tokens[token] for token in written).decode(errors="replace")

    def read(self, tokens: list[int], tools: list[HeldTool], prompt: list[int] | None = None) -> Told:
        return told(self.pieces.reader({tool.name: _other_kinds(tool) for tool in tools}, prompt), tokens)

    def _going_on(self, written: list[int], allowed: list[int], chance: random.Random) -> int | None:
        """With a delimiter that was begun: by chance alone few would be written to their end."""
        first = len(self.pieces.single)
        tail = bytes(token - first for token in written[-24:] if token >= first)
        for close in self._closes:
            length = next((n for n in range(len(close) - 1, 0, -1) if tail.endswith(close[:n])), 0)
            if length and first + close[length] in allowed and chance.random() < 0.9:
                return first + close[length]
        return None

    def _chosen(self, allowed: list[int], chance: random.Random) -> int:
        first = len(self.pieces.single)
        likely = [token for token in allowed if token < first or token - first in LIKELY]
        plain = [token for token in allowed if token < first or 32 <= token - first < 127]
        return chance.choice(likely if likely and chance.random() < 0.6 else plain or allowed)

    def _read_as(self, token: int) -> int:
        """As the reader's tokenizer has it."""
        return token if token < len(self.pieces.single) else self.pieces.token(self._spelt.tokens[token])


class _Spelt:
    """As llguidance wants to be shown a tokenizer: delimiters, bytes, and an end."""

    bos_token_id = None

    def __init__(self, single: list[str]) -> None:
        self._first = len(single)
        self.tokens = [*map(str.encode, single), *(bytes([byte]) for byte in range(256)), b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [*range(self._first), self.eos_token_id]

    def __call__(self, text: str | bytes) -> list[int]:
        return [self._first + byte for byte in (text.encode() if isinstance(text, str) else text)]


def _other_kinds(tool: HeldTool) -> set[str]:
    return {key for key, schema in tool.schema.get("properties", {}).items() if not is_text(schema)}


def made_tools(chance: random.Random, count: int = 3) -> list[HeldTool]:
    names = ["get_weather", "get_weather_2", "f", "set-alarm", "a.b"]
    return [HeldTool(name, _made_object(chance, 2)) for name in chance.sample(names, count)]


def _made_object(chance: random.Random, depth: int) -> dict[str, Any]:
    keys = chance.sample(["city", "q", "n", "unit_2", "a", "B"], chance.randint(0, 4))
    return {
        "type": "object",
        "properties": {key: _made_value(chance, depth) for key in keys},
        "required": chance.sample(keys, chance.randint(0, len(keys))),
        "additionalProperties": False,
    }


def _made_value(chance: random.Random, depth: int) -> dict[str, Any]:
    """Of what every format knows, and all of it bounded."""
    match chance.randrange(11 if depth else 7):
        case 0:
            return {"type": "string", "maxLength": chance.randint(1, 12)}
        case 1:
            return {"type": "string", "minLength": 2, "maxLength": 9, "description": "two or more"}
        case 2:
            return {"enum": chance.sample(["a", "b c", "ünï", "x/y", "</p"], 2)}
        case 3:
            return {"type": "string", "pattern": "^[a-z]{1,5}(-[0-9]+)?$", "maxLength": 12}
        case 4:
            least = chance.randint(-50, 50)
            return {"type": "integer", "minimum": least, "maximum": least + 200}
        case 5:
            return {"type": "boolean"}
        case 6:
            return {"type": ["integer", "null"], "minimum": 0, "maximum": 9}
        case 7 | 8:
            return _made_object(chance, depth - 1)
        case 9:
            return {
                "type": "array",
                "items": _made_value(chance, depth - 1),
                "minItems": chance.randint(0, 1),
                "maxItems": 2,
            }
    return {"anyOf": [_made_value(chance, 0), {"type": "null"}]}
