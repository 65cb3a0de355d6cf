"""After a kill: the methods of CloudVolume overwrite what a killed job left, as they always have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cloudvolume
import numpy as np

import ndshm
import ndshm.cloudvolume

KILLED = """
import os, signal, sys, ndshm
buffer = ndshm.RenderBuffer(sys.argv[1], (32, 32, 32, 1), (8, 8, 8, 1), "uint8", "F", fingerprint="a region")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_methods_of_cloudvolume_overwrite_what_a_kill_left(tmp_path: Path, name: str) -> None:
    x = np.random.default_rng(7).integers(0, 256, (64, 32, 32, 1), "uint8")
    url = f"precomputed://file://{tmp_path}/em"
    ndshm.upload(ndshm.create_volume(url, x.shape, (8, 8, 8), "uint8"), x).result()
    assert subprocess.run([sys.executable, "-c", KILLED, name], check=False).returncode == -9
    ndshm.cloudvolume.install()
    try:
        cutout = cloudvolume.CloudVolume(url, progress=False).download_to_shared_memory(np.s_[32:64, :, :], name)
        np.testing.assert_array_equal(cutout, x[32:])
        cutout.close()
    finally:
        ndshm.cloudvolume.uninstall()
