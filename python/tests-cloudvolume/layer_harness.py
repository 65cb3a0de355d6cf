"""The helpers that CloudVolume's own tests import and its source archive lacks: volumes in the folder in which the tests run."""

from __future__ import annotations

import os
import shutil
from typing import Any

import numpy as np
from cloudvolume import CloudVolume
from cloudvolume.lib import find_closest_divisor

TEST_NUMBER = os.getpid()
FOLDER = os.path.join(os.getcwd(), "tmp/removeme/")


def create_layer(
    size: Any, offset: Any, layer_type: str = "image", layer_name: str = "layer", dtype: Any = None, encoding: str = "raw"
) -> tuple[Any, Any]:
    """Write a volume of random elements, and return both."""
    rng = np.random.default_rng()
    if layer_type == "affinities":
        x = rng.random(size, dtype=np.float32).astype(dtype or np.float32)
    elif layer_type == "segmentation":
        x = rng.integers(0xFFFFFF, size=size, dtype=np.uint32)
    else:
        x = rng.integers(255, size=size, dtype=dtype or np.uint8)
    vol = CloudVolume.from_numpy(
        x,
        vol_path=f"file://{FOLDER}{layer_name}",
        resolution=(1, 1, 1),
        voxel_offset=offset,
        chunk_size=find_closest_divisor(x.shape[:3], closest_to=[64, 64, 64]),
        layer_type=layer_type,
        encoding=encoding,
    )
    return vol, x


def delete_layer(path: str = FOLDER) -> None:
    shutil.rmtree(path, ignore_errors=True)
