"""What the published description of the link says of messages, beside the messages that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

from engine import api
from engine.grpc_frames import METHOD, SERVICE, unwrapped, wrapped

PROTO = Path(__file__).parents[2] / "engine/listening/engine_link.proto"
CHANGES = {change.__name__ for change in api.AnyChange.__args__}


class Described:
    """Whatever can be reached from these messages, each as a line."""

    def __init__(self, messages: object) -> None:
        self.lines: dict[str, str] = {}
        self._of(inspect.type_info(messages))

    def _of(self, kind: inspect.Type) -> str:  # noqa: C901 - a table
        match kind:
            case inspect.IntType():
                return "int"
            case inspect.FloatType():
                return "float"
            case inspect.BoolType():
                return "bool"
            case inspect.StrType():
                return "str"
            case inspect.BytesType():
                return "bytes"
            case inspect.NoneType():
                return "nil"
            case inspect.LiteralType(values=values):
                return " or ".join(f'"{value}"' for value in sorted(map(str, values)))
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                return f"[{self._of(item)}...]"
            case inspect.TupleType(item_types=items):
                return f"[{', '.join(map(self._of, items))}]"
            case inspect.DictType(key_type=key, value_type=value):
                return f"{{{self._of(key)}: {self._of(value)}}}"
            case inspect.UnionType(types=kinds):
                names = [self._of(each) for each in kinds]
                return "Change" if set(names) == CHANGES else " or ".join(names)
            case inspect.StructType():
                return self._struct(kind)
        raise AssertionError(f"nobody has said how {kind} is described")

    def _struct(self, kind: inspect.StructType) -> str:
        name = kind.cls.__name__
        if name not in self.lines:
            self.lines[name] = ""
            parts = [f'"{kind.tag}"'] if kind.tag is not None else []
            parts += [
                f"{field.encode_name}{'' if field.required else '?'}: {self._of(field.type)}"
                for field in kind.fields
            ]
            opening, closing = "[]" if kind.array_like else "{}"
            self.lines[name] = f"{name} = {opening}{', '.join(parts)}{closing}"
        return name

    def _field(self, field: inspect.Field) -> str:
        return f"{field.encode_name}{'' if field.required else '?'}: {self._of(field.type)}"


def described(messages: object) -> list[str]:
    return list(Described(messages).lines.values())


def said(text: str) -> str:
    """Its comments, as one line."""
    return " ".join(re.sub(r"^\s*//", "", line).strip() for line in text.splitlines())


@pytest.mark.parametrize("line", described(api.AnyCommand) + described(api.AnyMessage))
def test_every_message_is_described_as_it_is(line: str) -> None:
    assert line in re.sub(r"\s+", " ", said(PROTO.read_text()))


def test_nothing_is_described_that_there_is_not() -> None:
    found = set(re.findall(r"(\w+) = [\[{]", said(PROTO.read_text())))
    assert found == {line.partition(" ")[0] for line in described(api.AnyCommand | api.AnyMessage)}


def test_commands_are_named_as_they_may_come() -> None:
    names = [command.__name__ for command in api.AnyCommand.__args__]
    assert f"[{' or '.join(names)}...]" in said(PROTO.read_text())


def test_service_and_method_have_the_names_that_are_served() -> None:
    package, _, service = SERVICE.rpartition(".")
    text = PROTO.read_text()
    assert f"package {package};" in text
    assert f"service {service} {{" in text
    assert f"rpc {METHOD}(stream Commands) returns (stream Message);" in text


@pytest.mark.parametrize("length", [1, 127, 128, 16_383, 16_384, 3_000_000])
def test_a_message_is_framed_as_protobuf_does(length: int) -> None:
    message = b"x" * length
    framed = wrapped(message)
    assert unwrapped(framed) == message
    for spoilt in (framed[:-1], framed + b"x", b"\x12" + framed[1:], framed[:1], b""):
        with pytest.raises(ValueError, match="no message with one field"):
            unwrapped(spoilt)


class WatchedBytes(bytes):
    """How often one of them was read."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        self.read += 1
        return super().__getitem__(at)


def test_a_length_without_end_is_not_read_to_its_end() -> None:
    """Each further byte would cost as much as all before it."""
    message = WatchedBytes(b"\x0a" + b"\xff" * 10_000)
    with pytest.raises(ValueError, match="no message with one field"):
        unwrapped(message)
    assert message.read < 40
