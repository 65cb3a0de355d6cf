"""Tests of `ndshm.cuda` with the test double of the driver. `scripts/test-python` builds the double and puts it into the loader's path."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from multiprocessing import resource_sharer

import driver
import pytest

# Read when the driver is initialised. Children inherit it.
os.environ["FAKE_CUDA_TAG"] = f"python-{os.getpid()}"
os.environ["FAKE_CUDA_DEVICES"] = "2"
os.environ["FAKE_CUDA_MEMORY"] = str(1 << 30)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail if a test leaves memory of a GPU in any process, or has misused the driver."""
    yield
    resource_sharer.stop(60)
    gc.collect()
    driver.until(lambda: driver.memory_in_use() == 0)
    assert driver.violations() == ""
