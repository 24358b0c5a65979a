"""Proxies in front, as the documents have them: whoever reaches one reaches the server, so it has keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "ops/nginx.conf"]
# A block of a document, or a whole configuration, that passes requests on.
BLOCKS = [
    block
    for text in TEXTS
    for block in (
        re.findall(r"(?ms)^```.*?^```$", text.read_text()) if text.suffix == ".md" else [text.read_text()]
    )
    if re.search(r"reverse_proxy |proxy_pass ", block)
]


def test_there_are_some() -> None:
    assert any("reverse_proxy" in block for block in BLOCKS)
    assert any("proxy_pass" in block for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_proxy_comes_with_keys(block: str) -> None:
    serve = re.findall(r"midstream serve(.*)", block)
    assert serve, "it says how the server behind it is started"
    assert all("--keys-file" in options and "--insecure-open" not in options for options in serve)
    assert "midstream keys add" in block
