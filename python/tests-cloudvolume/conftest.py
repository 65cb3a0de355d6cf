"""Names and volumes for the tests, and a check that they leave nothing behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import ndshm.cloudvolume


@pytest.fixture
def name() -> Iterator[str]:
    """A name for one array. It is removed after the test."""
    name = f"py-cv-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.fixture
def installed() -> Iterator[None]:
    """CloudVolume with the functions and methods of this package."""
    ndshm.cloudvolume.install()
    yield
    ndshm.cloudvolume.uninstall()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail if a test leaves an array, or an unfinished one, and remove it."""
    yield
    # Other processes have files there, too.
    mine = (f"py-cv-{os.getpid()}-", f"ndshm-download-{os.getpid()}-")
    left = {file for file in os.listdir("/dev/shm") if any(part in file for part in mine)}
    for file in left:
        Path("/dev/shm", file).unlink(missing_ok=True)
    assert not left
