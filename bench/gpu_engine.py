"""The GPU benchmark's measurements of an engine: decode, prefill beside it, control, and paused streams."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch._C._autograd import DeviceType

from bench.hardware_limits import wait
from bench.roofline import quantile, uncovered
from engine import api
from engine.engine import Engine

ENDLESS = api.Sampling(temperature=0, ignore_eos=True)
WARM, STEPS = 8, 64


class DoesNotFit(Exception):
    """The KV cache cannot hold what is to be measured: some would wait for ever for those that never end."""


@dataclass
class EngineBench:
    """An engine, stepped by hand, with fresh stream numbers and prompts that no cache has seen."""

    engine: Engine
    vocab: int
    device: torch.device
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def prompt(self, length: int, salt: int) -> list[int]:
        return [(7919 * salt + 31 * at + at * at % 97) % (self.vocab - 2) + 2 for at in range(length)]

    def begin(
        self, count: int, context: int, sampling: api.Sampling = ENDLESS, credit: int = 2**31 - 1
    ) -> list[int]:
        """So many streams, until each of them has its first token."""
        streams = [next(self.numbers) for _ in range(count)]
        self.engine.send(
            [api.Submit(stream, self.prompt(context, stream), sampling, credit) for stream in streams]
        )
        waiting = set(streams) if credit else set()
        while waiting:
            for news in self.engine.step().news:
                assert news.finish is None, f"stream {news.stream} has ended: {news.finish}"
                waiting -= {news.stream} if news.tokens else set()
        return streams

    def outputs(self, prompts: list[list[int]], sampling: api.Sampling) -> list[list[int]]:
        """All that streams of these prompts say, which begin together."""
        said: dict[int, list[int]] = {next(self.numbers): [] for _ in prompts}
        self.engine.send(
            [
                api.Submit(stream, prompt, sampling, sampling.max_tokens)
                for stream, prompt in zip(said, prompts, strict=True)
            ]
        )
        while any(len(tokens) < sampling.max_tokens for tokens in said.values()):
            for news in self.engine.step().news:
                said[news.stream] += news.tokens
        return list(said.values())

    def require_room(self, *groups: tuple[int, int], steps: int = WARM + 2 * STEPS) -> None:
        """Raise unless so many streams of so many tokens each have room, with what they output in so many
        steps and, while the others begin, before."""
        before = sum(rows * tokens for rows, tokens in groups) // self.engine.scheduler.step_tokens
        need = sum(rows * (tokens + before + steps) for rows, tokens in groups)
        have = self.engine.cache.total * self.engine.cache.block_size
        if need > have:
            raise DoesNotFit(f"does not fit: {need:,} tokens, and the KV cache has room for {have:,}")

    def end(self) -> None:
        live = list(self.engine.scheduler.sequences)
        self.engine.send([api.Cancel(stream) for stream in live])
        while not self.engine.idle or self.engine.scheduler.sequences:
            self.engine.step()

    def steps(self, count: int) -> list[float]:
        """The seconds that each of so many steps took."""
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self.engine.step()
            times.append(time.perf_counter() - began)
        return times

    def step_s(self, count: int = STEPS) -> float:
        """Of a step, on average over many: with overlap a single one says little."""
        self.steps(WARM)
        wait(self.device)
        began = time.perf_counter()
        self.steps(count)
        wait(self.device)
        return (time.perf_counter() - began) / count

    # -- measurements ----------------------------------------------------------------------------

    def decode_s(self, rows: int, context: int) -> float:
        """Seconds of a step that decodes so many streams behind so long a context."""
        self.require_room((rows, context))
        self.begin(rows, context)
        seconds = self.step_s()
        self.end()
        return seconds

    def gap_s(self, rows: int, context: int) -> float | None:
        """Seconds of a step in which no kernel ran; None where there is nothing to ask."""
        if self.device.type != "cuda":
            return None
        self.require_room((rows, context))
        self.begin(rows, context)
        self.steps(WARM)
        wait(self.device)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.steps(STEPS)
            wait(self.device)
        self.end()
        events = profile.events() or []
        kernels = [event.time_range for event in events if event.device_type != DeviceType.CPU]
        return uncovered([(span.start, span.end) for span in kernels]) / 1e6 / STEPS

    def syncs(self, rows: int, context: int) -> list[str]:
        """What torch warns of whenever steps of decoding make the host wait for the device."""
        self.require_room((rows, context))
        self.begin(rows, context)
        self.steps(WARM)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.steps(STEPS)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            self.end()
        return [f"{warning.filename}:{warning.lineno}: {warning.message}" for warning in caught]

    def prefill_s(self, tokens: int) -> float:
        """Seconds from a prompt's arrival to its first token."""
        self.require_room((1, tokens))
        for _ in range(2):  # the first compiles what there is to compile
            wait(self.device)
            began = time.perf_counter()
            self.begin(1, tokens)
            wait(self.device)
            seconds = time.perf_counter() - began
            self.end()
        return seconds

    def intertoken_p99_s(self, rows: int, context: int, prompt: int, prompts: int) -> float:
        """Between two tokens of streams that decode while long prompts arrive one after the other."""
        self.require_room((rows, context), (prompts, prompt))
        watched = set(self.begin(rows, context))
        self.steps(WARM)
        last = dict.fromkeys(watched, time.perf_counter())
        gaps: list[float] = []
        for _ in range(prompts):
            arriving = next(self.numbers)
            self.engine.send([api.Submit(arriving, self.prompt(prompt, arriving), ENDLESS, 1)])
            arrived = False
            while not arrived:
                news = self.engine.step().news
                now = time.perf_counter()
                arrived = any(item.stream == arriving and item.tokens for item in news)
                for item in news:
                    if item.stream in watched and item.tokens:
                        gaps.append(now - last[item.stream])
                        last[item.stream] = now
        self.end()
        return quantile(gaps, 0.99)

    def controls(self, rows: int, context: int, rounds: int) -> tuple[dict[str, float], float]:
        """Steps from a control's arrival to its effect, a kind; and tokens discarded a thousand controls."""
        self.require_room((rows, context), steps=WARM + 8 * rounds + 2 * rows)
        streams = self.begin(rows, context)
        self.steps(WARM)
        steps: dict[str, list[int]] = {"pause": [], "adjust": [], "cancel": []}
        discarded = sent = 0
        for round_ in range(rounds):
            stream = streams[round_ % rows]
            for kind, command in (("pause", api.Pause(stream)), ("adjust", api.Adjust(stream, ENDLESS))):
                self.engine.send([command])
                taken, lost = self._until_answered(stream)
                steps[kind].append(taken)
                discarded, sent = discarded + lost, sent + 1
                if kind == "pause":
                    self.engine.send([api.Resume(stream)])
                self.steps(2)
        for stream in streams:
            self.engine.send([api.Cancel(stream)])
            taken, lost = self._until_answered(stream)
            steps["cancel"].append(taken)
            discarded, sent = discarded + lost, sent + 1
        self.end()
        means = {kind: sum(counts) / len(counts) for kind, counts in steps.items()}
        return means, 1000 * discarded / sent

    def _until_answered(self, stream: int) -> tuple[int, int]:
        taken = lost = 0
        answered = False
        while not answered:
            output = self.engine.step()
            taken, lost = taken + 1, lost + output.stats.discarded
            answered = any(news.stream == stream and (news.changes or news.finish) for news in output.news)
        return taken, lost

    def paused_ratio(self, running: int, paused: int, context: int) -> float:
        """A step of some streams beside many that are paused in the midst of their text, to a step of them
        alone, measured in turns: contexts grow meanwhile."""
        self.require_room((running, context), (paused, 16), steps=3 * WARM + 4 * STEPS + 4)
        self.begin(running, context)
        before = self.step_s()
        waiting = self.begin(paused, 16)
        self.engine.send([api.Pause(stream) for stream in waiting])
        self.steps(2)
        beside = self.step_s(2 * STEPS)
        self.engine.send([api.Cancel(stream) for stream in waiting])
        self.steps(2)
        alone = (before + self.step_s()) / 2
        self.end()
        return beside / alone
