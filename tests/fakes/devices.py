"""Where tests of the engine compute: on the CPU, or where `MIDSTREAM_TEST_DEVICE` says (`make test-gpu`)."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = torch.device(os.environ.get("MIDSTREAM_TEST_DEVICE", "cpu"))
ON_DEVICE = DEVICE.type == "cuda"
needs_device = pytest.mark.skipif(not ON_DEVICE, reason="no device was named in MIDSTREAM_TEST_DEVICE")
