"""Prompts, chats and turns as tokens; what cannot be tokenized, and what a model folder may lack."""

from __future__ import annotations

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.protocol import Message, TextPart
from realtime.text import tokenizer as tokenizer_module
from realtime.text.special_tokens import _any_of
from realtime.text.tokenizer import TextError, Tokenizer, TooManyTokensError
from tests.fakes import small_tokenizers as small

SMOLLM2 = Path.home() / ".cache/midstream/models/smollm2-135m-instruct"
BYTE_LEVEL = small.byte_level()
SENTENCEPIECE = small.sentencepiece()
LIBRARIES = {
    BYTE_LEVEL: small.library(small.byte_level_json()),
    SENTENCEPIECE: small.library(small.sentencepiece_json()),
}
both_kinds = pytest.mark.parametrize("tokenizer", LIBRARIES, ids=["byte_level", "sentencepiece"])
spiced_text = st.lists(st.text(max_size=5) | st.sampled_from([*small.SPECIAL, "<tool>", " "])).map("".join)


def user(content: str | list[TextPart], **fields: Any) -> Message:
    return Message(role="user", content=content, **fields)


def assistant(content: str) -> Message:
    return Message(role="assistant", content=content)


def write_folder(folder: Path, **files: Any) -> Path:
    (folder / "tokenizer.json").write_text(small.byte_level_json(), encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@both_kinds
@given(text=st.text())
def test_ordinary_text_is_encoded_as_the_library_does(tokenizer: Tokenizer, text: str) -> None:
    library = LIBRARIES[tokenizer]
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.encode(text, special=False) == library.encode(text, add_special_tokens=False).ids


@both_kinds
@given(text=spiced_text)
def test_special_tokens_spelled_in_text_stay_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, special=False)
    assert not tokenizer.special & set(ids)
    assert LIBRARIES[tokenizer].decode(ids) == text.replace("▁", _underline(tokenizer))


def _underline(tokenizer: Tokenizer) -> str:
    """SentencePiece cannot tell its own sign for a space from one in the text."""
    return "▁" if tokenizer is BYTE_LEVEL else " "


def test_a_special_token_that_the_vocabulary_could_spell_stays_text() -> None:
    definition = json.loads(small.byte_level_json())
    definition["added_tokens"].append(definition["added_tokens"][0] | {"id": 900, "content": "the"})
    definition["model"]["vocab"]["the"] = 900
    definition["model"]["merges"] += [["t", "h"], ["th", "e"], ["the", "re"]]
    definition["model"]["vocab"] |= {"th": 901, "there": 902, "re": 903}
    tokenizer = Tokenizer(definition)
    assert not tokenizer.special & set(tokenizer.encode("the there", special=False))


def test_of_special_tokens_that_begin_alike_the_longest_is_meant() -> None:
    library = small.library(small.byte_level_json())
    library.add_special_tokens(["<s>longer"])
    tokenizer = Tokenizer(json.loads(library.to_str()), "<s>longer{{ messages[0].content }}")
    ids = tokenizer.encode_chat([user("<s>longer")])
    assert ids[0] == small.token_of(library, "<s>longer")
    assert not tokenizer.special & set(ids[1:])


def test_what_special_tokens_begin_with_is_looked_for_once() -> None:
    names = [f"<|reserved_special_token_{number}|>" for number in range(250)]
    pattern = _any_of([*names, "<|", "|>"])
    assert pattern.pattern.count("reserved") == 1
    text = "a<|reserved_special_token_12|>b<|reserved_special_token_1<|c|>" + names[249]
    assert pattern.findall(text) == [names[12], "<|", "<|", "|>", names[249]]


@given(texts=st.sets(st.text("ab<|", min_size=1, max_size=5), max_size=12), text=st.text("ab<|", max_size=40))
def test_and_the_longest_is_found(texts: set[str], text: str) -> None:
    longest_first = "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)"
    assert _any_of(texts).findall(text) == re.findall(longest_first, text)


def test_a_prompt_begins_as_the_model_expects() -> None:
    assert BYTE_LEVEL.encode("hi")[0] == small.token_of(LIBRARIES[BYTE_LEVEL], "<s>")
    assert BYTE_LEVEL.encode("hi")[1:] == BYTE_LEVEL.encode("hi", special=False)


def test_special_tokens_and_vocabulary_have_the_library_s_numbers() -> None:
    for tokenizer, library in LIBRARIES.items():
        added = library.get_added_tokens_decoder()
        assert tokenizer.special == {token for token, entry in added.items() if entry.special}
        assert tokenizer.vocab == library.get_vocab_size()


def test_an_added_token_with_a_role_is_special() -> None:
    tokenizer = Tokenizer(json.loads(small.byte_level_json()), None, {"eos_token": "<tool>"})
    tool = small.token_of(LIBRARIES[BYTE_LEVEL], "<tool>")
    assert tool in tokenizer.special
    assert tokenizer.token_bytes(tool) == b""
    assert tool not in tokenizer.encode("<tool>")


def test_token_bytes() -> None:
    library = LIBRARIES[BYTE_LEVEL]
    assert BYTE_LEVEL.token_bytes(small.token_of(library, "Ġ")) == b" "
    assert BYTE_LEVEL.token_bytes(small.token_of(library, "<tool>")) == b"<tool>"
    assert BYTE_LEVEL.token_bytes(small.token_of(library, "<|im_end|>")) == b""
    assert BYTE_LEVEL.token_bytes(10**6) == b""
    assert SENTENCEPIECE.token_bytes(small.token_of(LIBRARIES[SENTENCEPIECE], "<0xF0>")) == b"\xf0"


def test_a_chat_is_the_template_s_text_with_its_special_tokens() -> None:
    ids = BYTE_LEVEL.encode_chat([user("Stop here"), assistant("wörld")])
    text = (
        "<|im_start|>user\nStop here<|im_end|>\n<|im_start|>assistant\nwörld<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ids == LIBRARIES[BYTE_LEVEL].encode(text, add_special_tokens=False).ids


def test_without_a_generation_prompt_nothing_is_opened() -> None:
    ids = BYTE_LEVEL.encode_chat([user("hi")], add_generation_prompt=False)
    text = "<|im_start|>user\nhi<|im_end|>\n"
    assert ids == LIBRARIES[BYTE_LEVEL].encode(text, add_special_tokens=False).ids


def test_the_first_token_stands_once_where_the_template_writes_it() -> None:
    ids = SENTENCEPIECE.encode_chat([user("hi")])
    assert ids.count(small.token_of(LIBRARIES[SENTENCEPIECE], "<s>")) == 1
    assert ids == LIBRARIES[SENTENCEPIECE].encode("<s>[INST] hi [/INST]", add_special_tokens=False).ids


@both_kinds
@given(content=spiced_text)
def test_no_content_brings_special_tokens_into_a_chat(tokenizer: Tokenizer, content: str) -> None:
    plain = [token for token in tokenizer.encode_chat([user("x")]) if token in tokenizer.special]
    spiced = tokenizer.encode_chat([user(content)])
    assert [token for token in spiced if token in tokenizer.special] == plain


def test_hidden_special_text_reaches_the_model_as_it_was_written() -> None:
    ids = BYTE_LEVEL.encode_chat([user("a<|im_end|>b</s>")], add_generation_prompt=False)
    assert LIBRARIES[BYTE_LEVEL].decode(ids) == "user\na<|im_end|>b</s>\n"


def test_a_role_or_a_name_cannot_forge_a_turn() -> None:
    template = "{{ messages[0].role }} {{ messages[0].name }}"
    tokenizer = small.byte_level(template)
    ids = tokenizer.encode_chat([Message(role="<|im_start|>", name="<|im_end|>", content="")])
    assert not tokenizer.special & set(ids)
    assert LIBRARIES[BYTE_LEVEL].decode(ids) == "<|im_start|> <|im_end|>"


def test_parts_of_a_content_are_one_text() -> None:
    parts = [TextPart(text="a<|im_"), TextPart(text="end|>b")]
    assert BYTE_LEVEL.encode_chat([user(parts)]) == BYTE_LEVEL.encode_chat([user("a<|im_end|>b")])


def test_turns_close_the_answer_and_open_another() -> None:
    ids = BYTE_LEVEL.encode_turns([user("Stop here</s>")])
    text = "<|im_end|>\n<|im_start|>user\nStop here{}<|im_end|>\n<|im_start|>assistant\n"
    assert LIBRARIES[BYTE_LEVEL].decode(ids, skip_special_tokens=False) == text.format("</s>")
    plain = BYTE_LEVEL.encode_turns([user("Stop here")])
    assert plain == LIBRARIES[BYTE_LEVEL].encode(text.format(""), add_special_tokens=False).ids


def test_turns_go_on_from_the_answer_without_a_space() -> None:
    tokenizer = small.sentencepiece("{% for message in messages %}{{ message.content }}.{% endfor %}")
    ids = tokenizer.encode_turns([user("stop")])
    assert b"".join(map(tokenizer.token_bytes, ids)) == b".stop."


def test_turns_follow_text_that_the_template_trims() -> None:
    library = LIBRARIES[SENTENCEPIECE]
    ids = SENTENCEPIECE.encode_turns([user("stop")])
    assert ids == library.encode("</s>[INST] stop [/INST]", add_special_tokens=False).ids


def test_a_template_s_refusal_is_said_in_its_own_words() -> None:
    with pytest.raises(TextError, match="Roles must alternate, but here is assistant"):
        SENTENCEPIECE.encode_turns([assistant("x")])
    with pytest.raises(TextError, match="but here is <s>"):
        SENTENCEPIECE.encode_chat([Message(role="<s>", content=""), user("")])


def test_a_refusal_does_not_quote_the_mark() -> None:
    tokenizer = small.byte_level("{{ raise_exception('not ' + messages[1].content) }}")
    with pytest.raises(TextError, match=r"not …$"):
        tokenizer.encode_turns([user("x")])


def test_a_template_that_drops_answers_allows_no_turns() -> None:
    with pytest.raises(TextError, match="behind an unfinished answer"):
        small.byte_level("{{ messages[0].content }}").encode_turns([user("x")])


def test_a_template_that_fails_otherwise() -> None:
    with pytest.raises(TextError, match="fails on these messages"):
        small.byte_level("{{ messages[0].content + 1 }}").encode_chat([user("x")])


def test_a_model_without_a_template_wants_a_prompt() -> None:
    with pytest.raises(TextError, match="no chat template: send a `prompt`"):
        small.byte_level(None).encode_chat([user("x")])


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(TextError, match="lone surrogate"):
        BYTE_LEVEL.encode("a\ud800")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}x{% endfor %}", "x"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=True) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ strftime_now('%%') }}", "%"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ tools is none and documents is none }}", "True"),
        ("{{ messages[0].name is defined }}", "False"),
    ],
)
def test_templates_find_what_hugging_face_promises_them(template: str, text: str) -> None:
    ids = small.byte_level(template).encode_chat([user("1"), user("2")])
    assert LIBRARIES[BYTE_LEVEL].decode(ids) == text


def test_templates_are_kept_in_a_sandbox() -> None:
    with pytest.raises(TextError, match="refuses"):
        small.byte_level("{{ ''.__class__.__mro__ }}").encode_chat([user("x")])


def test_loading_takes_the_template_from_its_own_file_first(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer_config={"chat_template": "config"})
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(folder).encode_chat([user("x")]) == BYTE_LEVEL.encode("file", special=False)


@pytest.mark.parametrize(
    "field",
    [
        "{{ eos_token }}field",
        [{"name": "rag", "template": "no"}, {"name": "default", "template": "{{ eos_token }}field"}],
    ],
)
def test_loading_takes_the_template_from_the_configuration(tmp_path: Path, field: Any) -> None:
    config = {"chat_template": field, "eos_token": {"content": "<|im_end|>"}}
    tokenizer = Tokenizer.load(
        write_folder(tmp_path, tokenizer_config=config, special_tokens_map={"eos_token": "</s>"})
    )
    ids = LIBRARIES[BYTE_LEVEL].encode("<|im_end|>field", add_special_tokens=False).ids
    assert tokenizer.encode_chat([user("x")]) == ids


def test_loading_without_a_default_template(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "rag", "template": "no"}]}
    with pytest.raises(TextError, match="no chat template"):
        Tokenizer.load(write_folder(tmp_path, tokenizer_config=config)).encode_chat([user("x")])


def test_loading_ignores_truncation_and_padding(tmp_path: Path) -> None:
    library = small.library(small.byte_level_json())
    library.enable_truncation(2)
    library.enable_padding()
    (tmp_path / "tokenizer.json").write_text(library.to_str(), encoding="utf-8")
    assert Tokenizer.load(tmp_path).encode("Stop here, then") == BYTE_LEVEL.encode("Stop here, then")


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(small.byte_level_json()) | fields)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "has no tokenizer.json"),
        ("{", "tokenizer.json cannot be read"),
        ("[]", "tokenizer.json cannot be read"),
        ("[" * 99_999, "tokenizer.json cannot be read"),
        ("{}", "shape"),
        (changed(model={"type": "BPE", "vocab": {"a": "b"}}), "tokenizers library cannot read"),
        (changed(decoder=None), "neither byte-level nor"),
        (changed(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), "neither byte-level nor"),
        (
            changed(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}),
            "neither byte-level nor",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(TextError, match=sentence) as refusal:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) not in str(refusal.value)


@pytest.mark.parametrize("template", ["{% if %}", "{{ " + "-" * 99_999 + "1 }}", [{"template": "nameless"}]])
def test_a_template_that_cannot_be_used_is_refused(tmp_path: Path, template: Any) -> None:
    folder = write_folder(tmp_path, tokenizer_config={"chat_template": template})
    with pytest.raises(TextError, match=r"not a valid Jinja template|shape"):
        Tokenizer.load(folder)


def test_threads_may_encode_at_once() -> None:
    texts = [f"{line} <|im_end|> {n}" for n, line in enumerate(small.LINES * 5)]
    chats = [[user(text)] for text in texts]
    with ThreadPoolExecutor(4) as pool:
        prompts = pool.map(BYTE_LEVEL.encode, texts)
        rendered = pool.map(BYTE_LEVEL.encode_chat, chats)
        assert list(prompts) == [BYTE_LEVEL.encode(text) for text in texts]
        assert list(rendered) == [BYTE_LEVEL.encode_chat(chat) for chat in chats]


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="the default model is not in the cache folder")
@pytest.mark.filterwarnings("default")
def test_the_default_model_s_chats_are_as_transformers_makes_them() -> None:
    from transformers import AutoTokenizer  # a slow import, needed for the comparison alone

    theirs = AutoTokenizer.from_pretrained(str(SMOLLM2))
    ours = Tokenizer.load(SMOLLM2)
    for system in ([], [Message(role="system", content="Be brief.")]):
        for line in small.LINES[:4]:
            messages = [*system, user(line), assistant(f" {line}\n"), user("And?")]
            turns = [{"role": message.role, "content": str(message.content)} for message in messages]
            expected = theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
            assert ours.encode_chat(messages) == expected
            assert ours.encode(line) == theirs(line)["input_ids"]


class Watched:
    """The library, and how long the texts were that it was given."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.lengths: list[int] = []

    def encode_batch_fast(self, texts: list[str], **asked: Any) -> Any:
        self.lengths += map(len, texts)
        return self._library.encode_batch_fast(texts, **asked)


SMALL_PIECE = 1024


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "PIECE", SMALL_PIECE)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("text", ["1 " * (8 * SMALL_PIECE), "a1 " * (6 * SMALL_PIECE)])
def test_a_long_text_of_too_many_tokens_is_refused_by_its_pieces(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = small.byte_level()
    watched = Watched(tokenizer._library)
    monkeypatch.setattr(tokenizer, "_library", watched)
    with pytest.raises(TooManyTokensError) as caught:
        tokenizer.encode(text, below=3 * SMALL_PIECE)
    assert max(watched.lengths) <= SMALL_PIECE, "the whole was not looked at"
    assert 3 * SMALL_PIECE <= caught.value.fewest <= len(tokenizer.encode(text))


@pytest.mark.usefixtures("small_pieces")
def test_so_is_one_behind_an_unfinished_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small.byte_level()
    watched = Watched(tokenizer._library)
    monkeypatch.setattr(tokenizer, "_library", watched)
    with pytest.raises(TooManyTokensError):
        tokenizer.encode_turns([user("1 " * (8 * SMALL_PIECE))], below=3 * SMALL_PIECE)
    assert max(watched.lengths) <= SMALL_PIECE, "the whole was not looked at"


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("words", [["quick"], ["over", "1", "🇩🇪", "<s>", "xyzzy"], [" "], ["a" * 99]])
def test_pieces_refuse_nothing_that_fits(words: list[str]) -> None:
    tokenizer = small.byte_level()
    text = "".join(itertools.islice(itertools.cycle([*words, " "]), 4_000))
    tokens = len(tokenizer.encode(text))
    assert len(tokenizer.encode(text, below=tokens + 1)) == tokens
