"""Reading HTTP requests and heading responses: names in paths, queries and bodies within limits, the fields
of these, the header that names the stream, and the headers that say what to do about a refusal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import QueryParams
from starlette.requests import Request

from realtime.codec import UNREADABLE, where_unreadable
from realtime.refusal import Refusal, shortened

# Whoever still sends does not read: too large a body is heard out before it is refused, within bounds.
_HEARD_OUT = 16  # times what it may have
MOST_FIELDS = 256  # of a body, or a message in it: several times as many as anything knows
_SHORT = 64 << 10  # bytes, of whose fields, however many, a dictionary is made in few milliseconds
# Of a query: several times what anything asks for. To read one of a whole head would take ten milliseconds.
LONGEST_QUERY = 1024  # bytes
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


class NameConvertor(PathConvertor):
    """A name in a path is of any characters, line breaks among them."""

    regex = "(?s:.*)"


register_url_convertor("name", NameConvertor())


def request_id_header(request_id: str) -> dict[str, str]:
    """The header that says whose answer this is. A name may be of any characters, and a header may not."""
    return {"X-Request-Id": quote(request_id[:128], safe=_PRINTABLE)}


def retry_headers(refusal: Refusal) -> dict[str, str]:
    """The headers by which any HTTP client knows what to do about a refusal."""
    headers = {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refusal.retry_after_ms is not None:
        headers["Retry-After"] = str(math.ceil(refusal.retry_after_ms / 1000))
    return headers


def query_of(request: Request, *known: str) -> QueryParams:
    """What else is said there, or twice, would go unheard, and the answer be another than was asked for."""
    if len(request.scope["query_string"]) > LONGEST_QUERY:
        raise Refusal("invalid_params", f"The query may have {LONGEST_QUERY} bytes at most.")
    query = request.query_params
    for name, times in Counter(name for name, _ in query.multi_items()).items():
        if name not in known:
            there = ", ".join(f"`{one}`" for one in known)
            raise Refusal(
                "invalid_params",
                f"`{shortened(name)}` is unknown in the query of this path, which has {there}.",
            )
        if times > 1:
            raise Refusal("invalid_params", f"`{name}` is in the query more than once.")
    return query


def _ignored(size: int) -> None:
    pass


async def read_body(request: Request, most_bytes: int, grow: Callable[[int], None] = _ignored) -> bytes:
    """`grow` is told how large it will be before more of it is kept, and may refuse that."""
    body, came = bytearray(), 0
    refusal = _compressed(request)
    async for part in request.stream():
        came += len(part)
        if refusal is None:
            try:
                _check_size(came, most_bytes)
                grow(came)
                body += part
            except Refusal as refused:
                refusal = refused
                body.clear()
        if came > _HEARD_OUT * most_bytes:
            break
    if refusal is not None:
        raise refusal
    return bytes(body)


def _compressed(request: Request) -> Refusal | None:
    """Why a body cannot be read, as its head says: what is compressed has no size that we would know."""
    said = request.headers.get("content-encoding", "identity").strip()
    if said.lower() in ("", "identity"):
        return None
    return Refusal(
        "invalid_frame",
        f'The body has a `Content-Encoding`, "{shortened(said)}": send it as it is, without one.',
    )


def _check_size(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise Refusal("too_large", f"The body may have {most_bytes} bytes at most.")


class TooManyFieldsError(Exception):
    pass


class _Name(str):
    """Of a field. A kind of its own, for which the reader asks us each time."""

    __slots__ = ()


_fields = msgspec.json.Decoder(dict[str, Raw])


def few_fields(said: bytes | Raw) -> dict[str, Raw]:
    """The fields of a JSON object. None is looked into before its kind is known: making objects of a megabyte
    of nonsense would take a tenth of a second. Of a long one reading ends at the first that is too many."""
    many = len(memoryview(said)) > _SHORT
    fields = _counted().decode(said) if many else _fields.decode(said)
    if len(fields) > MOST_FIELDS:
        raise TooManyFieldsError
    return fields


def _counted() -> msgspec.json.Decoder[dict[str, Raw]]:
    number = count()

    def named(kind: type[_Name], name: str) -> _Name:
        if next(number) == MOST_FIELDS:
            raise TooManyFieldsError
        return kind(name)

    fields: Any = dict[_Name, Raw]
    return msgspec.json.Decoder(fields, dec_hook=named)


def fields_of(body: bytes) -> dict[str, Raw]:
    """The same, of a body."""
    try:
        body.decode()  # what is not looked into is not found to be no text either
        return few_fields(body)
    except TooManyFieldsError:
        raise Refusal("invalid_frame", f"The body has more than {MOST_FIELDS} fields.") from None
    except msgspec.ValidationError:
        raise Refusal("invalid_frame", "The body must be one JSON object.") from None
    except UnicodeDecodeError as error:
        raise Refusal("invalid_frame", f"The body is not UTF-8, from byte {error.start} on.") from None
    except UNREADABLE as error:
        raise Refusal(
            "invalid_frame", f"The body is not valid JSON{where_unreadable(body, error)}."
        ) from None
