"""What a guard's expression costs: so many steps for a character at most, whatever it is and whatever is
read, and no more memory for a longer text."""

from __future__ import annotations

import gc
import random
from weakref import WeakValueDictionary

import pytest

from midstream import protocol
from realtime.guards import characters
from realtime.guards import pattern as patterns
from realtime.guards.arrows import Arrows
from realtime.guards.automaton import MOST_POSITIONS, RegexError
from realtime.guards.json_path import Said, ValueReader
from realtime.guards.pattern import MOST_BACK, MOST_REMEMBERED, MOST_STEPS, START, Pattern, Remembered
from realtime.guards.watches import Hit
from realtime.hub.frame_tokenizing import text_length
from realtime.hub.hub import LONG_TEXT

HOSTILE = [
    "(a|b)*a(a|b){250}",  # as many states as there are sets of positions
    "(?:a|b|ab|ba){80}",
    "(?s)a.{400}b",
    "(a+)+b",
    "((a|b)?){60}c",
    r"(?i)\b(?:" + "|".join(f"w{at}d" for at in range(90)) + r")\b",
    "[ab]{1,200}c",
    r"(?:\ba|\Bb)*c",
]


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each time that arrows are gone."""
    steps, goes, back = list[int](), Arrows.gone, Arrows.gone_back

    def counted(self: Arrows, positions: int) -> int:
        steps.append(len(self))
        return goes(self, positions)

    def counted_back(self: Arrows, positions: int) -> int:
        steps.append(len(self))
        return back(self, positions)

    monkeypatch.setattr(Arrows, "gone", counted)
    monkeypatch.setattr(Arrows, "gone_back", counted_back)
    return steps


@pytest.mark.parametrize("source", HOSTILE)
def test_work_grows_with_the_text_and_with_nothing_else(source: str, gone: list[int]) -> None:
    chance = random.Random(1)
    work = dict[int, int]()
    for length in (2_000, 4_000, 8_000):
        pattern, text = Pattern(source), "".join(chance.choice("ab") for _ in range(length))
        gone.clear()
        pattern.find(START, text)
        work[length] = sum(gone)
        assert len(gone) <= length
        assert max(gone, default=0) <= MOST_STEPS
        assert len(pattern._steps) <= MOST_REMEMBERED
    assert work[8_000] <= 2.5 * work[4_000] + 1000


def test_a_character_that_was_never_read_costs_no_more_for_an_expression_of_many_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pattern = Pattern("(?i)" + "".join(map(chr, range(0x4E00, 0x4E00 + 500))))
    asked, spellings = list[str](), characters._spellings

    def spelt(char: str) -> set[str]:
        asked.append(char)
        return spellings(char)

    monkeypatch.setattr(characters, "_spellings", spelt)
    text = "".join(map(chr, range(0x5000, 0x5100)))
    pattern.find(START, text)
    assert asked == list(text)


def test_all_patterns_have_so_much_room_together_and_find_the_same_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(2)
    text = "".join(chance.choice("ab") for _ in range(3_000))
    expected = [Pattern(source).find(START, text) for source in HOSTILE]
    # What other tests have left would give its room to these meanwhile.
    gc.collect()
    monkeypatch.setattr(Remembered, "_begun", type(Remembered._begun)())
    before = Remembered.in_all
    monkeypatch.setattr(patterns, "MOST_IN_ALL", before + 500)
    made = [Pattern(source) for source in HOSTILE]
    assert [pattern.find(START, text) for pattern in made] == expected
    assert Remembered.in_all <= before + 500
    assert max(len(pattern._steps) for pattern in made) < 500, "they forget in turn"
    del made
    assert Remembered.in_all <= before, "it is given back"


def test_where_there_is_no_room_one_forgets_and_each_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Remembered, "_begun", type(Remembered._begun)())
    made = [Remembered[int, int]() for _ in range(3_000)]
    for one in made:
        one.remember(0, 0)
    monkeypatch.setattr(patterns, "MOST_IN_ALL", Remembered.in_all)
    for at in range(2_990):
        made[-1].remember(1 + at, at)
        assert Remembered.in_all <= patterns.MOST_IN_ALL
        assert not made[at], "whoever began first"
        assert all(made[at + 1 : at + 3]), "and nobody else"


def test_a_text_that_says_little_new_is_looked_up(gone: list[int]) -> None:
    pattern = Pattern(r"(?i)\b(?:secret|password)\b")
    pattern.find(START, "nothing of the kind is said here. " * 3_000)
    assert len(gone) < 200, "of a hundred thousand characters"


def test_its_state_is_a_number_however_much_was_read() -> None:
    pattern = Pattern("(a|b)*a(a|b){250}c")
    state = START
    for _ in range(100):
        state, _ = pattern.find(state, "ab" * 500)
    assert state.bit_length() <= MOST_POSITIONS + 2


def test_a_match_is_looked_for_backwards_so_far_and_no_further(gone: list[int]) -> None:
    pattern = Pattern("(?s)a.*b")
    text = "a" + "." * 10_000 + "b"
    gone.clear()
    assert pattern.begin(text, len(text)) == len(text) - MOST_BACK
    assert len(gone) <= MOST_BACK


@pytest.mark.parametrize(
    "source",
    [
        "(?:a?){300}b",
        "((a{50}){50}){50}",
        "(((a{1,99}){1,99}){1,99}){1,99}",
        "(" * 5000,
        "a{99999}",
        "(x?){400}(y?){100}z",
    ],
)
def test_what_would_cost_more_is_refused_before_it_costs_anything(source: str) -> None:
    with pytest.raises(RegexError):
        Pattern(source)


def test_patterns_are_read_once() -> None:
    assert patterns.pattern_of("ab+c") is patterns.pattern_of("ab+c")


def test_patterns_that_nobody_looks_for_are_kept_by_what_they_take_and_not_by_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand of large sets are 140 MB, which one connection asks for in 64 frames."""
    sets = ["[" + "".join(map(chr, range(first, first + 400))) + "]" for first in range(0x4E00, 0x4E20)]
    weight = Pattern(sets[0]).bytes
    monkeypatch.setattr(patterns, "_in_use", in_use := WeakValueDictionary[str, Pattern]())
    monkeypatch.setattr(patterns, "_lately", patterns.Lately(8 * weight))
    for source in sets:
        patterns.pattern_of(sets[0])
        patterns.pattern_of(source)
    assert set(in_use) == {sets[0], *sets[-7:]}
    assert weight > 40_000
    assert patterns.MOST_KEPT < 20 << 20


@pytest.mark.parametrize("source", ["(a?){512}", r"(?m)((^|a?){9}){9}", "((a?){0,30}){,30}"])
def test_what_is_short_and_repeats_much_is_read_in_a_thread(source: str) -> None:
    def asked(regex: str) -> protocol.Adjust:
        guards = [protocol.Guard(name="g", do="tell", regex=regex)]
        return protocol.Adjust(request_id="a", params=protocol.Params(guards=guards))

    assert text_length(asked(source)) > LONG_TEXT
    assert text_length(asked("[aeiou]{2}")) < LONG_TEXT


@pytest.mark.parametrize("before", [0, 60, 300, 2000, 3900])
def test_of_a_string_of_json_no_more_is_decoded_than_what_is_found_is_long(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that goes back does so with each token. Where escapes stand close together it is found, too."""
    reads, read = list[str](), ValueReader.read

    def counted(self: ValueReader, char: str) -> Said:
        reads.append(char)
        return read(self, char)

    monkeypatch.setattr(ValueReader, "read", counted)
    text = '{"q": "' + "x\\n" * 10_000 + "a" + "b" * before + "c"
    hit = Hit(len(text), 6, Pattern("ab*c"), quoted=True)
    assert hit.begins(text, MOST_BACK) == len(text) - before - 2
    assert len(reads) < 500 + 40 * before
