"""The ledger of a fleet, which lies in Ray's GCS: its plan, and what each engine's keeper and each
gateway tell.

It is read by the address of the GCS alone: whoever does is no driver of Ray's, needs no Ray on his machine
but the library, and lives on when the GCS does not.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, TypeVar

import msgspec
from ray._raylet import GcsClient
from ray.exceptions import RayError

from keeper.gateways import Said
from keeper.plan import Kept, Machine, Plan, is_kept

NAMESPACE = "midstream"  # of keys there, and of actors
PLAN, ENGINE, GATEWAY = b"plan", b"engine/", b"gateway/"
ANSWER_S = 5.0
ACTOR_ALIVE, ACTOR_DEAD, NODE_ALIVE = 2, 4, 0  # by Ray's protocol


T = TypeVar("T")


class LedgerError(Exception):
    """The GCS does not answer; the message is a sentence."""


class Ledger:
    def __init__(self, address: str) -> None:
        """Raises LedgerError."""
        self._address = address
        host, _, port = address.rpartition(":")
        try:
            # Ray's own client would look for it for most of a minute, with lines of its own on stderr.
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
            self._gcs = GcsClient(address=address)
        except (OSError, RayError) as error:
            raise self._silent(error) from None
        except UnicodeError:  # as the standard library says it
            raise self._silent("its host is no name of a machine") from None

    def plan(self) -> Plan | None:
        """None where no fleet has been brought up."""
        found = self._ask("internal_kv_get", PLAN)
        return None if found is None else msgspec.json.decode(found, type=Plan)

    def set_plan(self, plan: Plan) -> None:
        self._ask("internal_kv_put", PLAN, msgspec.json.encode(plan), True)

    def forget(self) -> None:
        self._ask("internal_kv_del", b"", True)

    def kept(self) -> dict[str, Kept]:
        """Of engines and kept gateways, by name."""
        return self._all(ENGINE, Kept)

    def said(self) -> dict[str, Said]:
        """By the gateway."""
        return self._all(GATEWAY, Said)

    def say(self, gateway: str, said: Said) -> None:
        self._ask("internal_kv_put", GATEWAY + gateway.encode(), msgspec.json.encode(said), True)

    def forget_gateway(self, gateway: str) -> None:
        self._ask("internal_kv_del", GATEWAY + gateway.encode(), False)

    def tell(self, engine: str, kept: Kept) -> None:
        self._ask("internal_kv_put", ENGINE + engine.encode(), msgspec.json.encode(kept), True)

    def strike_out(self, engine: str) -> None:
        self._ask("internal_kv_del", ENGINE + engine.encode(), False)

    def machines(self) -> dict[str, Machine]:
        """Those that live, by the name of their node."""
        try:
            nodes = self._gcs.get_all_node_info(timeout=ANSWER_S)
        except RayError as error:
            raise self._silent(error) from None
        return {
            number.hex(): Machine(
                node.node_manager_hostname,
                int(node.resources_total.get("CPU", 0)),
                int(node.resources_total.get("GPU", 0)),
                int(node.resources_total.get("memory", 0)),
            )
            for number, node in nodes.items()
            if node.state == NODE_ALIVE
        }

    def placed(self) -> dict[str, bool]:
        """Whether each of them has a machine."""
        return asyncio.run(self._placed())

    async def _placed(self) -> dict[str, bool]:
        try:
            actors = await self._gcs.async_get_all_actor_info(timeout=ANSWER_S)
        except RayError as error:
            raise self._silent(error) from None
        return {
            actor.name: actor.state == ACTOR_ALIVE
            for actor in actors.values()
            if actor.ray_namespace == NAMESPACE and actor.state != ACTOR_DEAD and is_kept(actor.name)
        }

    def _all(self, prefix: bytes, kind: type[T]) -> dict[str, T]:
        keys = self._ask("internal_kv_keys", prefix)
        found = self._ask("internal_kv_multi_get", keys) if keys else {}
        return {
            key.removeprefix(prefix).decode(): msgspec.json.decode(value, type=kind)
            for key, value in sorted(found.items())
        }

    def _ask(self, what: str, *arguments: object) -> Any:
        try:
            return getattr(self._gcs, what)(*arguments, NAMESPACE.encode(), timeout=ANSWER_S)
        except RayError as error:
            raise self._silent(error) from None

    def _silent(self, why: Exception | str) -> LedgerError:
        return LedgerError(
            f"there is no Ray at {self._address}: its GCS does not answer ({why}). It is the address that"
            " `ray start --head` tells, such as 10.0.0.7:6379"
        )
