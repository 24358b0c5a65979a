"""Streams with tools, guards and grammars, to which anything is said at any time: what was told of them is
what they are, their engines have what others would be given, and in the end nothing is held.

`make reliability` tells thousands of such stories, here are some dozens: bench/reliability/stories.py.
"""

from __future__ import annotations

from bench.reliability import stories
from bench.reliability.story import Story

SEEDS = range(16)
WERE_WRONG = (20320, 41463, 41490, 41896, 42228, 42232, 43245, 43266, 43279, 43826, 7100222)


async def test_none_of_some_dozens_of_stories_is_wrong() -> None:
    found = await stories.told(SEEDS)
    assert found.wrong == {}
    assert all(found.happened.values()), found.happened  # else they prove less than they say


async def test_those_that_were_wrong_are_right() -> None:
    assert (await stories.told(WERE_WRONG)).wrong == {}


async def test_a_story_is_told_again_by_its_seed() -> None:
    first, again = list[str](), list[str]()
    for lines in (first, again):
        await Story(7, lines.append).run()
    assert first == again
