"""zarr-python and CloudVolume read what `ndshm.upload` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cloudvolume import CloudVolume
from volumes import elements

import ndshm

SHAPE = (50, 33, 21)
CHUNK = (16, 16, 8)
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32")


def write(url: str, x: Any, **how: Any) -> Any:
    """Create a volume and upload an array twice: once as a whole, and then a part that cuts through chunks."""
    chunk = (*CHUNK, 1)[: x.ndim]
    volume = ndshm.create_volume(url, x.shape, chunk, x.dtype, **how)
    ndshm.upload(volume, x).result()
    change = np.full((20, 10, 5, *x.shape[3:]), 77, x.dtype)
    ndshm.upload(volume, change, np.s_[5:25, 7:17, 3:8], partial=True).result()
    expected = x.copy()
    expected[5:25, 7:17, 3:8] = 77
    return expected


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "float64", "complex64"])
@pytest.mark.parametrize("version", [2, 3])
def test_zarr_python_reads_every_dtype(dtype: str, version: int, tmp_path: Path) -> None:
    x = elements("uint8", shape=SHAPE)[..., 0]
    x = x.astype(dtype)
    expected = write(str(tmp_path / "v.zarr"), x, format=f"zarr{version}", encoding="gzip")
    found = zarr.open_array(str(tmp_path / "v.zarr"), mode="r")
    assert found.metadata.zarr_format == version and found.dtype == x.dtype
    np.testing.assert_array_equal(found[...], expected)


@pytest.mark.parametrize("encoding", ["raw", "gzip", "zstd", "blosc"])
@pytest.mark.parametrize("shard", [None, (32, 32, 16)])
def test_zarr_python_reads_every_encoding(encoding: str, shard: Any, tmp_path: Path) -> None:
    x = elements("uint16", shape=SHAPE)[..., 0]
    for version in (2, 3) if shard is None else (3,):
        url = str(tmp_path / f"{version}.zarr")
        expected = write(url, x, format=f"zarr{version}", encoding=encoding, shard=shard)
        found = zarr.open_array(url, mode="r")
        assert found.shards == shard
        np.testing.assert_array_equal(found[...], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["raw", "gzip"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_cloudvolume_reads_every_dtype(dtype: str, encoding: str, order: str, tmp_path: Path) -> None:
    x = np.asarray(elements(dtype, 1 if encoding == "gzip" else 2, shape=SHAPE), order=order)
    kind = {"kind": "image"} if dtype in ("uint32", "uint64") else {}
    chunk = (*CHUNK, x.shape[3])
    url = f"precomputed://{tmp_path}/v"
    volume = ndshm.create_volume(url, x.shape, chunk, dtype, encoding=encoding, origin=(0, 0, 0, 0), **kind)
    ndshm.upload(volume, x, encoding=encoding).result()
    found = CloudVolume(f"file://{tmp_path}/v")
    assert found.data_type == dtype and tuple(found.chunk_size) == CHUNK
    np.testing.assert_array_equal(np.array(found[:]), x)


@pytest.mark.parametrize("encoding", ["png", "jpeg", "compressed_segmentation", "compressed_segmentation_gzip"])
def test_cloudvolume_reads_every_encoding(encoding: str, tmp_path: Path) -> None:
    x = elements("uint64" if encoding.startswith("compressed") else "uint8", shape=SHAPE)
    if encoding == "jpeg":
        x[...] = np.arange(SHAPE[0])[:, None, None, None]  # a smooth picture
    url = f"precomputed://{tmp_path}/v"
    volume = ndshm.create_volume(url, x.shape, (*CHUNK, 1), x.dtype, encoding=encoding, origin=(100, -7, 3, 0), resolution=(4, 4, 40))
    ndshm.upload(volume, x, encoding=encoding).result()
    found = CloudVolume(f"file://{tmp_path}/v")
    assert list(found.resolution) == [4, 4, 40] and list(found.voxel_offset) == [100, -7, 3]
    differ = np.array(found[:]).astype("f8") - x.astype("f8")
    assert abs(differ).max() <= (3 if encoding == "jpeg" else 0)


def test_cloudvolume_reads_zarr(tmp_path: Path) -> None:
    x = elements("uint16", shape=SHAPE)[..., 0]
    volume = ndshm.create_volume(str(tmp_path / "v.zarr"), x.T.shape, CHUNK[::-1], "uint16", encoding="zstd")
    ndshm.upload(volume, x.T).result()
    np.testing.assert_array_equal(np.array(CloudVolume(f"zarr3://file://{tmp_path}/v.zarr")[:])[..., 0], x)
