"""Grammars as clients write them: what can be followed, what is refused and in which words."""

from __future__ import annotations

import errno
import json
import random
import re
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
from llguidance import LLMatcher

from engine.structure import follower
from engine.structure import matcher as matcher_module
from engine.structure.checker import TOO_LONG, Checker, NoAnswerError
from engine.structure.compiler import matcher_of
from engine.structure.mask import ALLOWED, allowed
from engine.structure.matcher import Matcher
from engine.structure.vocabulary import read_vocabulary
from midstream.protocol import MAX_CHOICES, Grammar
from realtime.refusal import Refusal
from realtime.text import grammar as grammar_module
from realtime.text.chat_template import TextError
from realtime.text.grammar import NotKnownError, check, of_known, problem_of, source_of, source_of_lark
from tests.fakes.grammars import MANY, walk
from tests.fakes.small_tokenizers import byte_level, byte_level_json, library, token_of, toy_vocabulary


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def one_of_many(count: int) -> dict[str, Any]:
    return {
        "anyOf": [{"type": "object", "properties": {f"k{at}": {"type": "string"}}} for at in range(count)]
    }


def patterns(keyword: str, count: int) -> dict[str, Any]:
    """Of the second value, which nobody looks at before a stream comes to it."""
    texts = [{"type": "string", "pattern": f"^(ok|xyzw(a|b|c)*(a|b)(a|b|c){{{at}}})$"} for at in range(count)]
    return {"type": "object", "properties": {"a": {"type": "integer"}, "b": {keyword: texts}}}


def lark_chain(rules: int, rule: str) -> str:
    return "start: r0\n" + "".join(rule.format(at, at + 1) for at in range(rules)) + f'r{rules}: "z"'


AT_ONCE = " & ".join(f"/(?s:.*)(a|b)(?s:.{{{at}}})/" for at in range(1, 40))
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
OVERLAP = {"properties": {"ab": {"type": "integer"}}, "patternProperties": {"^a": {"type": "string"}}}
REFUSED: dict[str, tuple[Grammar, str]] = {
    "no kind": (Grammar(), "one of `json_schema`, `regex`, `lark`, `choice`"),
    "two kinds": (Grammar(regex="a", choice=["a"]), "one of `json_schema`"),
    "a large enum": (Grammar(json_schema={"enum": [f"value {at}" for at in range(20_000)]}), "bytes; it may"),
    "deep": (Grammar(json_schema=nested(200)), "deeper than 64 levels"),
    "many": (Grammar(json_schema=one_of_many(2_000)), "more than 1000 properties"),
    "a loop": (Grammar(json_schema=LOOP), "leaves nothing"),
    "nothing": (Grammar(json_schema=False), "Unsatisfiable"),
    "a bad type": (Grammar(json_schema={"type": "strnig"}), "Invalid type: strnig"),
    "if": (Grammar(json_schema={"if": {}, "then": {}}), "Unimplemented keys"),
    "conflict": (
        Grammar(json_schema={"allOf": [{"type": "string"}, {"type": "null"}]}),
        "incompatible types",
    ),
    "look-ahead": (Grammar(json_schema={"type": "string", "pattern": "^(?=a)b"}), "look-around"),
    "no regex": (Grammar(regex="(" * 300), "invalid regex|unclosed|nest"),
    "an empty class": (Grammar(regex=r"[^\s\S]"), "leaves nothing"),
    "a long regex": (Grammar(regex="a" * 20_000), "bytes; it may have 16384"),
    "wide": (Grammar(lark="start: " + " | ".join(f'"a{at}"' for at in range(1_300))), "row has 1301 items"),
    "an unknown rule": (Grammar(lark="start: x"), 'unknown name: "x"'),
    "a special token": (Grammar(lark="start: <|im_end|>"), "unknown special token"),
    "the end": (Grammar(lark='start: "a" <end>'), "unknown special token"),
    "deep brackets": (Grammar(lark="start: " + "(" * 2_000), "too deeply nested"),
    "ambiguous": (Grammar(lark=lark_chain(800, 'r{}:(r{}|"y")+\n')), "Too many items"),
    "no JSON": (Grammar(json_schema={"const": object()}), "not JSON"),
    "a multiple of much": (Grammar(json_schema={"type": "integer", "multipleOf": 999_983}), "takes too long"),
    "many patterns at once": (Grammar(json_schema=patterns("allOf", 9)), "9 different `pattern`s"),
    "many within Lark": (
        Grammar(lark=f"start: %json {json.dumps(patterns('allOf', 9))}"),
        "lark` has 9 different `pattern`s",
    ),
    "many at once": (Grammar(lark=f"start: T\nT: {AT_ONCE}"), "takes too long"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(name: str) -> None:
    grammar, words = REFUSED[name]
    with pytest.raises(TextError, match=words) as caught:
        check(grammar)
    assert str(caught.value).startswith("`params.grammar")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


TREE = {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}}
TAKEN = {
    "a long constant": Grammar(json_schema={"const": "x" * 65_000}),
    "no choice for very long": Grammar(regex="(abcd){30000}"),
    "no choice in rules": Grammar(lark=f'start: x{{1000}}\nx: "{"y" * 1000}"'),
    "a long string": Grammar(json_schema={"type": "string", "maxLength": 4_000}),
    "patterns that overlap": Grammar(json_schema=OVERLAP),
    "anything": Grammar(json_schema=True),
    "no limits of its own": Grammar(json_schema={"type": "object"}),
    "deep": Grammar(json_schema=nested(31)),
    "few patterns at once": Grammar(json_schema=patterns("allOf", 8)),
    "many patterns, each by itself": Grammar(json_schema=patterns("anyOf", 30)),
    "a chain of rules": Grammar(lark=lark_chain(1_100, "r{}:r{}\n")),
    "a tree": Grammar(json_schema=TREE),
    "options": Grammar(json_schema={"type": "string", "x-guidance": {"lenient": True}}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_can_is_taken(name: str) -> None:
    check(TAKEN[name])


def test_whatever_became_of_the_process_that_compiled_the_one_before() -> None:
    checker = Checker()
    source = source_of(Grammar(regex="a"))
    assert checker.problem_of(source) == ""
    first = checker._process
    assert first is not None
    assert checker.problem_of(source_of(REFUSED["many at once"][0]), 0.05) == TOO_LONG
    assert first.returncode == -signal.SIGPROF
    assert checker.problem_of(source) == ""
    assert checker._process is not None
    checker._process.send_signal(signal.SIGSEGV)
    checker._process.wait()
    assert checker.problem_of(source) == ""
    checker.close()


def test_a_grammar_is_not_remembered_as_none_since_its_compiler_was_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the system kills where memory is short: the same grammar is good when it is sent again."""
    checker, source = Checker(), source_of(Grammar(regex="never asked before"))
    monkeypatch.setattr(grammar_module, "_checker", checker)
    assert grammar_module.problem_of(source_of(Grammar(regex="nor this"))) == ""
    assert checker._process is not None
    kill = checker._process.kill

    class Killing(BytesIO):
        def write(self, said: Any) -> int:
            kill()
            return len(said)

    checker._lines = cast(Any, Killing())
    with pytest.raises(grammar_module.NoCompilerError):
        grammar_module.problem_of(source)
    assert grammar_module.problem_of(source) == ""
    checker.close()


def test_where_there_is_no_process_for_it_a_grammar_may_be_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def has_none(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    checker, source = Checker(), source_of(Grammar(regex="asked where there is no process"))
    monkeypatch.setattr(grammar_module, "_checker", checker)
    with monkeypatch.context() as short:
        short.setattr("subprocess.Popen", has_none)
        with pytest.raises(Refusal, match="cannot be begun now: send this again") as caught:
            grammar_module.problem_of(source)
    assert (caught.value.code, caught.value.retry_after_ms) == ("overloaded", 1000)
    assert "temporarily unavailable" in caplog.text
    assert grammar_module.problem_of(source) == ""
    checker.close()


def test_nor_is_it_remembered_where_its_compiler_could_not_begin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where memory is short while it is read in: it ends by itself, and has looked at no grammar."""
    checker, source = Checker(), source_of(Grammar(regex="asked where it ends at once"))
    monkeypatch.setattr(grammar_module, "_checker", checker)
    with monkeypatch.context() as short:
        short.setattr("sys.executable", "/bin/false")
        with pytest.raises(grammar_module.NoCompilerError):
            grammar_module.problem_of(source)
    assert "the compiler of grammars has ended with status 1" in caplog.text
    assert grammar_module.problem_of(source) == ""
    checker.close()


def test_a_compiler_without_room_for_its_thread_ends_and_blames_no_grammar() -> None:
    script = (
        "import threading; from engine.structure.checker_process import main\n"
        'def cannot_start(thread): raise RuntimeError("can\'t start new thread")\n'
        "threading.Thread.start = cannot_start; main()"
    )
    asked = json.dumps([1.0, source_of(Grammar(regex="a"))])
    done = subprocess.run(
        [sys.executable, "-c", script], input=f"{asked}\n", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_compiler_that_hangs_holds_up_no_program_that_ends() -> None:
    """Whose threads Python waits for, before it has anything else brought to an end."""
    checker, source = Checker(), source_of(Grammar(regex="asked of one that hangs"))
    assert checker.problem_of(source) == ""
    hanging = checker._process
    assert hanging is not None
    hanging.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(checker.problem_of, source)
        while not checker._lock.locked():
            pass
        checker.close()
        error = asked.exception(10)
        assert error is None or isinstance(error, NoAnswerError), "none where it had not asked yet"
    assert hanging.returncode == -signal.SIGKILL


def test_what_was_asked_lately_is_known_however_many_others_were_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or it would be compiled between others' events, where it is asked again to begin its stream."""
    compiled = Counter[str]()

    def compiles(source: str, most_s: float) -> str:
        compiled[source] += 1
        return ""

    monkeypatch.setattr(grammar_module, "_known_problems", OrderedDict[bytes, str]())
    monkeypatch.setattr(grammar_module, "MOST_KNOWN", 4)
    monkeypatch.setattr(grammar_module._checker, "problem_of", compiles)
    for asked in "abcd" + "aeafaga" + "bcdhb":
        grammar_module.problem_of(asked)
    assert compiled == Counter(a=1, e=1, f=1, g=1, h=1, b=2, c=2, d=2)
    assert len(grammar_module._known_problems) == 4


@pytest.mark.parametrize("grammar", MANY, ids=str)
def test_so_are_those_of_the_other_tests(grammar: Grammar) -> None:
    check(grammar)


def test_its_own_options_are_not_a_clients_to_set() -> None:
    with pytest.raises(TextError, match="Unimplemented"):
        check(Grammar(json_schema={"if": {}, "x-guidance": {"lenient": True}}))


def test_a_grammar_that_begins_anew_again_and_again_is_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held = set[int]()

    class Copied:
        def __init__(self, matcher: Any) -> None:
            self._matcher = matcher
            held.add(id(self))

        def __del__(self) -> None:
            held.discard(id(self))

        def deep_copy(self) -> Copied:
            return Copied(self._matcher.deep_copy())

        def __getattr__(self, name: str) -> Any:
            return getattr(self._matcher, name)

    monkeypatch.setattr(matcher_module, "matcher_of", lambda *asked: Copied(matcher_of(*asked)))
    matcher = Matcher(source_of(Grammar(regex="ab|cd")), toy_vocabulary())
    matcher.accept([*b"a"])
    allowed = matcher.mask()
    for _ in range(100):
        matcher.begin_anew()
        matcher.accept([*b"c"])
    assert len(held) == 2, "the grammar at its beginning, and where it is"
    for _ in range(100):
        matcher.back(1)
        matcher.drop_run()
    assert matcher.mask() == allowed


AMBIGUOUS = Grammar(lark='start: e\ne: "a" | e e | e "b" e')


class Held:
    """A matcher that notes how much it was asked to follow at once, and how often for long."""

    def __init__(self, matcher: Any, noted: list[int]) -> None:
        self._matcher = matcher
        self._noted = noted

    def deep_copy(self) -> Held:
        return Held(self._matcher.deep_copy(), self._noted)

    def consume_token(self, token: int) -> bool:
        self._noted.append(1)
        return bool(self._matcher.consume_token(token))

    def validate_tokens(self, tokens: list[int]) -> int:
        self._noted.append(len(tokens))
        return int(self._matcher.validate_tokens(tokens))

    def consume_tokens(self, tokens: list[int]) -> bool:
        self._noted.append(len(tokens))
        return bool(self._matcher.consume_tokens(tokens))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def test_text_is_followed_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matcher keeps the interpreter, and with it everybody's step, for as long as each takes."""
    noted = list[int]()
    monkeypatch.setattr(matcher_module, "matcher_of", lambda *asked: Held(matcher_of(*asked), noted))
    monkeypatch.setattr("engine.structure.follower.LONG_S", 60.0)
    matcher = Matcher(source_of(Grammar(regex="(ab)+c")), toy_vocabulary())
    matcher.accept([*b"ab" * 500])
    assert matcher.would_fit([*b"bc"], dropped=0, void=1), "for which all of it is followed again"
    assert max(noted) == 1
    matcher.back(1)
    matcher.accept([*b"bab"])
    assert not matcher.fits([*b"b"])


@pytest.mark.parametrize("grammar", [*MANY, AMBIGUOUS])
def test_what_takes_long_is_followed_without_the_interpreter_and_comes_to_the_same(
    grammar: Grammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token behind one that took long is followed in a thread of the library's."""
    vocabulary, without, library = toy_vocabulary(), list[int](), follower._library
    text = walk(Matcher(source_of(grammar), vocabulary), 12, random.Random(7), vocabulary.ends)

    class Noting:
        def follow(self, matcher: LLMatcher, token: int) -> bool:
            without.append(token)
            return library.follow(matcher, token)

    monkeypatch.setattr(follower, "_library", Noting())
    came: list[list[Any]] = []
    for long_s in (60.0, -1.0):
        monkeypatch.setattr(follower, "LONG_S", long_s)
        matcher = Matcher(source_of(grammar), vocabulary)
        came.append([])
        for at in range(len(text)):
            came[-1] += [matcher.mask(), matcher.fits(text[at:]), matcher.fits([*text[at:-1], *b"\0\0"])]
            matcher.expect(tuple(text[at:]))
            came[-1].append(matcher.masks_ahead())
            matcher.accept([text[at]])
        matcher.back(len(text) // 2)
        came[-1].append(matcher.mask())
        assert (len(without) > len(text)) == (long_s < 0)
    assert came[0] == came[1]


@pytest.mark.parametrize("regex", [r"(\S{1,9}\s?){1,200}", r"(\w+\s*[,;]?\s*){1,400}"])
def test_an_expression_whose_masks_take_much_work_is_followed_from_wherever_it_is_begun(regex: str) -> None:
    grammar, vocabulary = Grammar(regex=regex), toy_vocabulary()
    check(grammar)
    matcher = Matcher(source_of(grammar), vocabulary)
    text = walk(matcher, 60, random.Random(3), vocabulary.ends)
    fresh = Matcher(source_of(grammar), vocabulary)
    fresh.accept(text)
    assert fresh.mask() == matcher.mask(), "though nothing of its work was done in masks before"
    begun = Matcher(source_of(grammar), vocabulary)
    begun.mask()
    assert begun.fits(text)
    begun.accept(text)
    assert begun.mask() == matcher.mask(), "nor by the one that it had"


def went_on(matcher: Matcher) -> None:
    matcher.accept([*b"ax"])
    matcher.mask()
    matcher.back(2)


def drafted(matcher: Matcher) -> None:
    matcher.mask()
    matcher.expect((*b"ax",))
    matcher.masks_ahead()


def asked(matcher: Matcher) -> None:
    matcher.mask()
    assert not matcher.fits([*b"axq"])


@pytest.mark.parametrize("elsewhere", [went_on, drafted, asked])
@pytest.mark.parametrize("long_s", [60.0, -1.0])
def test_a_mask_is_of_the_way_that_came_and_not_of_another_as_long(
    elsewhere: Callable[[Matcher], None], long_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though both are in the midst of the same terminal, and in a row as far on."""
    monkeypatch.setattr(follower, "LONG_S", long_s)
    source = source_of(Grammar(lark='start: "a" /x+/ "p" | "b" /x+/ "q"'))
    matcher, fresh = Matcher(source, toy_vocabulary()), Matcher(source, toy_vocabulary())
    elsewhere(matcher)
    matcher.accept([*b"bx"])
    fresh.accept([*b"bx"])
    mask = matcher.mask()
    assert mask == fresh.mask()
    assert mask is not None
    assert allowed(mask, 9) == [*b"qx"]


def test_what_does_not_fit_for_what_it_would_take_leaves_nothing_behind() -> None:
    names = [f"r{number}" for number in range(700)]
    lark = [f"start: /x/* more?\nmore: /y/ ({' | '.join(names)})*", *(f"{name}: /a/ /b/" for name in names)]
    grammar = Grammar(lark="\n".join(lark))
    check(grammar)
    matcher = Matcher(source_of(grammar), toy_vocabulary())
    matcher.accept([*b"xx"])
    mask = matcher.mask()
    assert not matcher.fits([*b"xyab"]), "its rows would be too wide"
    assert matcher.mask() == mask


def fits(grammar: Grammar, text: str) -> bool:
    ends = sorted(toy_vocabulary().ends)
    matcher = Matcher(source_of(grammar), toy_vocabulary())
    return matcher.fits([*text.encode(), *ends])


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("a/b", "a/b"),
        (r"a\/b", "a/b"),
        ("a\nb", "a\nb"),
        ("a\\\nb", "a\nb"),
        (r"a\\", "a\\"),
        (r"[/\\]+", "/\\"),
    ],
)
def test_a_regex_means_what_it_says(regex: str, text: str) -> None:
    assert fits(Grammar(regex=regex), text)
    assert re.fullmatch(regex, text)
    assert not fits(Grammar(regex=regex), text + "x")


def test_as_many_options_as_there_may_be_can_be_followed() -> None:
    options = [f"option {at}" for at in range(MAX_CHOICES)]
    matcher = Matcher(source_of(Grammar(choice=options)), toy_vocabulary())
    matcher.accept(toy_vocabulary().tokenizer.tokenize_str(options[-1]))
    assert matcher.mask() is not None


@pytest.mark.parametrize("choice", ["yes", 'qu"ote', "a\nline", "back\\slash", "🙂", "/slash/", " "])
def test_a_choice_is_the_text_itself(choice: str) -> None:
    grammar = Grammar(choice=["other", choice])
    check(grammar)
    assert fits(grammar, choice)
    assert not fits(grammar, choice + choice)


@pytest.mark.parametrize("spelt", ["<s>", "<|im_end|>", "<tool>", "ünït ▁x"])
def test_a_choice_that_spells_a_token_of_the_models_is_text(spelt: str, tmp_path: Path) -> None:
    definition = byte_level_json()
    (tmp_path / "tokenizer.json").write_text(definition)
    end = token_of(library(definition), "</s>")
    vocabulary = read_vocabulary(tmp_path, byte_level().vocab, [end])
    assert vocabulary is not None
    matcher, written = Matcher(source_of(Grammar(choice=[f"a{spelt}b"])), vocabulary), list[int]()
    while (mask := matcher.mask()) is not None and mask[end] != ALLOWED:
        tokens = matcher.forced() or [mask.index(ALLOWED)]
        matcher.accept(tokens)
        written += tokens
    assert b"".join(map(byte_level().token_bytes, written)).decode() == f"a{spelt}b"


def test_nothing_is_forced_that_the_model_has_no_weights_for(tmp_path: Path) -> None:
    """A tokenizer may have more tokens than the model: a step that was to compute one would fail for all."""
    definition = byte_level_json()
    (tmp_path / "tokenizer.json").write_text(definition)
    end, size = token_of(library(definition), "</s>"), 300
    assert max(library(definition).encode("a lazy dog").ids) >= size
    vocabulary = read_vocabulary(tmp_path, size, [end])
    assert vocabulary is not None
    matcher, written = Matcher(source_of(Grammar(choice=["a lazy dog"])), vocabulary), list[int]()
    while (mask := matcher.mask()) is not None and mask[end] != ALLOWED:
        assert len(mask) == size
        tokens = matcher.forced() or [mask.index(ALLOWED)]
        matcher.accept(tokens)
        written += tokens
    assert b"".join(map(byte_level().token_bytes, written)).decode() == "a lazy dog"
    assert max(written) < size


@pytest.mark.parametrize(
    "definition", ["[" * 99_999, json.dumps(json.loads(byte_level_json()) | {"decoder": inf})]
)
def test_a_tokenizer_that_cannot_be_read_has_no_grammars(definition: str, tmp_path: Path) -> None:
    """Of the library's own failures one is no `Exception`, and ended the engine."""
    (tmp_path / "tokenizer.json").write_text(definition)
    assert read_vocabulary(tmp_path, 300, [2]) is None


def test_whitespace_is_an_option_and_has_a_bound() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    compact, spaced = Grammar(json_schema=schema), Grammar(json_schema=schema, whitespace=True)
    assert fits(compact, '{"a":1}')
    assert not fits(compact, '{"a": 1}')
    assert fits(spaced, '{"a":1}')
    assert fits(spaced, '{\n  "a": 1\n}')
    assert not fits(spaced, '{"a":' + " " * 50 + "1}")


def test_lark_that_is_too_long_has_no_schemas_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each opening of many is read to the end, in vain: seconds, in which nobody else has the interpreter."""

    def unread(*_: Any) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", unread)
    with pytest.raises(TextError, match="bytes; it may have 16384"):
        check(Grammar(lark="start: " + '{"%json":[' * 400 + ",".join(['""'] * 100_000)))


@pytest.mark.parametrize("opening", ["%json", '{"%json":['])
def test_few_schemas_that_are_none_are_read(opening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = list[int](), json.JSONDecoder.raw_decode

    def counted(self: json.JSONDecoder, s: str, idx: int = 0) -> tuple[Any, int]:
        reads.append(idx)
        return read(self, s, idx)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    with pytest.raises(TextError, match="more than 32 `%json`"):
        check(Grammar(lark="start: " + opening * 400 + '{"a":[' + "[]," * 2500))
    assert len(reads) == 33
    texts = " ".join(['"%json {"'] * 20)
    check(Grammar(lark=f'start: {texts} %json {{"type": "null"}}'))


def test_a_grammar_that_waits_to_be_compiled_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many that wait, of tools whose arguments all bring the same definition."""
    brought = "".join(map(str, range(10_000)))
    asked = list[str]()

    def source() -> str:
        return source_of_lark("\n".join(f'r{at}: "{at}" "{brought}"' for at in range(50)))

    def counted(asked_for: str, most_s: float) -> str:
        asked.append(asked_for)
        return ""

    monkeypatch.setattr(grammar_module._checker, "problem_of", counted)
    tracemalloc.start()
    try:
        with of_known(), pytest.raises(NotKnownError) as raised:
            problem_of(source())
        unknown = raised.value.unknown
        del raised
        assert tracemalloc.get_traced_memory()[0] < len(source()) / 10
    finally:
        tracemalloc.stop()
    assert unknown.find_out() is None
    assert asked == [source()]
