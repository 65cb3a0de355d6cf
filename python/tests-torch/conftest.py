"""A directory for the arrays of all tests and their children, and checks that nothing is left behind."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

# Before `ndshm` is imported. It is shared memory like /dev/shm itself, but no other program has arrays there.
DIRECTORY = tempfile.mkdtemp(prefix="ndshm-torch-", dir="/dev/shm")
os.environ["EMULATE_SHM"] = "1"
os.environ["NDSHM_EMULATED_DIR"] = DIRECTORY

import torch.multiprocessing  # noqa: E402
from peers import eventually, files, torch_files  # noqa: E402

import ndshm  # noqa: E402


def pytest_unconfigure() -> None:
    shutil.rmtree(DIRECTORY, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail if a test leaves an array or a file of torch, and remove it. Orphans are reclaimed: nothing runs when torch frees a tensor.

    Tests of what is removed at once look for themselves.
    """
    yield
    gc.collect()
    ndshm.in_flight.clear()
    try:
        eventually(lambda: not ndshm.gc() and not files() and not torch_files(), 10)
    finally:
        for path in [os.path.join(DIRECTORY, name) for name in files()] + [f"/dev/shm/{name}" for name in torch_files()]:
            os.unlink(path)


@pytest.fixture
def name() -> Iterator[str]:
    """A name for one plain array. It is removed after the test."""
    name = "py-torch"
    yield name
    ndshm.unlink(name)


@pytest.fixture(params=["file_descriptor", "file_system"])
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of torch's sharing strategies."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.fixture(params=["plain", "counted", "nameless"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each kind of array."""
    yield request.param
    ndshm.unlink("py-torch")
