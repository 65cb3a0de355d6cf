"""A neuroscientist who downloads cut-outs under names with CloudVolume, in jobs that are killed (kill -9, or by the memory limit).
Follows docs/guide/cloudvolume.md, and "Volumes" in docs/guide/python.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm


@pytest.fixture
def x() -> Any:
    return np.random.default_rng(7).integers(0, 256, (64, 32, 32, 1), "uint8")


@pytest.fixture
def volume(tmp_path: Path, x: Any) -> Iterator[str]:
    url = f"precomputed://file://{tmp_path}/em"
    ndshm.create_volume(url, x.shape, (8, 8, 8), "uint8")
    ndshm.upload(url, x).result()
    yield url


def test_other_region_replaces_what_a_kill_left(volume: str, name: str, x: Any) -> None:
    script = (
        "import os, signal, sys, ndshm\n"
        "buffer = ndshm.RenderBuffer(sys.argv[1], (32, 32, 32, 1), (8, 8, 8, 1), 'uint8', fingerprint='a region')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, name], check=False).returncode == -9
    with pytest.raises(ndshm.Mismatch, match="replace=True replaces it"):
        ndshm.download(volume, "32:64,:,:", name=name).result()
    assert [row.name for row in ndshm.ls(partial=True) if row.name == name] == [name]
    array = ndshm.download(volume, "32:64,:,:", name=name, replace=True).result()
    np.testing.assert_array_equal(array[...], x[32:])
    assert name not in [row.name for row in ndshm.ls(partial=True)]
