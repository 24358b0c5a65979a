"""Key bindings: what a key means while an answer is written. Pure: a table a command, from keys to intents.

Names of keys are those of the terminal's library, which takes escape sequences apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Intent(Enum):
    """What a person wants of the answer that is being written."""

    TOGGLE = "pause or resume"
    STOP = "end this answer"
    RAISE_TEMPERATURE = "raise the temperature"
    LOWER_TEMPERATURE = "lower the temperature"
    INTERJECT = "say something in between"
    REWIND = "take the last words back"
    QUIT = "leave"
    INTERRUPT = "leave, as a program that was interrupted"


EXIT_STATUS: Mapping[Intent, int] = {Intent.QUIT: 0, Intent.INTERRUPT: 130}  # of the intents that leave

_EXIT_KEYS: Mapping[str, Intent] = {
    "q": Intent.QUIT,
    "c-d": Intent.QUIT,
    "c-c": Intent.INTERRUPT,
    "<sigint>": Intent.INTERRUPT,  # the signal itself, which the library passes on as a key
}
CHAT_KEYS: Mapping[str, Intent] = {
    " ": Intent.TOGGLE,
    "s": Intent.STOP,
    "up": Intent.RAISE_TEMPERATURE,
    "down": Intent.LOWER_TEMPERATURE,
    "i": Intent.INTERJECT,
    "u": Intent.REWIND,
    **_EXIT_KEYS,
}
RUN_KEYS: Mapping[str, Intent] = {"s": Intent.STOP, **_EXIT_KEYS}

CHAT_HELP = ("space pause", "s stop", "q quit", "i interject", "u rewind", "↑↓ temperature")
RUN_HELP = ("s skip", "q quit")


def chat_help(state: str) -> tuple[str, ...]:
    """What the keys do now."""
    return ("space resume", *CHAT_HELP[1:]) if state == "paused" else CHAT_HELP


def fit_help(left: str, parts: tuple[str, ...], width: int) -> str:
    """The help at the right end of a line that begins with `left`: as much of it as there is room for."""
    room = width - len(left) - 4
    while parts and len(" · ".join(parts)) > room:
        parts = parts[:-1]
    words = " · ".join(parts)
    return words.rjust(room + 2) + " " if words else ""
