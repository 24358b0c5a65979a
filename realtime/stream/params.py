"""The sampling parameters of a stream: from what a client asks for to what the engine samples by.

`Params` as sent have holes; resolved, they have none, and `started` and `adjusted` show them so. Stop
strings stay on this side of the border; everything else becomes `engine.api.Sampling`.
"""

from __future__ import annotations

import secrets

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from engine import api
from engine.api import Sampling
from midstream.protocol import Grammar, Params
from realtime.guards.check import check as check_guards
from realtime.refusal import Refusal
from realtime.text.grammar import OutputRules, source_of, source_of_lark, source_with

_SAMPLING_FIELDS = tuple(
    name
    for name in Sampling.__struct_fields__
    if name in Params.__struct_fields__ and name != "grammar"  # which has other words there
)


def resolved(asked: Params, *, context_left: int, vocab: int) -> Params:
    """A start's parameters, complete. Without a seed the stream gets one, so that it can be replayed."""
    defaults = Params(
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        max_tokens=context_left,
        stop=[],
        seed=_seed(),
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias={},
        logprobs=None,
        ignore_eos=False,
        min_tokens=0,
        grammar=None,
        reasoning_tokens=None,
        guards=None,
    )
    return merged(defaults, asked, vocab=vocab)


def merged(standing: Params, asked: Params, *, vocab: int) -> Params:
    """The standing parameters with those that were asked for in their place."""
    values = {name: value for name, value in asdict(asked).items() if not isinstance(value, UnsetType)}
    if asked.guards:
        check_guards(asked.guards)
    params = Params(**(asdict(standing) | values))
    if isinstance(params.stop, str):
        params.stop = [params.stop]
    outside = [token for token in params.logit_bias or {} if not 0 <= token < vocab]
    if outside:
        raise Refusal(
            "invalid_params",
            f"`params.logit_bias` names token {outside[0]}; this model's tokens are 0 to {vocab - 1}.",
        )
    return params


def forked(standing: Params, asked: Params, *, vocab: int) -> Params:
    """Those of a fork: all that are not asked for stay, but the seed, or all forks would be the same."""
    return merged(replace(standing, seed=_seed()), asked, vocab=vocab)


def _seed() -> int:
    return secrets.randbits(53)  # as large as JavaScript's numbers are exact


def sampling(params: Params, rules: OutputRules | None, *, hold_at_eos: bool = False) -> Sampling:
    values = {name: getattr(params, name) for name in _SAMPLING_FIELDS}
    return Sampling(**values, grammar=_grammar(params.grammar or None, rules), hold_at_eos=hold_at_eos)


def same_grammar(one: Params, other: Params) -> bool:
    """Whether whoever follows the one need not begin anew with the other."""
    if one.grammar is other.grammar:
        return True
    if not one.grammar or not other.grammar:
        return False
    return source_of(one.grammar) == source_of(other.grammar)


def _grammar(asked: Grammar | None, rules: OutputRules | None) -> api.Grammar | None:
    source = _source(asked, rules)
    if source is None:
        return None
    later = None if rules is None or rules.later is None else _source(asked, rules.later)
    return api.Grammar(source, asked is None or asked.force, later)


def _source(asked: Grammar | None, rules: OutputRules | None) -> str | None:
    if asked is not None:
        return source_of(asked) if rules is None else source_with(rules, asked)
    return None if rules is None or rules.alone is None else source_of_lark(rules.alone)


def stops(params: Params) -> tuple[str, ...]:
    assert params.stop is not UNSET
    return tuple(params.stop)
