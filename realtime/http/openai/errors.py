"""The errors of OpenAI's API: `{"error": {message, type, param, code}}`, and the headers beside it.

The protocol's own fields (`status`, `retryable`, `retry_after_ms`) stand beside OpenAI's. It knows refusals,
and neither requests nor streams.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import JSONResponse

from realtime.http.bodies_and_headers import retry_headers
from realtime.refusal import Refusal

# Codes that OpenAI's clients look for by name; all others keep ours.
_CODES = {
    "context_too_long": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "too_many_streams": "rate_limit_exceeded",
    "unauthenticated": "invalid_api_key",
    "unknown_model": "model_not_found",
    "unsupported": "unsupported_parameter",
}
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_NAMED = re.compile(r"`(?:params\.)?([a-z][a-zA-Z0-9_.\[\]]*)`")


class FieldRefusal(Refusal):
    """A request that is refused for one of its fields, `param`."""

    def __init__(self, param: str, message: str, code: str = "invalid_frame") -> None:
        super().__init__(code, message)
        self.param = param

    @property
    def status(self) -> int:
        return 400  # whatever our protocol calls it


def renamed(refusal: Refusal, names: dict[str, str]) -> Refusal:
    """As whoever asked has called things: `names` are theirs for a frame's, each as a sentence quotes it."""
    message = refusal.message
    for name, theirs in names.items():
        message = message.replace(name, theirs)
    return Refusal(refusal.code, message, retry_after_ms=refusal.retry_after_ms)


def error_object(refusal: Refusal) -> dict[str, Any]:
    told = refusal.event()
    error = {
        "message": told.message.replace("`params.", "`"),  # which have no name of their own here
        "type": _KINDS.get(
            refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error"
        ),
        "param": _param(refusal),
        "code": _CODES.get(told.code, told.code),
        "status": refusal.status,
        "retryable": told.retryable,
    }
    if told.retry_after_ms is not None:
        error["retry_after_ms"] = told.retry_after_ms
    return {"error": error}


def _param(refusal: Refusal) -> str | None:
    """The field that it is about: refusals name it first, and in quotes."""
    if isinstance(refusal, FieldRefusal):
        return refusal.param
    named = _NAMED.search(refusal.message) if refusal.status == 400 else None
    return named[1] if named else None


def error_response(refusal: Refusal, headers: dict[str, str] | None = None) -> JSONResponse:
    # OpenAI's clients would send a 409 or a 500 again unless they are told better.
    should_retry = {"X-Should-Retry": "true" if refusal.event().retryable else "false"}
    headers = (headers or {}) | should_retry | retry_headers(refusal)
    return JSONResponse(error_object(refusal), refusal.status, headers)
