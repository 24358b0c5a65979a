"""Command-line arguments that the commands share. Ranges are the protocol's, checked at once."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec

from midstream.dial import check_key
from midstream.options import ParamOptions
from midstream.protocol import MAX_INDEX, Grammar, Params
from midstream.url import websocket_url

URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "MIDSTREAM_API_KEY"
_GRAMMARS = ("json_schema", "regex", "lark", "choice")
_SAMPLING = ("temperature", "top_p", "max_tokens", "seed")


def add_url(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--url", default=URL, type=_url, help=f"where the server is (default {URL}; its key: ${KEY_VARIABLE})"
    )


def add_sampling(parser: ArgumentParser) -> None:
    parser.add_argument("--temperature", type=number(float, 0, 2), metavar="T", help="0 is greedy; up to 2")
    parser.add_argument("--top-p", type=number(float, 0, 1), metavar="P", help="0 to 1")
    parser.add_argument(
        "--max-tokens", type=number(int, 1, MAX_INDEX), metavar="N", help="the longest an answer may be"
    )
    parser.add_argument(
        "--seed", type=number(int, -(2**63), 2**63 - 1), metavar="N", help="the same seed, the same answer"
    )
    parser.add_argument(
        "--param",
        type=_param,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other sampling parameter of the protocol, its value as JSON; may be given again",
    )


def add_grammar(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("what answers must be, where a request does not say it itself")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--json-schema", metavar="FILE", type=_json_file, help="JSON that fits this JSON schema")
    one.add_argument("--regex", metavar="REGEX", help="what this regular expression matches")
    one.add_argument("--lark", metavar="FILE", type=_text_file, help="what this Lark grammar describes")
    one.add_argument("--choice", metavar="TEXT", action="append", help="this text, or another --choice")


def grammar(arguments: Namespace) -> Grammar | None:
    """The grammar that was given."""
    given = {name: getattr(arguments, name) for name in _GRAMMARS if getattr(arguments, name) is not None}
    return msgspec.convert(given, Grammar) if given else None


def sampling(arguments: Namespace) -> ParamOptions:
    """What of the sampling options was given."""
    given = {name: getattr(arguments, name) for name in _SAMPLING if getattr(arguments, name) is not None}
    return cast(ParamOptions, given | dict(arguments.param))  # the parser has seen to the types


def api_key() -> str | None:
    """From the environment: on a command line anybody on the machine could read it."""
    key = os.environ.get(KEY_VARIABLE) or None
    try:
        check_key(key)
    except ValueError as error:
        raise SystemExit(f"midstream: {KEY_VARIABLE}: {error}") from None
    return key


def _url(text: str) -> str:
    try:
        websocket_url(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def _text_file(file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentTypeError(f"{file}: {error}") from None


def _json_file(file: str) -> object:
    try:
        return msgspec.json.decode(_text_file(file), type=dict[str, object] | bool)
    except msgspec.DecodeError as error:
        raise ArgumentTypeError(f"{file}: {error}") from None


def _param(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    if name not in Params.__struct_fields__:
        raise ArgumentTypeError(f"there is no {name!r}; there are {', '.join(Params.__struct_fields__)}")
    try:
        params = msgspec.convert({name: msgspec.json.decode(value)}, Params)
    except msgspec.DecodeError as error:  # a value of the wrong type or range is one of these too
        raise ArgumentTypeError(f"{text}: {str(error).partition(' - at')[0]}") from None
    return name, getattr(params, name)


def number(kind: type[int | float], minimum: float, maximum: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        word = "a whole number" if kind is int else "a number"
        try:
            value = kind(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {word}") from None
        if not minimum <= value <= maximum:
            raise ArgumentTypeError(f"{text} is not {word} from {minimum} to {maximum}")
        return value

    return read
