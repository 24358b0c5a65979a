"""Error messages for a person: one line on what went wrong, and on what to do where that is known. Pure."""

from __future__ import annotations

from ssl import SSLError

from midstream.cli.sanitize import sanitize
from midstream.errors import ConnectionLost, MidstreamError, RequestError, StreamFailed

_ADVICE = {
    "unauthenticated": "put your key into the environment variable MIDSTREAM_API_KEY",
    "forbidden": "another key may be needed: it is read from the environment variable MIDSTREAM_API_KEY",
    "unknown_model": "leave the model out to take the one that is served",
    "context_too_long": "begin a new conversation, or make the text shorter",
    "model_loading": "try again in a moment",
    "overloaded": "try again in a moment",
    "draining": "the server is about to stop: try again when it is back",
}


def error_message(error: MidstreamError | ValueError, url: str) -> str:
    """One line, without the command's name."""
    if isinstance(error, ConnectionLost):
        return sanitize(_connection_lost(error, url))
    text = str(error).rstrip(".").replace("\n", " ")
    if isinstance(error, StreamFailed):
        text = f"the answer ended in an error: {text}"
    advice = _ADVICE.get(error.code) if isinstance(error, RequestError) else None
    if isinstance(error, RequestError) and error.retry_after_ms:
        advice = f"try again in {error.retry_after_ms / 1000:.1f} s"
    return sanitize(f"{text}; {advice}" if advice else text)


def _connection_lost(error: ConnectionLost, url: str) -> str:
    if error.code is None and (not error.retryable or isinstance(error.__cause__, SSLError)):
        return str(error)
    if error.code is None:
        return f"no server answers at {url}: start one with `midstream serve`, or name another with --url"
    again = ": try again" if error.retryable else ""
    return f"the connection to {url} was lost (close code {error.code}){again}"
