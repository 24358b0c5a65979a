"""Word wrap: styled text broken into rows of a width, at spaces where there are some. Pure.

Rows are a function of what stands before them: text added at the end changes the last row only, so that
earlier rows can be scrolled out to the terminal's own history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Cell = tuple[str, str]  # style, and one character
TAB = 4


def wrap(segments: Iterable[tuple[str, str]], width: int, width_of: Callable[[str], int]) -> list[list[Cell]]:
    """Every row with its cells; a newline ends its row, and is its last cell. The last row may be empty."""
    done: list[list[Cell]] = []
    row: list[Cell] = []
    extent = 0
    for cell in ((style, letter) for style, text in segments for letter in text):
        if cell[1] == "\n":
            done.append([*row, cell])
            row, extent = [], 0
            continue
        cell_width = TAB if cell[1] == "\t" else width_of(cell[1])
        while row and extent + cell_width > width and cell[1] != " ":
            kept = _break(row)
            done.append(row[:kept])
            row = row[kept:]
            extent = sum(TAB if letter == "\t" else width_of(letter) for _, letter in row)
        row.append(cell)
        extent += cell_width
    return [*done, row]


def _break(row: list[Cell]) -> int:
    """Behind the last space; where there is none, the word itself is broken."""
    spaces = (at for at in range(len(row), 0, -1) if row[at - 1][1] == " ")
    return next(spaces, len(row))


def runs(row: list[Cell]) -> list[tuple[str, str]]:
    """A row for printing: cells of one style joined, tabs as spaces, nothing blank at its end."""
    joined: list[tuple[str, str]] = []
    end = max((at for at, (_, letter) in enumerate(row, 1) if not letter.isspace()), default=0)
    for style, letter in row[:end]:
        shown = " " * TAB if letter == "\t" else letter
        if joined and joined[-1][0] == style:
            joined[-1] = (style, joined[-1][1] + shown)
        else:
            joined.append((style, shown))
    return joined
