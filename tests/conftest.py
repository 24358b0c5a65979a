"""What holds for every test, and for every process that a test starts."""

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

from engine.heap import settle_heap

# One thread for the arithmetic of tiny models: two that wait for each other, on a machine whose cores are
# busy with the test's other processes, take many times as long. Read by torch when it is loaded, so it
# stands before all imports.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without a device, kernels run in Triton's interpreter: also read when it is loaded, by torch.
if not os.environ.get("MIDSTREAM_TEST_DEVICE", "").startswith("cuda"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Hundreds of processes read the same sources, which the first is to compile for all of them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Whoever starts the tests in the background may have had Ctrl-C ignored, for them and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("midstream", deadline=None)
settings.load_profile("midstream")


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One process more than there are processors: what a test has started is often waited for."""
    return (yield) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected is there to stay, with all modules that it has loaded: a million objects, and half a
    second each time that the collector looks at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        settle_heap()
