"""Files of certificates that cannot be used: each is named, and nobody is asked for anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from realtime.certificates import CertificateError, Certificates
from tests.fakes.certificates import Authority


def test_a_private_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The certificate was, which is there."""
    cert, _ = Authority(tmp_path / "ours").signed("engine")
    with pytest.raises(CertificateError, match=f"certificate {cert} .* No such file .*'{tmp_path}/none'"):
        Certificates("", str(cert), str(tmp_path / "none")).of_an_engine()


def test_nobody_is_asked_for_the_words_of_a_private_key(tmp_path: Path) -> None:
    """At a terminal a server stood for that, whenever it connected to an engine."""
    cert, key = Authority(tmp_path / "ours").signed("engine")
    encrypted = tmp_path / "encrypted"
    change = ["openssl", "pkey", "-aes256", "-passout", "pass:words", "-in", str(key), "-out", str(encrypted)]
    subprocess.run(change, check=True)
    files = Certificates("", str(cert), str(encrypted))
    for made in (files.of_an_engine, files.of_a_gateway):
        with pytest.raises(CertificateError, match=f"its private key {encrypted} is encrypted: take one"):
            made()
