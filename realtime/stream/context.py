"""What one stream knows, in the model's tokens: its prompt, its output and what was injected among it, the
parameters in force, and where its grammar began.

It is complete. Any engine that does not know the stream is submitted it, be it the first or one behind
another that is gone, and a fork is a stream that begins with one, cut at a token. Pure: it knows nothing of
events, credit and listeners, nor of what was asked and has not taken effect.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice

from engine import api
from midstream import protocol
from midstream.protocol import Beside, Params
from realtime.guards.acts import Acts
from realtime.guards.guards import Guards, Verdict
from realtime.guards.reading import texts_of
from realtime.refusal import Refusal
from realtime.stream.accumulated_output import Output
from realtime.stream.engine_commands import too_long
from realtime.stream.memory import params_bytes
from realtime.stream.owner import Owner
from realtime.stream.params import forked, same_grammar, sampling, stops
from realtime.stream.spanned_text import SpannedText
from realtime.stream.weights import text_bytes
from realtime.text.decoded_turn import DecodedCall, DecodedTurn
from realtime.text.grammar import OutputRules
from realtime.text.served_model import ServedModel
from realtime.tools.offered import argument_kinds

PROMPT_TOKEN_BYTES, OUTPUT_TOKEN_BYTES = 4, 14  # as measured; what a token says is counted beside that
COUNTED_S = 450e-9  # a token that penalties count, as measured


class Context:
    def __init__(
        self,
        prompt: array[int],
        params: Params,
        output: Output,
        rules: OutputRules | None,
        grammar_starts: tuple[int, ...] = (0,),
        acts: Acts | None = None,
        guards: Guards | None = None,
        *,
        may_have_ended: bool = False,
    ) -> None:
        """`output` that stands already is another stream's. `grammar_starts`: tokens behind the prompt before
        each beginning of the grammar, if it has one. `guards` have read what stands; without, those of the
        parameters begin here. `may_have_ended`: that stream is gone, and its last token may have been its
        end."""
        self.prompt = prompt
        self._set_params(params)
        self.output = output
        self.rules = rules
        self._rules_bytes = 0 if rules is None else sum(map(text_bytes, rules.texts))
        self.inherited = len(output)  # tokens of the output that another made
        self._may_have_ended = may_have_ended
        self.acts = acts or Acts()
        self.guards = guards or _guards(params, output)
        self._grammar_starts = grammar_starts

    def __len__(self) -> int:
        """All tokens that an engine is told of."""
        return len(self.prompt) + self._behind_prompt

    def beginning(self, most: int) -> array[int]:
        """The first of them, up to so many."""
        if len(self.prompt) >= most:
            return self.prompt[:most]
        return self.prompt + array("i", islice(self.output.context(), most - len(self.prompt)))

    @property
    def _behind_prompt(self) -> int:
        return len(self.output) + self.output.injected()

    def _set_params(self, params: Params) -> None:
        self.params = params
        self._params_bytes = params_bytes(params)

    @property
    def bytes(self) -> int:
        """Asked with every token."""
        output = self.output
        size = PROMPT_TOKEN_BYTES * len(self.prompt) + OUTPUT_TOKEN_BYTES * len(output.tokens)
        size += output.reader.weight + output.injection_bytes
        size += self._params_bytes + self._rules_bytes + self.acts.bytes
        if self.guards is not None:
            size += self.guards.bytes
        return size

    @property
    def offers_tools(self) -> bool:
        return self.output.spans is not None and bool(self.output.spans.kinds)

    @property
    def has_grammar(self) -> bool:
        """Its own, or that of its calls."""
        return bool(self.params.grammar) or (self.rules is not None and self.rules.alone is not None)

    def surely_takes(self, put_in: api.Append, limit: int) -> bool:
        """Whether it fits, as it stands, and no grammar can refuse it."""
        fits = len(self) + len(put_in.tokens) < limit
        return fits and (put_in.grammar_anew or not self.has_grammar)

    @property
    def counting_s(self) -> float:
        """What it costs the engine, in another process, that it begins: penalties count all of its tokens."""
        params = self.params
        penalised = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
        return COUNTED_S * len(self) if penalised else 0.0

    @property
    def may_have_ended(self) -> bool:
        """With the last token of its past: nothing has come behind that, nor was asked for."""
        return self._may_have_ended and len(self.output) == self.inherited > 0

    @property
    def had_stopped(self) -> bool:
        """Whether it met what it stops at with that token."""
        return self.may_have_ended and self.output.stopped is not None

    def check_room(self, at: int | None, more: int, limit: int) -> None:
        """Raises Refusal where so many tokens do not fit before output token `at`, or behind all."""
        kept = len(self.output) if at is None else at
        used = len(self.prompt) + self.output.injected(before=kept) + kept
        if used + more >= limit:
            raise too_long(used, more, limit)

    # -- what changes it -------------------------------------------------------------------------

    def inject(self, command: api.Append, frame: protocol.Frame | None) -> None:
        """`frame`: which asked for it."""
        if not command.tokens:
            return
        self._may_have_ended = False
        messages = frame.messages if isinstance(frame, protocol.Inject) else None
        answers = {message.tool_call_id for message in messages or () if message.tool_call_id is not None}
        amends = frame.call_id if isinstance(frame, protocol.Amend) else None
        new_turn = messages is not None
        self.output.inject(command.tokens, new_turn=new_turn, answers=answers, amends=amends)
        if command.grammar_anew:
            self._grammar_starts += (self._behind_prompt,)

    def adjust(self, params: Params) -> None:
        self._may_have_ended = False
        if not same_grammar(params, self.params):
            self._grammar_starts = (self._behind_prompt,)
        if params.guards != self.params.guards:
            self.guards = _guards(params, self.output)
        self._set_params(params)
        self.output.set_stop(stops(params), params.min_tokens or 0)

    def cut(self, index: int, *, ends: bool = False, by_guard: bool = False) -> None:
        """Output from `index` on is void. `ends`: nothing will follow, and no stop string is looked for any
        more. `by_guard`: what guards have done stands."""
        if not by_guard:
            self.acts.cut(index)
        self._cut(index, None, () if ends else stops(self.params), ends=ends)

    def cut_behind(self, behind: int) -> int:
        """Of the tokens behind the prompt only so many stand. Returns how many of those are output."""
        index, injected = self.output.place(behind)
        self.acts.cut(index)
        self._cut(index, injected, stops(self.params))
        return index

    def _cut(self, index: int, injected: int | None, stop: tuple[str, ...], *, ends: bool = False) -> None:
        self.output.cut(index, stop, injected)
        self._grammar_starts = _starts_until(self._behind_prompt, self._grammar_starts)
        if self.guards is not None and not ends:  # which read no more, and are cut where a fork begins
            self.guards.cut(self.output)

    # -- what guards have to say -----------------------------------------------------------------

    def judge(self, content: str, beside: Sequence[Beside], seconds: float) -> list[Verdict]:
        """Of the last token, and what it says."""
        assert self.guards is not None, "nobody else is judged"
        return self.guards.judge(content, beside, self.output, seconds, self.acts)

    def judge_end(self) -> list[Verdict]:
        """Of the output, if it ends here."""
        if self.guards is None or not len(self.output):
            return []
        whole, rest, beside = self._ended()
        return self.guards.judge_end(rest, beside, whole, self.acts)

    def foresees(self, token: int) -> bool:
        """Whether guards have yet to read what this will say, before it is taken in: it may tell all of an
        argument, or that what may have been a call is none."""
        guards, spans = self.guards, self.output.spans
        if guards is None or spans is None:
            return False
        if not guards.reading:
            guards.foresee(spans.foreseen(token) if spans.most_held > guards.at_once else ())
        return guards.reading

    def foresees_end(self) -> bool:
        """The same of what is said if the output ends here."""
        guards, spans = self.guards, self.output.spans
        if guards is None or spans is None or not len(self.output):
            return False
        if not guards.reading and spans.most_held > guards.at_once:
            _, rest, beside = self._ended()
            guards.foresee(list(texts_of(rest, beside)))
        return guards.reading

    def _ended(self) -> tuple[Output, str, Sequence[Beside]]:
        """As it would be, and what is said then."""
        whole, rest = self.output.flushed(stops(self.params))
        return whole, rest, () if whole.spans is None else whole.spans.take_beside()

    def decoded_turn(self) -> DecodedTurn | None:
        """The model's turn, if it has calls. Its last token is the one that ended it."""
        spans = self.output.spans
        if spans is None or not spans.called:
            return None
        calls = tuple(DecodedCall(c.call_id, c.name, "".join(c.arguments)) for c in spans.turn_calls)
        content, reasoning = spans.turn_texts(self.output.tokens)
        tokens = array("i", self.output.known_from(*spans.turn_begin, len(self.output) - 1))
        return DecodedTurn(tokens, content, reasoning, calls)

    # -- what is made of it ----------------------------------------------------------------------

    def submission(
        self,
        number: int,
        *,
        credit: int,
        priority: int,
        owner: Owner,
        paused: bool,
        hold_at_eos: bool,
        yields: bool,
        keep: api.Keep | None,
    ) -> api.Submit:
        return api.Submit(
            number,
            [*self.prompt, *self.output.context()],
            sampling(self.params, self.rules, hold_at_eos=hold_at_eos),
            credit=credit,
            priority=priority,
            tenant=owner.payer,
            cache_of=owner.tenant,
            prompt=len(self.prompt),
            injections=[(index, len(tokens)) for index, tokens in self.output.injections],
            paused=paused,
            grammar_starts=self._grammar_starts,
            bans=self.acts.bans,
            yields=yields,
            keep=keep,
            whole=self.may_have_ended,
        )

    def as_past(self, *, may_have_ended: bool) -> Context:
        """As what another stream goes on with: whatever stands is told, and guards judge what comes."""
        begun = self.prompt, self.params, self.output, self.rules, self._grammar_starts, self.acts
        return Context(*begun, may_have_ended=may_have_ended)

    def fork(self, request_id: str, index: int, asked: Params, model: ServedModel) -> Context:
        """As it stands before output token `index`. As after a rewind, parameters are those in force now, but
        for the ones asked for."""
        params = forked(self.params, asked, vocab=model.vocab)
        assert isinstance(params.max_tokens, int), "they are complete"
        if params.max_tokens <= index:
            raise Refusal(
                "invalid_params",
                f"`params.max_tokens` is {params.max_tokens}, and the fork begins at {index}: ask for more.",
            )
        output = self.output.forked(request_id, index, stops(params), params.min_tokens or 0)
        behind = index + output.injected()
        same = same_grammar(params, self.params)
        starts = _starts_until(behind, self._grammar_starts) if same else (behind,)
        guards = self.guards and self.guards.forked(output) if params.guards == self.params.guards else None
        fork = Context(self.prompt, params, output, self.rules, starts, self.acts.until(index), guards)
        if len(fork) >= model.context:
            raise Refusal(
                "context_too_long",
                f"The fork begins with {len(fork)} tokens; the model's context holds {model.context}, "
                "with output.",
            )
        return fork


def of_prompt(
    start: protocol.Start, prompt: list[int], params: Params, rules: OutputRules | None, model: ServedModel
) -> Context:
    spans = _spans(start, prompt, params, model)
    output = Output(model.tokenizer, stops(params), params.min_tokens or 0, spans)
    return Context(array("i", prompt), params, output, rules)


def _guards(params: Params, output: Output) -> Guards | None:
    return Guards(params.guards, output) if params.guards else None


def _spans(
    start: protocol.Start, prompt: list[int], params: Params, model: ServedModel
) -> SpannedText | None:
    """The reader of its output, where a conversation offers tools, or the model reasons."""
    tools = start.tools if start.tool_choice != "none" else None
    if start.messages is None or not (tools or model.tokenizer.spelling.has_reasoning):
        return None
    return SpannedText(
        model.tokenizer,
        start.request_id,
        argument_kinds(tools) if tools else None,
        prompt,
        stops(params),
        params.min_tokens or 0,
        one_call=start.on_tool_call == "finish" and not start.parallel_tool_calls,
    )


def _starts_until(behind: int, starts: tuple[int, ...]) -> tuple[int, ...]:
    """Where a grammar begins, of so many tokens behind the prompt."""
    return tuple(at for at in starts if at <= behind) or (behind,)
