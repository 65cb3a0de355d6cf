"""Volumes for the tests, written by CloudVolume or by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from cloudvolume import CloudVolume

SHAPE = (40, 33, 20)
CHUNK = (16, 16, 16)
OFFSET = (10, -5, 3)


def elements(dtype: str = "uint8", channels: int = 1, shape: tuple[int, int, int] = SHAPE) -> Any:
    """Elements that differ from one place to the next, none of them 0."""
    x = np.arange(1, 1 + np.prod(shape) * channels, dtype="u8").reshape((*shape, channels))
    return (x % 251 + 1).astype(dtype)


def precomputed(folder: Path, x: Any, *, encoding: str = "raw", compress: Any = None, **how: Any) -> Any:
    """Write a Precomputed volume with CloudVolume, and return it."""
    kind = "segmentation" if encoding == "compressed_segmentation" else "image"
    info = CloudVolume.create_new_info(
        num_channels=x.shape[3],
        layer_type=kind,
        data_type=str(x.dtype),
        encoding=encoding,
        resolution=(4, 4, 40),
        voxel_offset=OFFSET,
        volume_size=x.shape[:3],
        chunk_size=CHUNK,
        max_mip=1,
    )
    vol = CloudVolume(f"file://{folder}", info=info, compress=compress, **how)
    vol.commit_info()
    vol[:] = x
    coarse = x[::2, ::2]
    vol.mip = 1
    size = vol.volume_size
    vol[:] = coarse[: size[0], : size[1], : size[2]]
    return CloudVolume(f"file://{folder}", compress=compress, **how)


def sharded(folder: Path, x: Any) -> Any:
    """Write a Precomputed volume of one shard with CloudVolume."""
    info = CloudVolume.create_new_info(
        num_channels=1,
        layer_type="image",
        data_type=str(x.dtype),
        encoding="raw",
        resolution=(4, 4, 40),
        voxel_offset=(0, 0, 0),
        volume_size=x.shape[:3],
        chunk_size=CHUNK,
    )
    info["scales"][0]["sharding"] = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": 1,
        "hash": "identity",
        "minishard_bits": 1,
        "shard_bits": 0,
        "minishard_index_encoding": "gzip",
        "data_encoding": "gzip",
    }
    vol = CloudVolume(f"file://{folder}", info=info)
    vol.commit_info()
    vol[:] = x
    return vol


def n5(folder: Path, x: Any) -> Any:
    """Write an N5 volume of uncompressed blocks."""
    (folder / "s0").mkdir(parents=True)
    attributes = {
        "pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"},
        "scales": [[1, 1, 1]],
        "n5": "2.0.0",
    }
    (folder / "attributes.json").write_text(json.dumps(attributes))
    scale = {
        "dataType": str(x.dtype),
        "compression": {"type": "raw"},
        "blockSize": list(CHUNK),
        "dimensions": list(x.shape[:3]),
    }
    (folder / "s0" / "attributes.json").write_text(json.dumps(scale))
    counts = [-(-length // chunk) for length, chunk in zip(x.shape, CHUNK, strict=False)]
    for number in np.ndindex(*counts):
        window = tuple(slice(n * chunk, (n + 1) * chunk) for n, chunk in zip(number, CHUNK, strict=True))
        block = x[..., 0][window]
        header = np.array([0, 3], ">u2").tobytes() + np.array(block.shape, ">u4").tobytes()
        file = folder.joinpath("s0", *map(str, number))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(header + block.astype(x.dtype.newbyteorder(">")).tobytes("F"))
    return CloudVolume(f"n5://file://{folder}")
