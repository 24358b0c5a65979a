"""The tokenizer: prompts, chats, and turns injected in mid-answer, as tokens.

The one promise beyond the `tokenizers` library's own: text that a client wrote never becomes a special token,
whatever it spells (`special_tokens.py` says how). It knows no stream, no torch, and nothing of the model but
its folder. The other way, from tokens to text, is `detokenizer.py`, by the table of `token_bytes.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from msgspec.structs import replace

from midstream.protocol import CalledFunction, Message, MessageToolCall, Tool
from realtime.text.chat_template import ChatTemplate, NotBriefError, TextError, template_source
from realtime.text.conversation import MOST_NESTED, NestedTooDeeplyError, tool_objects, turns
from realtime.text.decoded_turn import DecodedTurn, Turns, known_turns
from realtime.text.length_bound import LengthBound
from realtime.text.special_tokens import SpecialTokens
from realtime.text.token_bytes import TokenBytes
from realtime.tools.fallback import without_tools
from realtime.tools.spelling import AUTO, spelling_of

__all__ = ["NotBriefError", "TextError", "Tokenizer", "TooManyTokensError"]

# Of a model's folder, what text is made into tokens by: the first is always there.
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# What has so many characters for each token that it may have is looked at in pieces first: the library takes
# hundreds of bytes for each character of what it is given, and most of that for tokens.
CHARACTERS_A_TOKEN, PIECE = 4, 32 << 10
MOST_RENDERED = 16_384  # messages, with those that are rendered anew for each turn that was decoded here
BRIEF_TURNS = 16 << 10  # bytes of the turns that are compared with messages, and rendered each, in brief
CUT_TOKENS = 64  # that a piece may have more, since words were cut

NO_CALL = "unknown00"  # of which a result is that does not say: there are templates that want nine letters

# The roles of special tokens that chat templates know by name.
_ROLES = [f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]


class TooManyTokensError(TextError):
    """A text is certain to have at least `fewest` tokens, which are too many."""

    def __init__(self, fewest: int) -> None:
        super().__init__(f"The text has at least {fewest} tokens.")
        self.fewest = fewest


class Tokenizer:
    """A model's tokenizer and chat template. Immutable once loaded, and safe to share between threads.

    `vocab` is one more than the largest token; `special` are the tokens that are no text.

    Whatever encodes takes `below`: raise `TooManyTokensError` for a text that is certain to have so many
    tokens or more, before the work of making them.
    """

    def __init__(
        self,
        definition: dict[str, Any],
        template: str | None = None,
        roles: dict[str, str] | None = None,
        tool_format: str = AUTO,
    ) -> None:
        """`definition`: a parsed `tokenizer.json`, used up here. `roles`: which token is `bos_token`, etc.
        `tool_format`: the name of one, or that it follows from the template."""
        roles = roles or {}
        added = [token["content"] for token in definition["added_tokens"]]
        self._template = None if template is None else ChatTemplate(template, roles)
        self._specials = SpecialTokens(definition, roles.values())
        self._specials.rename(definition)
        self._library = _library(definition)
        vocab = self._library.get_vocab(with_added_tokens=True)
        self.vocab = max(vocab.values(), default=-1) + 1
        self.special = frozenset(vocab[name] for name in self._specials.names.values())
        self._bound = LengthBound(definition, vocab)
        self.pieces = TokenBytes(definition.get("decoder"), vocab, self.special)
        self.spelling = spelling_of(
            template or "",
            tool_format,
            pieces=self.pieces.bytes,
            added={text: vocab[self._specials.names.get(text, text)] for text in added},
            special=self.special,
            leading_spaces=self.pieces.leading_spaces,
        )
        self._word = self.encode("a", special=False)
        self.reasoning_end = self.encode_marked(self.spelling.delimiters.mark(self.spelling.reasoning_end))

    @classmethod
    def load(cls, folder: Path, tool_format: str = AUTO) -> Tokenizer:
        definition = _read_json(folder / "tokenizer.json")
        if definition is None:
            raise TextError("The model folder has no tokenizer.json.")
        config = _read_json(folder / "tokenizer_config.json") or {}
        roles = _roles(_read_json(folder / "special_tokens_map.json") or {}) | _roles(config)
        try:
            return cls(definition, template_source(folder, config), roles, tool_format)
        except (KeyError, TypeError, AttributeError, ValueError, OSError):
            raise TextError("The model's tokenizer files do not have the shape they should have.") from None

    def check_length(self, text: str, below: int) -> None:
        fewest = self._bound.fewest_tokens(text)
        if fewest >= below:
            raise TooManyTokensError(fewest)

    def encode(self, text: str, *, special: bool = True, below: int | None = None) -> list[int]:
        """The text's tokens. `special`: framed as the model expects a prompt, mostly by a first token."""
        if below is not None:
            self.check_length(text, below)
            self._check_pieces(text, below)
        return self._encoded(text, special=special).ids

    def _encoded(self, text: str, *, special: bool) -> tokenizers.Encoding:
        # encode() keeps the interpreter lock, for seconds if the text is long. The batch call lets go of it.
        try:
            return self._library.encode_batch_fast([text], add_special_tokens=special)[0]
        except TypeError:
            raise TextError("The text is not valid Unicode: it contains a lone surrogate.") from None

    def _check_pieces(self, text: str, below: int) -> None:
        if not self._bound.splits or len(text) <= max(PIECE, CHARACTERS_A_TOKEN * below):
            return
        fewest = 0
        for at in range(0, len(text), PIECE):
            fewest += max(0, len(self._encoded(text[at : at + PIECE], special=False)) - CUT_TOKENS)
            if fewest >= below:
                raise TooManyTokensError(fewest)

    def encode_chat(
        self,
        messages: list[Message],
        tools: list[Tool] | None = None,
        *,
        add_generation_prompt: bool = True,
        below: int | None = None,
        brief: bool = False,
        turns: Turns | None = None,
    ) -> list[int]:
        """A conversation by the model's template; the template writes its own first token. `brief`: raise
        `NotBriefError` where the template takes long. `turns`: those that stand in it as they were decoded,
        where the template lets them."""
        turns = turns or {}
        if brief and sum(turn.bytes for turn in turns.values()) > BRIEF_TURNS:
            raise NotBriefError("This conversation has much in it that was decoded here.")
        known = known_turns(messages, turns) if add_generation_prompt else []
        few = sum(at for at, _ in known) <= MOST_RENDERED
        for marked in (_marked_content, _marked_call) if known and few else ():
            restored = self._restored(messages, tools, known, marked, below, brief)
            if restored is not None:
                return restored
        rendered = self._render(messages, add_generation_prompt, brief, tools)
        return self.encode(rendered, special=False, below=below)

    def _restored(
        self,
        messages: list[Message],
        tools: list[Tool] | None,
        known: list[tuple[int, DecodedTurn]],
        marked: Callable[[Message, str], Message],
        below: int | None,
        brief: bool,
    ) -> list[int] | None:
        """Before each of those turns stands what opened it when it was decoded, and behind it what closes it.
        A template that does not show a mark once has its own way."""
        shown, tokens, mark = list(messages), list[int](), ""
        for number, (at, turn) in enumerate([*known, (len(messages), None)]):
            text = self._behind_turn(self._render(shown[:at], True, brief, tools), mark)
            if text is None:
                return None
            tokens += (
                self.encode(text, special=False, below=below)
                if not mark
                else self._encode_behind_text(text, below)
            )
            if turn is not None:
                tokens += turn.tokens
                mark = f"{self._specials.mark}{number}~"
                shown[at] = marked(messages[at], mark)
        if below is not None and len(tokens) >= below:
            raise TooManyTokensError(len(tokens))
        return tokens

    def _behind_turn(self, rendered: str, mark: str) -> str | None:
        """From what ends the turn that this mark stands in."""
        if not mark:
            return rendered
        _, found, behind = rendered.partition(mark)
        ended = behind.find(self._turn_end) if self._turn_end else -1
        return behind[ended:] if found and mark not in behind and ended >= 0 else None

    @cached_property
    def _turn_end(self) -> str:
        """With which special token the template ends a turn of the model's; nothing where it has none."""
        mark, question = self._specials.mark, Message(role="user", content="?")
        answer = Message(role="assistant", content=mark)
        try:
            _, _, behind = self._render([question, answer, question], True, False).partition(mark)
        except TextError:
            return ""
        return next((name for name in self._specials.names.values() if behind.lstrip().startswith(name)), "")

    def encode_turns(
        self, messages: list[Message], *, below: int | None = None, brief: bool = False
    ) -> list[int]:
        """What closes the model's open turn, stands the messages behind it, and opens a turn anew.

        The template is shown a conversation whose answer is a mark; what it writes after the mark is taken.
        """
        mark = self._specials.mark
        opened = [Message(role="user", content="?"), Message(role="assistant", content=mark)]
        try:
            _, *behind = self._render([*opened, *messages], True, brief).split(mark)
        except NotBriefError:
            raise
        except TextError:
            behind = self._behind_calls(opened, messages, brief)
            if not behind:
                raise
        if len(behind) != 1:
            raise TextError("The model's chat template cannot put messages behind an unfinished answer.")
        return self._encode_behind_text(behind[0], below)

    def _behind_calls(self, opened: list[Message], messages: list[Message], brief: bool) -> list[str]:
        """The same, of a template that takes results behind their calls alone."""
        results = [message for message in messages if message.role == "tool"]
        if not results:
            return []
        calls = [
            MessageToolCall(
                id=result.tool_call_id or NO_CALL,
                function=CalledFunction(name=result.name or NO_CALL, arguments="{}"),
            )
            for result in results
        ]
        question, answer = opened
        called = _marked_call(replace(answer, content="", tool_calls=calls), self._specials.mark)
        shown = [question, called, *messages]
        behind = self._behind_turn(self._render(shown, True, brief), self._specials.mark)
        return [] if behind is None else [behind]

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to the output: nothing if it is special, or unknown."""
        return self.pieces.bytes.get(token, b"")

    def encode_marked(self, marked: str) -> list[int]:
        """What goes on in the model's own turn, with marks for delimiters that are tokens."""
        tokens: list[int] = []
        for part in self.spelling.delimiters.parts(marked):
            tokens += [part] if isinstance(part, int) else self._encode_behind_text(part, None)
        return tokens

    def _encode_behind_text(self, text: str, below: int | None) -> list[int]:
        """SentencePiece puts a space before a text's first word, and here the text goes on from another."""
        before = len(self._word)
        both = self.encode("a" + text, special=False, below=None if below is None else below + before)
        return both[before:] if both[:before] == self._word else self.encode(text, special=False)

    def _render(
        self,
        messages: list[Message],
        add_generation_prompt: bool,
        brief: bool,
        tools: list[Tool] | None = None,
    ) -> str:
        if self._template is None:
            raise TextError("This model has no chat template: send a `prompt` instead of `messages`.")
        if not self.spelling.in_template:
            messages, tools = without_tools(messages, tools), None
        hide = self._specials.hide
        try:
            rendered = self._template.render(
                turns(messages, hide),
                tools=tool_objects(tools, hide),
                add_generation_prompt=add_generation_prompt,
                brief=brief,
            )
        except NestedTooDeeplyError:
            raise TextError(
                f"A tool's `parameters`, or a call's `arguments`, are nested deeper than {MOST_NESTED}."
            ) from None
        except NotBriefError:
            raise
        except TextError as error:
            raise TextError(self._specials.quote(str(error))) from None
        return self._specials.name(rendered)


def _marked_content(message: Message, mark: str) -> Message:
    return replace(message, content=mark, reasoning_content=None)


def _marked_call(message: Message, mark: str) -> Message:
    """There are templates that show calls in place of a content."""
    *calls, last = message.tool_calls or []
    called = CalledFunction(name=mark, arguments="{}")
    return replace(message, tool_calls=[*calls, replace(last, function=called)], reasoning_content=None)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise TextError(f"The model folder's {path.name} cannot be read.")
    return content


def _roles(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens that a configuration gives a role, each a string or an object with its `content`."""
    values = {role: config.get(role) for role in _ROLES}
    texts = {
        role: value.get("content") if isinstance(value, dict) else value for role, value in values.items()
    }
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _library(definition: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps(definition))
    except Exception:  # noqa: BLE001 - the library raises nothing more exact
        raise TextError("The tokenizers library cannot read the model folder's tokenizer.json.") from None
    library.no_truncation()
    library.no_padding()
    return library
