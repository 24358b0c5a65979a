"""Sanitizes text from a model for a terminal: it can be seen, and can do nothing.

A terminal obeys escape sequences, and shows text in the order that bidirectional controls ask for. Whatever
is not plain text is shown as a sign that stands for it. Pure.
"""

from __future__ import annotations

_C0 = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_C1 = range(0x80, 0xA0)
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINE_BREAKS = (0x2028, 0x2029)  # not all terminals and pagers agree on what these do
_SURROGATES = range(0xD800, 0xE000)  # no encoding takes them
_SIGNS: dict[int, int | str] = {
    **_C0,
    **{code: f"<{code:04X}>" for code in (*_C1, *_BIDI, *_LINE_BREAKS, *_SURROGATES)},
}


def sanitize(text: str) -> str:
    """The same text, with a visible sign in place of every control but the newline and the tab."""
    return text.translate(_SIGNS)
