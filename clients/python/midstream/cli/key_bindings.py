"""What a key means while an answer is written. Pure: a table a command, from the key's name to what is meant.

Names of keys are those of the terminal's library, which takes escape sequences apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Intent(Enum):
    """What a person wants of the answer that is being written."""

    TOGGLE = "pause or resume"
    STOP = "end this answer"
    WARMER = "raise the temperature"
    COOLER = "lower the temperature"
    INTERJECT = "say something in between"
    REWIND = "take the last words back"
    QUIT = "leave"
    INTERRUPT = "leave, as a program that was interrupted"


LEAVING: Mapping[Intent, int] = {Intent.QUIT: 0, Intent.INTERRUPT: 130}  # with the exit status of each

_LEAVE: Mapping[str, Intent] = {
    "q": Intent.QUIT,
    "c-d": Intent.QUIT,
    "c-c": Intent.INTERRUPT,
    "<sigint>": Intent.INTERRUPT,  # the signal itself, which the library passes on as a key
}
CHAT: Mapping[str, Intent] = {
    " ": Intent.TOGGLE,
    "s": Intent.STOP,
    "up": Intent.WARMER,
    "down": Intent.COOLER,
    "i": Intent.INTERJECT,
    "u": Intent.REWIND,
    **_LEAVE,
}
RUN: Mapping[str, Intent] = {"s": Intent.STOP, **_LEAVE}

CHAT_HELP = ("space pause", "s stop", "q quit", "i interject", "u rewind", "↑↓ temperature")
RUN_HELP = ("s skip", "q quit")


def chat_help(state: str) -> tuple[str, ...]:
    """What the keys do now."""
    return ("space resume", *CHAT_HELP[1:]) if state == "paused" else CHAT_HELP


def fitting(left: str, parts: tuple[str, ...], width: int) -> str:
    """The help at the right end of a line that begins with `left`: as much of it as there is room for."""
    room = width - len(left) - 4
    while parts and len(" · ".join(parts)) > room:
        parts = parts[:-1]
    words = " · ".join(parts)
    return words.rjust(room + 2) + " " if words else ""
