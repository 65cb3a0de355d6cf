"""A directory for the arrays of all tests and their children, and checks that nothing is left behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator

import pytest

# Before `ndshm` is imported. It is shared memory like /dev/shm itself, but no other program has arrays there.
DIRECTORY = tempfile.mkdtemp(prefix="ndshm-torch-", dir="/dev/shm")
os.environ["EMULATE_SHM"] = "1"
os.environ["NDSHM_EMULATED_DIR"] = DIRECTORY

import torch.multiprocessing  # noqa: E402
from peers import eventually, files, left_by_torch, torch_files  # noqa: E402
from travelling import LIMIT, STRATEGIES, Travel, stop_children  # noqa: E402

import ndshm  # noqa: E402
import ndshm.torch  # noqa: E402


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


@pytest.fixture(params=STRATEGIES)
def travel(request: pytest.FixtureRequest) -> Iterator[Travel]:
    """Each way in which torch's own tensors travel: its own strategies, and as counted arrays. A test that hangs fails."""
    def stop(*_: object) -> None:
        raise AssertionError(f"the test takes more than {LIMIT} seconds")

    def is_left(name: str) -> bool:
        # torch names its files after the process. Those of other programs are theirs.
        matches = re.match(r"torch_(\d+)_", name)
        return matches is not None and name not in before | left_by_torch and (matches[1] == str(os.getpid()) or not os.path.exists(f"/proc/{matches[1]}"))

    before = set(os.listdir("/dev/shm"))
    faulthandler.dump_traceback_later(LIMIT + 60, exit=True)  # if the signal is not enough
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    travel = Travel(request.param)
    travel.begin()
    try:
        yield travel
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        faulthandler.cancel_dump_traceback_later()
        stop_children()
        travel.end()
        if failure := getattr(sys, "last_traceback", None):
            traceback.clear_frames(failure)  # it keeps the tensors of a test that failed
    if travel.name != "ndshm":  # torch leaves files until this process ends, and aborts it if they are gone when it frees a tensor
        gc.collect()
        left_by_torch.update(filter(is_left, os.listdir("/dev/shm")))
    eventually(lambda: not any(map(is_left, os.listdir("/dev/shm"))), 10)
