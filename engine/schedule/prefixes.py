"""Prefixes under way: what is being computed for one sequence is not computed for another beside it.

A sequence with a whole block ahead of it *leads*; one that would compute the same block *follows*, for as
long as both begin alike, and then takes what the cache has. The block cache knows what stands computed; this
is what will be. Nobody waits so for another tenant's turn, which may be as late as that tenant likes: of two
tenants' each goes on from where either has come to (`BlockCache.catch_up`).

It knows tokens and positions. It knows no turn, no memory and no budget.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from operator import attrgetter

from engine.schedule.sequence import Sequence

# Whose turn computes it, in whose cache, the hash of what stands before a block, and its tokens.
Ahead = tuple[int, int, bytes, tuple[int, ...]]


@dataclass(eq=False, slots=True)
class Following:
    follower: Sequence
    leader: Sequence
    tokens: int  # that both begin with, in whole blocks
    version: int  # of the leader's tokens


class Prefixes:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._leaders: dict[Ahead, Sequence] = {}
        self._ahead: dict[int, Ahead] = {}  # by the leader's stream
        self._following: dict[int, Following] = {}  # by the follower's
        self._followers: dict[
            int, list[Following]
        ] = {}  # by the leader's, who waits for the fewest tokens first

    def __contains__(self, sequence: Sequence) -> bool:
        """Whether it leads or follows."""
        return sequence.stream in self._ahead or sequence.stream in self._following

    def __len__(self) -> int:
        """How many follow."""
        return len(self._following)

    def follows(self, sequence: Sequence) -> bool:
        return sequence.stream in self._following

    def follow(self, sequence: Sequence) -> bool:
        """Have it wait for whoever computes what it would, unless that one ranks below it."""
        ahead = self._next_block(sequence, sequence.num_tokens - 1)
        leader = self._leaders.get(ahead) if ahead else None
        if leader is None or leader is sequence or leader.priority < sequence.priority:
            return False
        following = Following(sequence, leader, self._common_tokens(leader, sequence), leader.tokens_version)
        self._following[sequence.stream] = following
        insort(self._followers.setdefault(leader.stream, []), following, key=attrgetter("tokens"))
        return True

    def leave(self, sequence: Sequence) -> None:
        """It follows nobody."""
        following = self._following.pop(sequence.stream, None)
        if following is not None:
            beside = self._followers[following.leader.stream]
            beside.remove(following)
            if not beside:
                del self._followers[following.leader.stream]

    def update(self, sequence: Sequence) -> list[Sequence]:
        """After anything that may have changed what it computes; returns those who need not follow it any
        longer."""
        computing = sequence.blocks and (sequence.num_to_compute or sequence.num_in_flight)
        ahead = self._next_block(sequence, sequence.num_tokens) if computing else None
        before = self._ahead.pop(sequence.stream, None)
        if before is not None:
            del self._leaders[before]
        if ahead is None or ahead in self._leaders:
            return self._release(sequence, None)
        self._leaders[ahead] = sequence
        self._ahead[sequence.stream] = ahead
        return self._release(sequence, sequence.num_computed)

    def _release(self, leader: Sequence, computed: int | None) -> list[Sequence]:
        """Those who wait for no more than so many tokens of the leader's; all, if it leads no longer."""
        followers = self._followers.get(leader.stream)
        if not followers:
            return []
        if computed is None or followers[0].version != leader.tokens_version:
            count = len(followers)
        else:
            count = bisect_right(followers, computed, key=attrgetter("tokens"))
        free = [following.follower for following in followers[:count]]
        del followers[:count]
        if not followers:
            del self._followers[leader.stream]
        for follower in free:
            del self._following[follower.stream]
        return free

    def _next_block(self, sequence: Sequence, limit: int) -> Ahead | None:
        """The first whole block, among so many tokens, that nobody would find computed."""
        hashes = sequence.block_hashes
        start = len(hashes) * self._block_size
        if start + self._block_size > limit:
            return None
        before = hashes[-1] if hashes else b""
        block = tuple(sequence.tokens[start : start + self._block_size])
        return sequence.tenant, sequence.cache_of, before, block

    def _common_tokens(self, leader: Sequence, follower: Sequence) -> int:
        size, end = self._block_size, len(follower.block_hashes) * self._block_size
        limit = min(leader.num_tokens, follower.num_tokens - 1)
        while end + size <= limit and leader.tokens[end : end + size] == follower.tokens[end : end + size]:
            end += size
        return end

    def audit(self, sequences: list[Sequence]) -> None:
        """Raise unless whoever leads computes, and whoever follows has somebody who leads."""
        for sequence in sequences:
            if sequence.stream in self._ahead:
                assert sequence.blocks and (sequence.num_to_compute or sequence.num_in_flight)
                assert self._leaders[self._ahead[sequence.stream]] is sequence
        for following in self._following.values():
            assert following.leader.stream in self._ahead
            assert following.tokens > following.leader.num_computed
            assert following in self._followers[following.leader.stream]
        live = {sequence.stream for sequence in sequences}
        assert {*self._ahead, *self._following, *self._followers} <= live
        assert len(self._leaders) == len(self._ahead)
