"""Names for the tests, and a check that they leave nothing behind."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import ndshm


def pytest_configure(config: pytest.Config) -> None:
    """Give dask, in the tests and in their programs, a directory for its lock files that goes with the tests.

    This is a hook, because processes that the tests start import this file too, and some of them are killed.
    """
    directory = tempfile.TemporaryDirectory(prefix="ndshm-dask-")
    config.add_cleanup(directory.cleanup)
    os.environ["DASK_TEMPORARY_DIRECTORY"] = directory.name


def shared_files() -> set[str]:
    return set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()


def counted_arrays() -> set[str]:
    """Return the names of arrays for which no program chose a name."""
    return {file for file in shared_files() if re.fullmatch(r"ndshm-[0-9a-f]{16}", file)}


@pytest.fixture
def name() -> Iterator[str]:
    """A name for one array. It is removed after the test."""
    name = f"py-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    yield name
    ndshm.unlink(name)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail if a test leaves another array or a renderbuffer, and remove it."""
    yield
    left = {file for file in shared_files() if f"py-{os.getpid()}-" in file}
    for file in left:
        Path("/dev/shm", file).unlink(missing_ok=True)
    assert not left
