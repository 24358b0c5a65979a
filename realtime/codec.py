"""The codec: bytes to frames, and events to bytes, in JSON or MessagePack.

Whatever is wrong with a peer's bytes becomes a `Refusal` here: it names the field and what would be right.
Ranges are not repeated in this module; the sentence is made from the types in `midstream.protocol`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Annotated, Any, Union, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType, inspect

from midstream import protocol
from midstream.protocol import (
    MAX_BIASES,
    MAX_PAST_STEERING,
    MSGPACK_SUBPROTOCOL,
    ClientFrame,
    Event,
    Params,
    Past,
    PastAdjust,
    PastInject,
)
from realtime.refusal import Refusal, shortened
from realtime.untyped import (
    MOST_VALUES,
    edge_numbers,
    fields_of,
    may_have_large_map,
    most_values,
    quick_float,
    too_many,
    wrong_keys,
)

_FRAME_TYPES = get_args(protocol.ClientFrame)
_BY_TAG = {kind.__struct_config__.tag: kind for kind in _FRAME_TYPES}
# msgspec lets the last three through for broken or very deep input: the peer's mistake all the same.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
_Biases = Annotated[dict[int | str, float], Meta(max_length=MAX_BIASES)]
_pack, _unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
LONGEST_PLACE = 200  # characters
LONG_PAST = 16 << 10  # of a frame that may have one
_PATH = re.compile(r"(?:`key` in )?`\$?\.?(.*?)`$")


def _unread(name: str, *kinds: Any) -> type[msgspec.Struct]:
    """Their fields, none of them looked into; any others are passed over."""
    names = {name: None for kind in kinds for name in kind.__struct_encode_fields__}
    return msgspec.defstruct(name, [(name, Raw | UnsetType, UNSET) for name in ("type", *names)])


_UnreadFrame, _UnreadParams = _unread("UnreadFrame", *_FRAME_TYPES), _unread("UnreadParams", Params)
_UnreadPast, _UnreadStep = _unread("UnreadPast", Past), _unread("UnreadStep", PastAdjust, PastInject)
_UnreadSteering: Any = Annotated[list[_UnreadStep], Meta(max_length=MAX_PAST_STEERING)]  # type: ignore[valid-type]
# Of a frame, and of the past of one, what may be long and is few objects, or numbers.
_Long = msgspec.defstruct(
    "Long",
    [
        (name, Raw | UnsetType, UNSET)
        for name in ("prompt", "messages", "content", "error", "text", "tokens", "past")
    ],
)


def _few_biases(kind: type[msgspec.Struct], **holders: Any) -> type[msgspec.Struct]:
    """Of such an object only the fields that hold biases."""
    fields = [(name, holders[name], UNSET) for name in kind.__struct_encode_fields__ if name in holders]
    config = kind.__struct_config__
    return msgspec.defstruct(kind.__name__, fields, tag_field=config.tag_field, tag=config.tag)


# A frame's biases with texts as keys, and no more of them than there may be: whoever chooses numbers can have
# each meet all others in a dictionary of them, which takes seconds to make where they are many.
FEW_BIASES: Any = _few_biases(
    Params, logit_bias=Annotated[dict[str, Raw], Meta(max_length=MAX_BIASES)] | UnsetType
)
_FewStep: Any = Union[*(_few_biases(kind, params=FEW_BIASES) for kind in (PastAdjust, PastInject))]
_FewPast: Any = _few_biases(
    Past, steering=Annotated[list[_FewStep], Meta(max_length=MAX_PAST_STEERING)] | UnsetType
)
_FewFrame: Any = Union[
    *(_few_biases(kind, params=FEW_BIASES, past=_FewPast | None | UnsetType) for kind in _FRAME_TYPES)
]
_UNTYPED = ("arguments", "tools", "params", "steering")  # of a frame and its past, what objects may be in
_Names = _unread("Names", protocol.Cancel)  # what a frame says of itself: `type`, `request_id` and `ref`


class Codec:
    """One connection's encoding. Decoding raises `Refusal` and nothing else."""

    def __init__(self, subprotocol: str | None) -> None:
        self.text = subprotocol != MSGPACK_SUBPROTOCOL
        library: Any = msgspec.json if self.text else msgspec.msgpack
        quick = {"float_hook": quick_float} if self.text else {}
        self._decoder = library.Decoder(ClientFrame, **quick)
        self._names = library.Decoder(_Names)
        self._long = library.Decoder(_Long)
        self._few_biases = library.Decoder(_FewFrame)
        self._string = library.Decoder(str)
        self.encode: Callable[[Event], bytes] = library.Encoder().encode

    def decode(self, data: bytes | str) -> ClientFrame:
        self._check_values(data)
        try:
            self._check_keys(data)
            self._check_past(data)
            return self._decoder.decode(data)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            mistake = error.with_traceback(None)  # which would know this frame, and so itself: a ring
        except UNREADABLE as error:
            raise self._unreadable(data, error) from None
        names = self._read(data, self._names)
        if isinstance(data, bytes) and not self.text and _is_of_a_key(mistake):
            # The last where one is of a number beyond 64 bits.
            with suppress(*UNREADABLE, OverflowError):
                return self._decoder.decode(_with_integer_keys(data))  # type: ignore[no-any-return]
        raise self._explained(names, mistake)

    def _check_values(self, data: bytes | str) -> None:
        """Refuse what would become too many objects. A field that is there twice is read twice: what is not
        counted is the last of each."""
        if len(data) <= MOST_VALUES // 4:
            return
        long: Any = self._read(data, self._long)
        if long is None:
            return  # it is no object, and is refused at its first byte
        *fields, past = msgspec.structs.astuple(long)
        of_past: Any = None if past is UNSET else self._read(past, self._long)
        fields += [UNSET if of_past is None else of_past.tokens]
        beside = [bytes(said) for said in fields if said is not UNSET]
        values = most_values(data, beside, text=self.text)
        if values > MOST_VALUES:
            raise Refusal("invalid_frame", f"The frame {too_many(values)}.")

    def _check_keys(self, data: bytes | str) -> None:
        """Refuse what would become a dictionary of many numbers, before it does."""
        if self.text:
            if data.count(":" if isinstance(data, str) else b":") > MAX_BIASES:  # type: ignore[arg-type]
                self._few_biases.decode(data)
        elif isinstance(data, bytes) and may_have_large_map(data):
            wrong = wrong_keys(b"".join(_untyped_parts(data)), MAX_BIASES)
            if wrong is not None:
                raise Refusal("invalid_frame", f"The frame {wrong}.")

    def _check_past(self, data: bytes | str) -> None:
        """Refuse steering with very many numbers that take long to read. Other frames have few that have a
        type, and those without are read otherwise."""
        if not self.text or len(data) <= LONG_PAST:
            return
        long: Any = self._read(data, self._long)
        if long is None or long.past is UNSET:
            return
        numbers = _edge_numbers(long.past)
        if numbers > MAX_BIASES:
            raise Refusal(
                "invalid_frame",
                f"`past.steering` has {numbers} numbers with exponents of three digits or more; it may "
                f"have {MAX_BIASES}.",
            )

    def _read(self, data: bytes | str, some: Any) -> Any:
        """Some fields of a frame. No other is looked into or kept, which may take long; None if it is no
        object."""
        try:
            return some.decode(data)
        except msgspec.ValidationError:
            return None
        except UNREADABLE as error:
            raise self._unreadable(data, error) from None

    def _text_of(self, field: Raw | UnsetType) -> str | None:
        try:
            return None if isinstance(field, UnsetType) else self._string.decode(field)
        except UNREADABLE:
            return None

    def _unreadable(self, data: bytes | str, error: Exception) -> Refusal:
        where = where_unreadable(data, error)
        return Refusal("invalid_frame", f"The frame is not valid {self.name}{where}.")

    @property
    def name(self) -> str:
        return "JSON" if self.text else "MessagePack"

    def ids_of(self, data: bytes | str) -> tuple[str | None, str | None]:
        """The `request_id` and `ref` of a frame that was refused, as far as they can be read."""
        if isinstance(data, str) != self.text:
            return None, None  # a message of the other kind: it is not even in this encoding
        try:
            names: Any = self._read(data, self._names) or _Names()
        except Refusal:
            return None, None
        request_id, ref = self._text_of(names.request_id), self._text_of(names.ref)
        return _if_short(request_id, 128), _if_short(ref, 64)

    def _explained(self, names: Any, error: msgspec.ValidationError) -> Refusal:
        if names is None:
            return Refusal("invalid_frame", f"A frame is one {self.name} object with a `type`.")
        tag = self._text_of(names.type)
        kind = None if tag is None else _BY_TAG.get(tag)
        if kind is None:
            said = (
                f'"{shortened(tag)}"'
                if tag is not None
                else "(none given)"
                if names.type is UNSET
                else "(no string)"
            )
            known = ", ".join(sorted(_BY_TAG))
            return Refusal("invalid_frame", f"Unknown frame type {said}; known are {known}.")
        return explain_error(kind, error, f"{tag} frame")


def _edge_numbers(past: Raw) -> int:
    """In the parameters of its steering; what that cannot be is told by whoever reads all of it."""
    with suppress(msgspec.ValidationError):
        whole: Any = msgspec.json.decode(past, type=_UnreadPast | None)
        said = UNSET if whole is None else whole.steering
        steering: Any = [] if said is UNSET else msgspec.json.decode(said, type=_UnreadSteering)
        return sum(edge_numbers(bytes(step.params)) for step in steering if step.params is not UNSET)
    return 0


def _untyped_parts(packed: bytes) -> list[bytes]:
    """What may have any keys, without prompts, texts and messages; or all, where one cannot tell."""
    fields = fields_of(packed)
    if fields is None:
        return [packed]
    parts = [bytes(fields[name]) for name in _UNTYPED if name in fields]
    return parts + (_untyped_parts(bytes(fields["past"])) if "past" in fields else [])


def _with_integer_keys(data: bytes) -> bytes:
    """The same frame where its keys that are numbers are strings, as in JSON: so many languages pack it. Only
    the biases are looked into, those of a past too, and no more of them than there may be."""
    frame: Any = _unpack(data, type=_UnreadFrame)
    frame.params = _with_integer_biases(frame.params)
    past: Any = None if frame.past is UNSET else _unpack(frame.past, type=_UnreadPast | None)
    if past is not None and past.steering is not UNSET:
        steering: Any = _unpack(past.steering, type=_UnreadSteering)
        for step in steering:
            step.params = _with_integer_biases(step.params)
        past.steering = Raw(_pack(steering))
        frame.past = Raw(_pack(past))
    return _pack(frame)


def _with_integer_biases(params: Raw | UnsetType) -> Raw | UnsetType:
    if params is UNSET:
        return UNSET
    read: Any = _unpack(params, type=_UnreadParams)
    if read.logit_bias is UNSET:
        return params
    biases = msgspec.convert(_unpack(read.logit_bias, type=_Biases), dict[int, float], str_keys=True)
    read.logit_bias = Raw(_pack(biases))
    return Raw(_pack(read))


def _is_of_a_key(error: msgspec.ValidationError) -> bool:
    return "`key` in " in str(error)


def said_and_path(error: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong, which may quote what was sent, whatever that says; and where, which stands last and is
    as long as types make it."""
    message, at, place = str(error).rpartition(" - at ")
    match = _PATH.match(place) if at and len(place) <= LONGEST_PLACE else None
    return (message, match.group(1)) if match else (str(error), "")


def explain_error(kind: type, error: msgspec.ValidationError, what: str) -> Refusal:
    """A sentence that names the field and all of what it may be, where msgspec names one bound of it."""
    message, path = said_and_path(error)
    code = "invalid_params" if path.startswith("params") else "invalid_frame"
    if not path or message.startswith(("Object missing required field", "Object contains unknown field")):
        within = f" in `{path}`" if path else ""
        return Refusal(
            code,
            f"{shortened(message).replace('Object missing required', 'Missing the')} of the {what}{within}.",
        )
    expected = _expected(_type_at(kind, path))
    return Refusal(
        code,
        f"`{path}` of the {what} must be {expected}." if expected else f"{shortened(message)} at `{path}`.",
    )


_NAMES = {inspect.BoolType: "true or false", inspect.NoneType: "null", inspect.StructType: "an object"}


_type_info = cache(inspect.type_info)  # it takes milliseconds, and whoever sends nonsense sends it often


def _type_at(kind: Any, path: str) -> inspect.Type | None:
    here: Any = _type_info(kind)
    for step in re.split(r"\.|(?=\[)", path.replace("[...]", "[]")):
        here = _member(here, step)
    return here  # type: ignore[no-any-return]


def _member(here: Any, step: str) -> Any:
    options = here.types if isinstance(here, inspect.UnionType) else (here,)
    structs = [option for option in options if isinstance(option, inspect.StructType)]
    if tags := tuple(struct.tag for struct in structs if struct.tag_field == step):
        return inspect.LiteralType(tags)
    for option in options:
        if isinstance(option, inspect.StructType):
            found = [field.type for field in option.fields if field.encode_name == step]
            if found:
                return found[0]
        elif isinstance(option, inspect.ListType) and step.startswith("["):
            return option.item_type
        elif isinstance(option, inspect.DictType):
            return option.value_type
    return None


def _expected(kind: Any) -> str:
    match kind:
        case inspect.UnionType():
            return " or ".join(dict.fromkeys(filter(None, map(_expected, kind.types))))
        case inspect.IntType():
            return f"an integer {_range(kind)}".strip()
        case inspect.FloatType():
            return f"a number {_range(kind)}".strip()
        case inspect.StrType():
            return f"a string{_length(kind, 'characters')}"
        case inspect.LiteralType():
            return "one of " + ", ".join(f'"{value}"' for value in kind.values)
        case inspect.ListType():
            return f"a list{_length(kind, 'items')}"
        case inspect.DictType() if not isinstance(kind.key_type, inspect.IntType):
            return "an object"
        case inspect.DictType():
            return f"an object{_length(kind, 'entries')} of token ids to {_expected(kind.value_type)}"
        case _:
            return _NAMES.get(type(kind), "")


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    low = f"above {kind.gt:g}" if kind.gt is not None else f"from {kind.ge}"
    return f"{low} to {kind.le}"


def _length(kind: inspect.StrType | inspect.ListType | inspect.DictType, unit: str) -> str:
    low, high = kind.min_length, kind.max_length
    if high is None:
        return f" of at least {low} {unit}" if low else ""
    return f" of {low} to {high} {unit}" if low else f" of at most {high} {unit}"


def where_unreadable(data: bytes | str, error: Exception) -> str:
    """To stand behind what is said of JSON or MessagePack that is none."""
    if re.search("truncated|surrogate", str(error)) and (half := _half_character(data)):
        return f": it has half a character, {half}, without its other half"
    byte = re.search(r"\(byte (\d+)\)", str(error))
    if isinstance(error, RecursionError):
        return ": it is nested too deeply"
    if "truncated" in str(error):
        return ": it ends before it is whole"
    if "out of range" in str(error):
        return ": a number in it is out of range"
    return f": the mistake is at byte {byte.group(1)}" if byte else ""


# Beyond 65,535 a character is two escapes in JSON, and a text that was cut between them has one of them.
_HALF_CHARACTER = re.compile(
    r"\\u(?<!\\\\u)[dD](?:[89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|[c-fC-F][\da-fA-F]{2}(?<!\\u[dD][89abAB]..\\u[dD]...))"
)


def _half_character(data: bytes | str) -> str | None:
    half = _HALF_CHARACTER.search(data.decode(errors="ignore") if isinstance(data, bytes) else data)
    return half and half[0]


def _if_short(text: str | None, length: int) -> str | None:
    return text if text is not None and len(text) <= length else None
