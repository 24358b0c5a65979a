"""A keeper's engines and ledger, without Ray: engines are ready as soon as there is room for them."""

from __future__ import annotations

from keeper.gateways import Said
from keeper.plan import Kept, Machine, Need, Plan, is_gateway


class KeptEngines:
    """Both, by name; what was done is in `done`."""

    def __init__(self, room: int) -> None:
        self.started: dict[str, list[str]] = {}  # with which arguments
        self.done: list[str] = []
        self.fails = ""  # what new engines say
        self.is_in_hand = False
        self.gateways: dict[str, Said] = {}  # what each has said
        self._room = room
        self._plan: Plan | None = None

    # -- engines ---------------------------------------------------------------------------------

    def engines(self) -> list[str]:
        return list(self.started)

    def start(self, name: str, need: Need, arguments: list[str], token: str) -> None:
        self.started[name] = arguments
        self.done.append(f"+{name}")

    def end(self, name: str, *, hands_over: bool) -> None:
        del self.started[name]
        self.done.append(f"-{name}" if hands_over else f"-{name} which was nowhere")

    # -- the ledger ------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        return self._plan

    def set_plan(self, plan: Plan) -> None:
        self._plan = plan

    def forget(self) -> None:
        self._plan = None

    def kept(self) -> dict[str, Kept]:
        placed = list(self.started)[: self._room]
        if self.fails:
            return dict.fromkeys(placed, Kept("failed", "m0", why=self.fails))
        port = {True: 8000, False: 7000}
        return {name: Kept("ready", "m0", f"10.0.0.7:{port[is_gateway(name)]}") for name in placed}

    def strike_out(self, engine: str) -> None:
        pass

    def said(self) -> dict[str, Said]:
        return dict(self.gateways)

    def say(self, gateway: str, said: Said) -> None:
        self.gateways[gateway] = said

    def forget_gateway(self, gateway: str) -> None:
        del self.gateways[gateway]

    def machines(self) -> dict[str, Machine]:
        return {"m0": Machine("gpu1", 8, 4, 2**35)}

    def placed(self) -> dict[str, bool]:
        kept = self.kept()
        return {name: name in kept for name in self.started}
