"""Certificates for `localhost`, and who vouches for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
FOR_LOCALHOST = "subjectAltName=DNS:localhost\nauthorityKeyIdentifier=keyid\n"


class Authority:
    """With files in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl to make a certificate")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.cert, self._key = folder / "authority.pem", folder / "authority.key"
        said = ("-subj", f"/CN={folder.name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._run("req", "-x509", *NEW_KEY, *said, "-keyout", str(self._key), "-out", str(self.cert))

    def signed(self, name: str) -> tuple[Path, Path]:
        """A certificate, and its key."""
        cert, key, wish = (self._folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        extensions = self._folder / "extensions"
        extensions.write_text(FOR_LOCALHOST)
        self._run("req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(wish))
        by = ("-CA", str(self.cert), "-CAkey", str(self._key), "-CAcreateserial")
        self._run("x509", "-req", "-in", str(wish), *by, "-extfile", str(extensions), "-out", str(cert))
        return cert, key

    def _run(self, *command: str) -> None:
        subprocess.run(["openssl", *command], check=True, capture_output=True)
