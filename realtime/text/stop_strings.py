"""The matching of stop strings in text that arrives in pieces: all of them at once, one step a character.

An Aho-Corasick automaton, so that no choice of stop strings makes a token expensive. It knows no token and
holds no text: it says how much of what it has read may still become a stop string.
"""

from __future__ import annotations


class StopMatcher:
    """A state stands for the longest end of the text so far that begins some stop string; state 0 for none.

    `met[state]` is the longest stop string that ends here, if one does. `held[state]` is how many of the
    last characters may be the beginning of one that is not complete yet.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.met: list[str | None] = [None]
        self.held = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, char: str) -> int:
        following = self._next
        while state and char not in following[state]:
            state = self._fallback[state]
        return following[state].get(char, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for depth, char in enumerate(stop, 1):
            following = self._next[state]
            if char not in following:
                following[char] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self.met.append(None)
                self.held.append(depth)
            state = following[char]
        self.met[state] = stop

    def _link(self) -> None:
        """Breadth first, because a state's fallback is shorter than itself."""
        queue = list(self._next[0].values())
        for state in queue:
            fallback = self._fallback[state]
            if self.met[state] is None:
                self.met[state] = self.met[fallback]
            if not self._next[state]:  # nothing longer begins like this; what it ends in may still
                self.held[state] = self.held[fallback]
            for char, child in self._next[state].items():
                self._fallback[child] = self.step(fallback, char)
                queue.append(child)
