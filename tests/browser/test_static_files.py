"""Static files, those of the page and of the SDK: what is served, and with which headers."""

from __future__ import annotations

import urllib.request
from http.client import HTTPResponse
from urllib.error import HTTPError

import pytest

from tests.server.server_process import PATIENCE_S, Served


def fetch(server: Served, path: str, **headers: str) -> HTTPResponse | HTTPError:
    try:
        request = urllib.request.Request(server.http + path, headers=headers)
        response: HTTPResponse = urllib.request.urlopen(request, timeout=PATIENCE_S)
    except HTTPError as refused:
        refused.close()
        return refused
    response.close()
    return response


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/main.js", "text/javascript"),
        ("/sdk/midstream.js", "text/javascript"),
        ("/style/page.css", "text/css"),
        ("/vendor/uplot/uPlot.esm.js", "text/javascript"),
    ],
)
def test_files_have_their_kind_and_the_policy(toy_server: Served, path: str, kind: str) -> None:
    response = fetch(toy_server, path)
    assert response.status == 200
    assert response.headers.get_content_type() == kind
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/sdk/", "/style/", "/sdk/../package.json", "/..%2fpyproject.toml", "/vendor/uplot/LICENSE"],
)
def test_nothing_else_is_there(toy_server: Served, path: str) -> None:
    response = fetch(toy_server, path)
    assert response.status == 404
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_what_has_not_changed_is_not_sent_again(toy_server: Served) -> None:
    tag = fetch(toy_server, "/main.js").headers["ETag"]
    assert fetch(toy_server, "/main.js", **{"If-None-Match": tag}).status == 304
