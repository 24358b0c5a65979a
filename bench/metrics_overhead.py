"""Metrics overhead: the gateway's tokens a second with metrics on beside the same with metrics off.

Whole servers in turn, one of each a pair, say it as users would see it; but the machine is not the same from
one run to the next, and by more than is looked for. So it is measured once more in one process, where nothing
but counting differs: two gateways without sockets receive the same steps in turn, and what counting costs
a token is held against what a whole gateway's CPU second is worth.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from statistics import median

from bench.gateway import CONNECTIONS, TOKENS, cpu_s, read_all
from bench.result_tables import Figure
from bench.server import ServerProcess
from engine import api, toy_model
from midstream import protocol
from midstream.protocol import MAX_INDEX, Credit, Params, StreamFrame
from realtime.codec import Codec
from realtime.hub.hub import Hub
from realtime.hub.listener import Payer
from realtime.hub.observers import Caller, Observer, Observers
from realtime.observability.listing import ListingObserver
from realtime.observability.metrics import Metrics
from realtime.observability.request_log import RequestLog
from realtime.refusal import Refusal
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer

PAIRS = 5
TURNS, STEPS_A_TURN = 400, 20


# -- whole servers ---------------------------------------------------------------------------------


def run(metrics: str) -> tuple[float, float]:
    """Tokens a second, and tokens a CPU second of the gateway."""
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
    credit = {"limit": TOKENS}
    start = {"type": "start", "request_id": "NUMBER", "prompt": "Hello", "params": params, "credit": credit}
    with ServerProcess("--model", "toy", "--metrics", metrics) as server:
        before = cpu_s(server.process.pid)
        _, seconds = asyncio.run(read_all(f"ws://{server.host}/v1/realtime", json.dumps(start), 10**9))
        tokens = CONNECTIONS * TOKENS
        return tokens / seconds, tokens / (cpu_s(server.process.pid) - before)


# -- in one process --------------------------------------------------------------------------------


class Encoder:
    """A listener that takes and encodes what there is, as a connection does, and sends it nowhere."""

    gone = False
    takes_over = True
    caller = Caller("websocket")
    number = 1

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.memory = hub.accounts.of_listener("tenant")
        self._codec = Codec(None)
        self._woken: dict[Stream, None] = {}

    @property
    def payer(self) -> Payer:
        return self

    @property
    def debt_s(self) -> float:
        return 0.0

    def owe(self, work_s: float) -> None:
        pass

    async def pay(self, work_s: float) -> None:
        """It sends no long texts."""

    def wake(self, stream: Stream) -> None:
        self._woken[stream] = None

    def flush(self) -> None:
        for stream in self._woken:
            for event in self._hub.take_events(stream):
                self._codec.encode(event)
        self._woken.clear()

    def forget(self, stream: Stream) -> None:
        raise AssertionError("there is no other server")

    def lose(self, stream: Stream) -> None:
        raise AssertionError("there is no other listener")

    def send_refusal(self, refusal: Refusal, frame: StreamFrame) -> None:
        raise refusal

    def send_reply(self, event: Reply) -> None:
        raise AssertionError("nobody steers")


class NoTimer:
    def cancel(self) -> None: ...


def _now_or_never(delay_s: float, call: Callable[[], None]) -> NoTimer:
    """What has a turn of the event loop of its own has it at once; nothing runs into a timeout."""
    if not delay_s:
        call()
    return NoTimer()


class Gateway:
    """A hub with a stream for each connection, and what it has taken of this process's time."""

    def __init__(self, *more: Observer) -> None:
        observers = Observers(ListingObserver(), RequestLog(), *more)
        self._hub = Hub(
            lambda engine, commands: None,
            observers,
            window=64,
            max_streams=CONNECTIONS,
            call_later=_now_or_never,
        )
        tokenizer = Tokenizer.load(toy_model.FOLDER)
        self._hub.engine_ready(
            0, ServedModel("toy", tokenizer, toy_model.VOCAB, context=MAX_INDEX, fingerprint=""), 16
        )
        for number in range(CONNECTIONS):
            start = protocol.Start(
                request_id=str(number),
                prompt="Hello",
                params=Params(temperature=0, ignore_eos=True),
                credit=Credit(limit=MAX_INDEX),
            )
            self._hub.receive_frame("local", start, Encoder(self._hub))

    def receive(self, outputs: list[api.StepOutput]) -> float:
        """CPU seconds that it takes."""
        before = time.process_time()
        for output in outputs:
            self._hub.receive_steps(0, [output])
        return time.process_time() - before


def more_an_event() -> float:
    """CPU seconds that counting takes an event."""
    counted, uncounted = Gateway(Metrics()), Gateway()
    differences = []
    for turn in range(TURNS):
        outputs = [_output(turn * STEPS_A_TURN + step) for step in range(STEPS_A_TURN)]
        order = (counted, uncounted) if turn % 2 else (uncounted, counted)
        took = {gateway: gateway.receive(outputs) for gateway in order}
        differences.append(took[counted] - took[uncounted])
    return median(differences) / (STEPS_A_TURN * CONNECTIONS)


def _output(step: int) -> api.StepOutput:
    admitted = None if step else 0
    news = [api.News(number, index=step, tokens=[65], admitted=admitted) for number in range(CONNECTIONS)]
    return api.StepOutput(step, news, api.Stats(step_s=0.001, decode_rows=CONNECTIONS))


def measure() -> list[Figure]:
    pairs = []
    for pair in range(PAIRS):
        rates = {metrics: run(metrics) for metrics in (("on", "off") if pair % 2 else ("off", "on"))}
        pairs.append((rates["on"], rates["off"]))
    peer, goal = "metrics off", ">= 0.97 x"
    rate, rate_of_cpu = (median(on[which] for on, _ in pairs) for which in (0, 1))
    ratio, ratio_of_cpu = (median(on[which] / off[which] for on, off in pairs) for which in (0, 1))
    cost_s = more_an_event()
    name = f"tokens with metrics on, {CONNECTIONS} connections"
    return [
        Figure(name, rate, "tok/s", goal, ratio, peer),
        Figure("the same a gateway CPU second", rate_of_cpu, "tok/s", goal, ratio_of_cpu, peer),
        Figure("counting, a token", 1e6 * cost_s, "us"),
        Figure("counting, of a gateway CPU second", 100 * cost_s * rate_of_cpu, "%", "<= 3"),
    ]


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
