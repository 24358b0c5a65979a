"""Text that leaves a stream is exactly the text of its tokens, whole, and ends before a stop string."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.text.detokenizer import LONGEST_PARTIAL, TextStream
from realtime.text.stop_strings import matcher_for
from realtime.text.tokenizer import Tokenizer
from tests.fakes import small_tokenizers as small

BYTE_LEVEL = small.byte_level()
SENTENCEPIECE = small.sentencepiece()
GEMMA_LIKE_JSON = json.loads(small.sentencepiece_json())
GEMMA_LIKE_JSON["decoder"]["decoders"].pop()
LIBRARIES = {
    BYTE_LEVEL: small.library(small.byte_level_json()),
    SENTENCEPIECE: small.library(small.sentencepiece_json()),
    Tokenizer(json.loads(json.dumps(GEMMA_LIKE_JSON))): small.library(json.dumps(GEMMA_LIKE_JSON)),
}
every_kind = pytest.mark.parametrize("tokenizer", LIBRARIES, ids=["byte_level", "sentencepiece", "no_strip"])

emoji = st.sampled_from(
    ["👩\u200d👩\u200d👧", "👍🏽", "🇩🇪", "❤️", "e\u0301", "世界", "한", "\ufffd", "  ", "▁"]
)
written = st.lists(st.text(max_size=6) | emoji).map("".join)
byte_level_tokens = st.lists(st.integers(0, BYTE_LEVEL.vocab + 3), max_size=40)
letters = st.text("ab", min_size=1, max_size=4)
stop_strings = st.lists(letters, max_size=4).map(tuple)
spelled = st.text("abc", max_size=40)


def encode(text: str) -> list[int]:
    return BYTE_LEVEL.encode(text, special=False)


def run(stream: TextStream, tokens: list[int]) -> list[str]:
    return [*map(stream.feed, tokens), stream.flush()]


def letter_tokens(text: str) -> list[int]:
    """One token a byte, so that nothing depends on what was merged."""
    return [token for char in text for token in encode(char)]


def naive(text: str, stops: tuple[str, ...], first: int = 0) -> tuple[str, str | None]:
    """Search the whole text: the earliest end, at or after character `first`; the longest that ends there."""
    for end in range(first + 1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


@every_kind
@given(text=written)
def test_the_deltas_are_the_text_of_the_tokens(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    stream = TextStream(tokenizer)
    deltas = run(stream, tokens)
    assert "".join(deltas) == LIBRARIES[tokenizer].decode(tokens)
    assert stream.released == len("".join(deltas))


@given(tokens=byte_level_tokens)
def test_any_tokens_at_all_become_what_the_library_decodes(tokens: list[int]) -> None:
    deltas = run(TextStream(BYTE_LEVEL), tokens)
    assert "".join(deltas) == LIBRARIES[BYTE_LEVEL].decode(tokens)
    for delta in deltas:
        assert delta.encode().decode() == delta  # a lone surrogate would raise


@given(tokens=st.lists(st.integers(0, SENTENCEPIECE.vocab + 3), max_size=40))
def test_any_sentencepiece_tokens_become_their_bytes(tokens: list[int]) -> None:
    text = b"".join(map(SENTENCEPIECE.token_bytes, tokens)).decode(errors="replace")
    assert "".join(run(TextStream(SENTENCEPIECE), tokens)) == text.removeprefix(" ")


def test_a_broken_run_of_byte_tokens_keeps_its_valid_characters() -> None:
    library = LIBRARIES[SENTENCEPIECE]
    tokens = [small.token_of(library, piece) for piece in ("<0x41>", "<0xC3>", "<0xFF>")]
    assert run(TextStream(SENTENCEPIECE), tokens) == ["A", "", "\ufffd\ufffd", ""]
    assert library.decode(tokens) == "\ufffd\ufffd\ufffd"


def test_a_character_comes_with_its_last_byte() -> None:
    thumb = [_byte_token(byte) for byte in "👍".encode()]
    assert run(TextStream(BYTE_LEVEL), thumb) == ["", "", "", "👍", ""]
    assert run(TextStream(BYTE_LEVEL), thumb[:3]) == ["", "", "", "\ufffd"]
    assert run(TextStream(BYTE_LEVEL), [*thumb[:2], *encode("a")]) == ["", "", "\ufffda", ""]


def _byte_token(byte: int) -> int:
    return next(token for token, data in BYTE_LEVEL.pieces.bytes.items() if data == bytes([byte]))


def test_special_and_unknown_tokens_are_no_text() -> None:
    special = sorted(BYTE_LEVEL.special)
    assert run(TextStream(BYTE_LEVEL), [*special, 10**6]) == [""] * (len(special) + 2)


def test_only_the_first_space_of_the_output_is_taken_off() -> None:
    library = LIBRARIES[SENTENCEPIECE]
    space = small.token_of(library, "▁")
    special = small.token_of(library, "<s>")
    assert run(TextStream(SENTENCEPIECE), [special, space, space]) == ["", "", " ", ""]


@given(text=spelled, stops=stop_strings, min_tokens=st.integers(0, 12))
def test_stop_strings_are_met_as_in_the_whole_text(
    text: str, stops: tuple[str, ...], min_tokens: int
) -> None:
    stream = TextStream(BYTE_LEVEL, stops, min_tokens)
    deltas = run(stream, letter_tokens(text))
    assert ("".join(deltas), stream.stopped) == naive(text, stops, min_tokens)
    assert stream.released == len("".join(deltas))


@given(text=written, data=st.data())
def test_stop_strings_may_straddle_tokens(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2), label="cuts"))
    stops = tuple({text[cuts[0] : cuts[1]], *data.draw(stop_strings)} - {""})
    stream = TextStream(BYTE_LEVEL, stops)
    assert ("".join(run(stream, encode(text))), stream.stopped) == naive(text, stops)


@given(text=spelled, stops=stop_strings)
def test_exactly_what_may_become_a_stop_string_is_held(text: str, stops: tuple[str, ...]) -> None:
    stream = TextStream(BYTE_LEVEL, stops)
    out = ""
    for end, token in enumerate(letter_tokens(text), 1):
        out += stream.feed(token)
        if stream.stopped is not None:
            break
        held = text[len(out) : end]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
        assert not any(
            stop.startswith(text[start:end]) for stop in stops for start in range(max(0, end - 4), len(out))
        )


def test_nothing_follows_a_stop_string() -> None:
    stream = TextStream(BYTE_LEVEL, ("b",))
    assert run(stream, letter_tokens("abcc")) == ["a", "", "", "", ""]
    assert stream.stopped == "b"
    stream.set_stop(())
    assert stream.feed(encode("a")[0]) == ""


def test_one_that_stopped_with_half_a_character_goes_on_with_all_of_its_text() -> None:
    begun = next(token for token, data in BYTE_LEVEL.pieces.bytes.items() if data == b" na\xc3")
    stream = TextStream(BYTE_LEVEL, (" na",))
    assert run(stream, [*encode("a"), begun]) == ["a", "", ""]
    again = stream.rewound([*encode("a"), begun], 2, stream.released, (), 0)
    assert again.feed(_byte_token(0xAF)) == " na\u00ef"


def test_the_longest_of_the_stop_strings_that_end_together_is_met() -> None:
    stream = TextStream(BYTE_LEVEL, ("b", "ab", "abcd"))
    assert "".join(run(stream, letter_tokens("xabcd"))) == "x"
    assert stream.stopped == "ab"


def test_a_stop_string_is_met_inside_a_longer_one_that_has_begun() -> None:
    stream = TextStream(BYTE_LEVEL, ("abcd", "bc"))
    assert "".join(run(stream, letter_tokens("abcd"))) == "a"
    assert stream.stopped == "bc"


def test_a_stop_string_may_begin_before_min_tokens() -> None:
    stream = TextStream(BYTE_LEVEL, ("aa",), min_tokens=3)
    assert "".join(run(stream, letter_tokens("aaaaa"))) == "aa"


def test_a_stop_string_may_be_met_in_bytes_that_were_given_up() -> None:
    stream = TextStream(BYTE_LEVEL, ("a\ufffd",))
    assert run(stream, [*encode("a"), _byte_token(0xF0)]) == ["", "", ""]
    assert stream.stopped == "a\ufffd"


def test_new_stop_strings_may_begin_in_held_text_but_not_end_there() -> None:
    stream = TextStream(BYTE_LEVEL, ("abcd",))
    assert run_only(stream, "ab") == ""
    stream.set_stop(("b", "bca"))
    assert run_only(stream, "c") == "a"
    assert run_only(stream, "a") == ""
    assert stream.stopped == "bca"


def test_text_that_is_no_longer_held_goes_out_with_the_next_token() -> None:
    stream = TextStream(BYTE_LEVEL, ("abcd",))
    assert run_only(stream, "ab") == ""
    stream.set_stop(())
    assert (stream.released, run_only(stream, "c"), stream.released) == (0, "abc", 3)


def run_only(stream: TextStream, text: str) -> str:
    return "".join(map(stream.feed, letter_tokens(text)))


@given(text=written | spelled, stops=stop_strings, data=st.data())
def test_a_stream_can_be_begun_again_from_tokens_that_stand(
    text: str, stops: tuple[str, ...], data: st.DataObject
) -> None:
    """What the client keeps and what comes after is the text, whatever stop strings there were before."""
    tokens = encode(text)
    fed = data.draw(st.integers(0, len(tokens)), label="fed")
    to = data.draw(st.integers(0, fed), label="to")
    first = TextStream(BYTE_LEVEL, stops, min_tokens=len(tokens))
    shown = "".join(map(first.feed, tokens[:fed]))

    stop = data.draw(stop_strings, label="new stops")
    again = first.rewound(tokens[:fed], to, first.released, stop, len(tokens))
    kept = shown[: again.released]
    assert again.text == kept
    assert again.released <= len(shown)
    assert kept + "".join(run(again, tokens[to:])) == text
    assert again.released == len(text)


@given(more=st.lists(st.integers(0, 300), min_size=1, max_size=5))
@every_kind
def test_rewound_before_there_was_anything_it_is_as_one_that_begins(
    tokenizer: Tokenizer, more: list[int]
) -> None:
    again, fresh = TextStream(tokenizer).rewound([], 0, 0, (), 0), TextStream(tokenizer)
    assert run_tokens(again, more) == run_tokens(fresh, more)


@given(tokens=st.lists(st.integers(0, 300), max_size=30), stops=stop_strings, data=st.data())
@every_kind
def test_a_rewound_stream_is_as_one_that_was_fed_what_stands(
    tokenizer: Tokenizer, tokens: list[int], stops: tuple[str, ...], data: st.DataObject
) -> None:
    """Whatever bytes the tokens are: broken characters, leading spaces, special tokens."""
    to = data.draw(st.integers(0, len(tokens)), label="to")
    more = data.draw(st.lists(st.integers(0, 300), max_size=5), label="more")
    first = TextStream(tokenizer)
    run_tokens(first, tokens)
    again = first.rewound(tokens, to, sent=0, stop=stops, min_tokens=len(tokens) + 9)
    fresh = TextStream(tokenizer)
    assert again.released == 0
    assert run_tokens(again, more) + again.flush() == run_tokens(fresh, tokens[:to] + more) + fresh.flush()


def test_a_rewind_decodes_what_it_takes_back_and_not_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TextStream(BYTE_LEVEL)
    tokens = letter_tokens("ab" * 1_000)
    run_tokens(first, tokens)
    monkeypatch.setattr(BYTE_LEVEL.pieces, "bytes", counted := Counted(BYTE_LEVEL.pieces.bytes))
    again = first.rewound(tokens, 1_990, sent=2_000, stop=("ba" * 100,), min_tokens=0)
    assert counted.asked <= 10 + LONGEST_PARTIAL
    assert again.released == 1_990 - 199, "what may begin a stop string is held again"


class Counted(dict[int, bytes]):
    asked = 0

    def get(self, token: int, default: bytes = b"") -> bytes:  # type: ignore[override]
        self.asked += 1
        return super().get(token, default)


def run_tokens(stream: TextStream, tokens: list[int]) -> str:
    return "".join(map(stream.feed, tokens))


def test_rewinding_sends_what_the_client_was_not_sent_yet() -> None:
    stream = rewound("aba", sent=1)
    assert (stream.released, run_only(stream, "c"), stream.released) == (1, "bac", 4)


def test_a_stop_string_that_stands_does_not_stop_and_a_later_one_does() -> None:
    stream = rewound("abab", sent=9)
    assert (stream.released, stream.stopped) == (4, None)
    assert run(stream, letter_tokens("ab")) == ["a", "", ""]
    assert stream.stopped == "b"


def rewound(text: str, sent: int) -> TextStream:
    """With a stop string from now on."""
    first = TextStream(BYTE_LEVEL)
    tokens = letter_tokens(text) + letter_tokens("xyz")
    run_tokens(first, tokens)
    return first.rewound(tokens, len(tokens) - 3, sent, ("b",), 0)


def test_streams_with_the_same_stop_strings_share_their_matcher() -> None:
    assert matcher_for(("a", "b")) is matcher_for(("a", "b"))


@pytest.mark.parametrize(
    ("following", "released", "stopped"), [("x", "bx", None), ("c", "", "bc"), ("b", "b", None)]
)
def test_what_was_released_may_be_held_again(following: str, released: str, stopped: str | None) -> None:
    stream = TextStream(BYTE_LEVEL)
    run(stream, letter_tokens("aab"))
    stream.set_stop(("bc",))
    stream.hold(5)
    assert stream.text == "aab"
    stream.hold(2)
    assert (stream.text, stream.released) == ("aa", 2)
    assert (stream.feed(*letter_tokens(following)), stream.stopped) == (released, stopped)
