"""Cross-origin resource sharing (CORS): pages of which other origins may read what is answered over HTTP.

Browsers ask this of us before a page's script reads anything, and before it sends what a form could not
(the preflight). It stands around the whole application, so that a failure can be read as well. Who may ask
at all is the guard's business: a page that is not allowed reads nothing here, and what it asks is refused
there.
"""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

METHODS = ("GET", "POST")
# What a script may see of an answer, beside its body, its type and its length.
EXPOSED = ("X-Request-Id", "Retry-After", "X-Should-Retry", "WWW-Authenticate")


def shared_with(origins: tuple[str, ...], app: ASGIApp) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),  # SDKs have many of their own; a page that may ask may say anything
        allow_private_network=True,  # the page's origin was named: it may be on the Internet, and we at home
        expose_headers=EXPOSED,
    )
