"""Whether guards can be had: everything that is wrong with one is refused by a sentence that names it.

To read an expression takes milliseconds: this is for a thread. What was read is kept for who asks next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import UNSET

from midstream.protocol import Guard
from realtime.guards.automaton import RegexError
from realtime.guards.json_path import PathError, parsed
from realtime.guards.pattern import LONGEST, Pattern, pattern_of
from realtime.refusal import Refusal

MOST_POSITIONS = 2048  # of all expressions of a stream: what a character costs at most follows from it
KINDS = ("regex", "tool", "budget")
_COUNTS = re.compile(r"\{(\d{0,9}),?(\d{0,9})\}")


def expressions(guards: Sequence[Guard]) -> list[str]:
    """And paths."""
    texts = (text for guard in guards for text in (guard.regex, guard.forbid, guard.require, guard.path))
    return [text for text in texts if isinstance(text, str)]


def written_length(expression: str) -> int:
    """About how many characters it has with repetitions written out, which may stand within each other."""
    times = 1
    for counts in _COUNTS.findall(expression):
        times = min(MOST_POSITIONS, times * max(1, *(int(count or 1) for count in counts)))
    return len(expression) * times


def check(guards: Sequence[Guard]) -> None:
    """Raises Refusal where a stream could not have them."""
    positions, names = 0, set[str]()
    for at, guard in enumerate(guards):
        where = f"`params.guards[{at}]`"
        if guard.name in names:
            raise _refusal(f"{where} has the name of one before it: each has its own.")
        names.add(guard.name)
        _check_kind(guard, where)
        positions += sum(pattern.positions for pattern in _patterns(guard, where))
    if positions > MOST_POSITIONS:
        raise _refusal(
            f"The expressions of `params.guards` have {positions} characters, with repetitions written out; "
            f"all of them may have {MOST_POSITIONS}."
        )


def _check_kind(guard: Guard, where: str) -> None:
    given = [kind for kind in KINDS if getattr(guard, kind) is not UNSET]
    if len(given) != 1:
        raise _refusal(f"{where} has one of {', '.join(f'`{kind}`' for kind in KINDS)}.")
    if guard.in_ is not UNSET and guard.regex is UNSET:
        raise _refusal(f"{where} has `in`, which goes with `regex`.")
    asked = [name for name in ("forbid", "require") if getattr(guard, name) is not UNSET]
    if (guard.path is UNSET) != (not asked) or len(asked) > 1 or (asked and guard.tool is UNSET):
        raise _refusal(f"{where} has `tool` alone, or with `path` and one of `forbid` and `require`.")
    if guard.budget is not UNSET:
        limits = [name for name in guard.budget.__struct_fields__ if getattr(guard.budget, name) is not UNSET]
        if not limits:
            raise _refusal(f"{where} has a `budget` without any limit.")
        if guard.do == "rewind" and limits != ["calls"]:
            raise _refusal(f"{where} cannot rewind for its `budget`: only one of `calls` alone can.")


def _patterns(guard: Guard, where: str) -> list[Pattern]:
    if guard.path is not UNSET:
        try:
            parsed(guard.path)
        except PathError as error:
            raise _refusal(f"The `path` of {where} {error}.") from None
    found = list[Pattern]()
    for field in ("regex", "forbid", "require"):
        source = getattr(guard, field)
        if source is UNSET:
            continue
        if len(source) > LONGEST:
            raise _refusal(f"The `{field}` of {where} has {len(source)} characters; it may have {LONGEST}.")
        try:
            pattern = pattern_of(source)
        except RegexError as error:
            raise _refusal(f"The `{field}` of {where} {error}.") from None
        if pattern.may_be_empty and field != "require":
            raise _refusal(f"The `{field}` of {where} is found where nothing stands: it would act at once.")
        found.append(pattern)
    return found


def _refusal(message: str) -> Refusal:
    return Refusal("invalid_params", message)
