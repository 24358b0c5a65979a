"""The usage metrics of each tenant. Names of tenants stand in the key file, and beyond a cap all are `other`.

It counts whole streams when they end, and those that live when somebody asks: nothing a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from realtime.stream.stream import Stream

TENANT_LIMIT = 100
OTHER = "other"


class TenantUsage:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # the label of each tenant
        self._streams = Counter[str]()
        self._prompt = Counter[str]()
        self._output = Counter[str]()

    def started(self, tenant: str, stream: Stream) -> None:
        if tenant not in self._names:
            self._names[tenant] = tenant if len(self._names) < TENANT_LIMIT else OTHER
        name = self._names[tenant]
        self._streams[name] += 1
        self._prompt[name] += stream.prompt_tokens

    def finished(self, tenant: str, stream: Stream) -> None:
        self._output[self._names[tenant]] += stream.counts.decoded

    def ended(self) -> Counter[str]:
        """What streams decoded that have ended by now. Whoever looks at those that live piece by piece asks
        before the first piece: one that ends meanwhile would count twice, and the total go back later."""
        return self._output.copy()

    def families(self, ended: Mapping[str, int], decoded: Mapping[str, int]) -> Iterable[Metric]:
        """`decoded`: tokens of the streams that lived then, by tenant."""
        streams = CounterMetricFamily("midstream_tenant_streams", "Streams started", labels=["tenant"])
        tokens = CounterMetricFamily(
            "midstream_tenant_tokens", "Tokens of prompts, and decoded", labels=["tenant", "kind"]
        )
        output = Counter[str](ended)
        for tenant, tokens_decoded in decoded.items():
            output[self._names[tenant]] += tokens_decoded
        for name, count in self._streams.items():
            streams.add_metric([name], count)
            tokens.add_metric([name, "prompt"], self._prompt[name])
            tokens.add_metric([name, "output"], output[name])
        yield streams
        yield tokens
