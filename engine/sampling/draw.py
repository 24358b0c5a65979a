"""The draw by torch: the token of each row of scores, greedy or by a race among those that its filters leave.

Nobody has to know where the edge of top_p is, only on which side of it the winner is. Where that is outside,
so is all that is no better: the race is run again without them, and of those inside the same comes first. Of
p = 0.9 one race in ten is run again, since the winner is drawn by its share; and each time what still runs
has half as much mass, more or less.

What is found for a row depends on that row alone: its scores, its parameters and its key. The host waits for
numbers in between. On a CPU `numba_draw.py` does the same in one call, and on a CUDA device, where nobody
must wait, `triton_draw.py`: this is what they are to find, and the draw on any other device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from engine.nonblocking_transfer import upload
from engine.sampling import filters, race
from engine.sampling.race import Race


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for in each row: on the host, and where the scores are."""

    temperature: list[float]  # 0 is greedy
    top_k: list[int]  # 0 is off
    top_p: list[float]
    keys: Tensor  # of the noise
    parameters: Tensor  # [rows, 3]: temperature, top_p, and how cold min_p lets a token be

    def edges(self, scores: Tensor) -> Tensor:
        """The least score that top_k keeps in each row."""
        edges = scores.new_full((len(scores),), -torch.inf)
        drawn = zip(self.temperature, self.top_k, strict=True)
        rows = [at for at, (t, k) in enumerate(drawn) if t > 0 and 0 < k < scores.shape[1]]
        if rows:
            places = upload(rows, scores.device)
            part = scores if len(rows) == len(scores) else scores[places]
            edges[places] = filters.top_k_edge(part, [self.top_k[at] for at in rows])
        return edges


Draw = Callable[[Tensor, Asked], Tensor]


def draw_on(device: torch.device) -> Draw:
    """What draws on a device. A compiler is imported only where it is needed."""
    if device.type == "cpu":
        from engine.sampling import numba_draw

        return numba_draw.draw
    if find_spec("triton") is None:
        return draw
    from engine.sampling import triton_draw

    return triton_draw.draw


def draw(scores: Tensor, asked: Asked) -> Tensor:
    """The token of each row; -1 where its scores are no numbers."""
    peaks = race.peaks(scores)
    best = peaks.amax(1)
    tokens = race.greedy(scores, peaks, best)
    drawn = [at for at, temperature in enumerate(asked.temperature) if temperature > 0]
    if drawn:
        temperature, _, coldest = asked.parameters.unbind(1)
        edges = asked.edges(scores)
        runners = Race(scores, peaks, best, asked.keys, temperature, edges, coldest)
        _run(runners, edges, asked.top_p, drawn, tokens)
    return tokens.masked_fill_(~best.isfinite(), -1)


def _run(runners: Race, edges: Tensor, top_p: list[float], drawn: list[int], tokens: Tensor) -> None:
    """Puts the winners of these rows in the place of their favourites."""
    favourites = tokens.clone()
    while drawn:
        rows = upload(drawn, tokens.device)
        tokens[rows] = runners.winners(rows, favourites[rows])
        drawn = [
            at
            for at in drawn
            if top_p[at] < 1
            and filters.outside_top_p(runners.cold(at, edges[at]), int(tokens[at]), top_p[at])
        ]
        if drawn:
            rows = upload(drawn, tokens.device)
            runners.exclude(rows, tokens[rows])
