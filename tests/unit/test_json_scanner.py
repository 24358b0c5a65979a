"""The JSON scanner: runs of characters are passed as they are one by one."""

from __future__ import annotations

import json
import random

from realtime.tools.json_scanner import JsonScanner


def ends_at(text: str, *, in_runs: bool) -> tuple[int, int]:
    """Where the value ends, or -1, and how many characters were looked at one by one."""
    scanner, at, looked = JsonScanner(), 0, 0
    while at < len(text):
        if in_runs:
            at = scanner.pass_plain(text, at)
            if at == len(text):
                break
        looked += 1
        if scanner.ends_with(text[at]):
            return at, looked
        at += 1
    return -1, looked


def test_a_value_ends_where_it_does_character_by_character() -> None:
    dice = random.Random(9)
    for _ in range(20_000):
        text = "".join(dice.choices('{}[]",:\\1 t', k=dice.randrange(1, 40)))
        text = dice.choice("{[") + text
        assert ends_at(text, in_runs=True)[0] == ends_at(text, in_runs=False)[0], text


def test_brackets_cost_by_their_runs() -> None:
    nested = "[" * 1000 + "]" * 1000
    assert ends_at(nested, in_runs=True) == (1999, 2)
    several = json.dumps({"a": [{}, [], [1.5, [None, True]]] * 50})
    end, looked = ends_at(several, in_runs=True)
    assert end == len(several) - 1
    assert looked == 1 + 2 + 1, "the first and the last bracket, and the quotes of the key"
