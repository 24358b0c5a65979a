"""A stream replayed: the same start and steering at the same indices, in an engine of its own.

Sampling is a function of the seed and the index, so the tokens must be the same, whatever ran beside the
first telling, and whatever it lost on the way: pauses, evictions, and output that was rewound.
"""

from __future__ import annotations

from engine import api
from engine.engine import Engine
from realtime.stream.params import sampling
from tests.fakes.checking_client import Account
from tests.fakes.simulated_server import EngineSize, toy_engine

ALONE = EngineSize(kv_tokens=2048, block=16, step_tokens=128)


def retold(account: Account) -> list[int]:
    """The tokens that the account's surviving steering gives, as many as it has."""
    length, tokens = len(account.tokens), account.inherited[:]
    begun = len(tokens)
    if length == begun:
        return tokens
    engine = toy_engine(ALONE)
    steering = {begun, length} | {
        index for index, _ in (*account.params, *account.injections) if begun <= index < length
    }
    first, prompt = sampling(account.params[0][1], None), account.prompt
    engine.send(
        [api.Submit(0, prompt + tokens, first, credit=begun, prompt=len(prompt), bans=account.acts.bans)]
    )
    for begin, end in zip(sorted(steering), sorted(steering)[1:], strict=False):
        adjusts = [api.Adjust(0, sampling(asked, None)) for index, asked in account.params if index == begin]
        appends = [api.Append(0, injected) for index, injected in account.injections if index == begin]
        engine.send([*adjusts, *appends, api.Grant(0, end)])
        tokens += _until(engine, end - begin)
    return tokens


def _until(engine: Engine, count: int) -> list[int]:
    """What it says until it has said so much, or has ended."""
    tokens: list[int] = []
    while len(tokens) < count:
        for news in engine.step().news:
            tokens += news.tokens
            if news.finish is not None:
                return tokens
    return tokens
