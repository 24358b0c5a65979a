"""The matching of stop strings in text that arrives in pieces: all of them at once, one step a character.

An Aho-Corasick automaton, so that no choice of stop strings makes a token expensive. It is built once for a
set of stop strings, however many streams have it, and lies in arrays: thousands of states weigh some tens of
bytes each. It knows no token and holds no text: it says how much of what it has read may still become a stop
string.
"""

from __future__ import annotations

from array import array
from collections import deque
from weakref import WeakValueDictionary

_built: WeakValueDictionary[tuple[str, ...], StopMatcher] = WeakValueDictionary()


def matcher_for(stops: tuple[str, ...]) -> StopMatcher:
    """The matcher of these stop strings, which all that have the same share."""
    matcher = _built.get(stops)
    if matcher is None:
        matcher = _built[stops] = StopMatcher(stops)
    return matcher


class StopMatcher:
    """A state stands for the longest end of the text so far that begins some stop string; state 0 for none.

    `met(state)` is the longest stop string that ends here, if one does. `held[state]` is how many of the last
    characters may be the beginning of one that is not complete yet. `longest` is as much of a text's end as
    its state depends on.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.longest = max(map(len, stops), default=0)
        self.held = array("H", [0])
        self._codes = array("I", [0])  # of the character by which a state is reached
        self._child = array("i", [0])  # of a state, the first; 0 for none
        self._sibling = array("i", [0])  # of a state, the next child of its parent
        self._fallback = array("i", [0])
        self._met: dict[int, str] = {}
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, state: int, char: str) -> int:
        return self._step(state, ord(char))

    def _step(self, state: int, code: int) -> int:
        following = self._following(state, code)
        while state and not following:
            state = self._fallback[state]
            following = self._following(state, code)
        return following

    def met(self, state: int) -> str | None:
        return self._met.get(state)

    def _following(self, state: int, code: int) -> int:
        child = self._child[state]
        while child and self._codes[child] != code:
            child = self._sibling[child]
        return child

    def _insert(self, stop: str) -> None:
        state = 0
        for depth, char in enumerate(stop, 1):
            state = self._following(state, ord(char)) or self._add(state, ord(char), depth)
        self._met[state] = stop

    def _add(self, parent: int, code: int, depth: int) -> int:
        state = len(self._codes)
        self._codes.append(code)
        self._sibling.append(self._child[parent])
        self._child[parent] = state
        self._child.append(0)
        self._fallback.append(0)
        self.held.append(depth)
        return state

    def _link(self) -> None:
        """Breadth first, because a state's fallback is shorter than itself."""
        queue = deque(self._children(0))
        while queue:
            state = queue.popleft()
            fallback = self._fallback[state]
            if state not in self._met and fallback in self._met:
                self._met[state] = self._met[fallback]
            if not self._child[state]:  # nothing longer begins like this; what it ends in may still
                self.held[state] = self.held[fallback]
            for child in self._children(state):
                self._fallback[child] = self._step(fallback, self._codes[child])
                queue.append(child)

    def _children(self, state: int) -> list[int]:
        children = []
        child = self._child[state]
        while child:
            children.append(child)
            child = self._sibling[child]
        return children
