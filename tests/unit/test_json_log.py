"""The log as JSON: an object a line, whatever stands in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

WHAT = "the key file /srv/ké\udcff.toml, \x1b[31m\n"  # a path need be no text, and is shown so
SCRIPT = f"""
import logging
from realtime.observability import logs

logs.set_up("info", "json")
logging.getLogger("midstream").warning("%s", {WHAT!a})
"""


def test_what_is_no_text_is_told_as_well_and_in_whatever_encoding() -> None:
    for encoding in ("utf-8", "latin-1"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            text=True,
            check=False,
        )
        (line,) = done.stderr.splitlines()
        assert json.loads(line)["event"] == WHAT
