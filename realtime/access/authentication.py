"""Authentication: from the headers of a request to the holder of a key, or to a refusal.

It knows where a key or a one-time secret may stand (never in a URL, which ends up in logs), and what is
checked before that: which page asks, and without keys by which name and way it does. It knows no route and
no answer, and repeats nothing of what it was shown.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from starlette.datastructures import Headers

from realtime.access.client_secrets import ClientSecrets
from realtime.access.keyless import KeylessRules
from realtime.access.keyring import Keyring
from realtime.access.origin import allowed, of_unsaid_page, own
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder

BEARER = "bearer."  # of a subprotocol: what a browser can send with an upgrade, and all it can


class Credentials:
    """`keyring` is None where the server has no keys: then everybody is the same holder."""

    def __init__(
        self,
        secrets: ClientSecrets,
        keyring: Keyring | None = None,
        origins: tuple[str, ...] = (),
        keyless: KeylessRules | None = None,
    ) -> None:
        self.origins = origins
        self._keyring = keyring
        self._keyless = keyless or KeylessRules()
        self.secrets = secrets

    async def of_request(self, headers: Headers) -> Holder:
        """Whoever sent this, by a key in its `Authorization`."""
        self._check_way(headers)
        if self._keyring is None:
            return Holder()
        return self._known(await self._keyring.holder(_authorization(headers)))

    async def of_upgrade(self, headers: Headers, subprotocols: Iterable[str]) -> Holder:
        """Whoever wants a WebSocket, by the same, or by a key or one-time secret among its subprotocols."""
        if self._keyring is None or "authorization" in headers:
            return await self.of_request(headers)
        self._check_way(headers)
        shown = _subprotocol(subprotocols)
        # A key may come this way without an `Origin`: WebSockets outside of browsers often take no headers.
        return self._known(await self._keyring.holder(shown) or await self._redeemed(shown, headers))

    def _check_way(self, headers: Headers) -> None:
        """Whether it may have been asked in this way at all, whoever asks."""
        if self._keyring is None:
            self._keyless.check(headers)
        if not allowed(headers, self.origins):
            raise Refusal("forbidden", "Pages of this origin may not ask here; see --allowed-origins.")

    def check_page(self, headers: Headers) -> None:
        """Before a GET does anything: without keys it may be any page's that a browser says nothing of. With
        keys one has been shown, which no page can have a browser do unseen."""
        if self._keyring is None and of_unsaid_page(headers):
            raise Refusal(
                "forbidden",
                "This server has no keys, and your browser does not say that one of its pages asks for this: "
                "have one ask, called by 127.0.0.1 or localhost, or send a POST.",
            )

    def check_origin(self, origin: str, headers: Headers) -> None:
        """Whether a page of this origin, which is not there yet, may connect some time."""
        if origin not in self.origins and not own(origin, headers):
            raise Refusal("forbidden", "Pages of that origin may not ask here; see --allowed-origins.")

    def still_hold(self, holder: Holder) -> bool:
        return self._keyring is None or self._keyring.holds(holder)

    def check_held(self, holder: Holder) -> None:
        """Whether whoever came in a while ago may still ask: a body can take a minute to come."""
        if not self.still_hold(holder):
            raise Refusal("unauthenticated", "Your key was revoked.")

    def are_admins(self, holder: Holder) -> bool:
        return self._keyring is None or holder.admin

    def may_read_metrics(self, holder: Holder) -> bool:
        return self.are_admins(holder) or holder.metrics

    async def _redeemed(self, secret: str, headers: Headers) -> Holder | None:
        issued = await self.secrets.redeem(secret)
        origin = headers.get("origin")
        if issued is None or origin is None or not self.still_hold(issued.holder):
            return None
        meant = own(origin, headers) if issued.origin is None else origin == issued.origin
        return issued.holder if meant else None

    def _known(self, holder: Holder | None) -> Holder:
        if holder is None:
            raise Refusal(
                "unauthenticated",
                "This key or client secret is not known here: a key may have been revoked, and a secret "
                "works once, within 30 seconds, from the page that it was made for.",
            )
        return holder


def _authorization(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise _nothing_shown()
    return key.strip()


def _subprotocol(subprotocols: Iterable[str]) -> str:
    shown = next((name for name in subprotocols if name.startswith(BEARER)), None)
    if shown is None:
        raise _nothing_shown()
    encoded = shown.removeprefix(BEARER)
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        raise _nothing_shown() from None


def _nothing_shown() -> Refusal:
    return Refusal(
        "unauthenticated",
        "This server wants a key: send `Authorization: Bearer KEY`, or with a WebSocket the subprotocol "
        "`bearer.` and the key in base64url.",
    )
