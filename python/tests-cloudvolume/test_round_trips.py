"""The CloudVolume user: a region of a CloudVolume is edited and goes back, or becomes a volume of its own, and CloudVolume reads equal bytes,
resolution, offset and unit. Follows docs/guide/cloudvolume.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cloudvolume import CloudVolume

import ndshm

#: Regions that are aligned to chunks, and not cubes.
REGION = np.s_[116:132, 205:221, 15:27]


def em_of(place: Path) -> tuple[Any, Any]:
    x, y, z = np.mgrid[:40, :34, :20]
    x = (x + 50 * y + 1800 * z).astype("uint16")
    how: Any = {"resolution": (4, 4, 40), "voxel_offset": (100, 205, 7), "chunk_size": (16, 16, 8)}
    vol = CloudVolume.from_numpy(x, vol_path=f"precomputed://file://{place}/em", layer_type="image", compress=False, progress=False, **how)
    return vol, x


def reads(path: Path, expected: Any, offset: tuple[int, ...]) -> None:
    vol = CloudVolume(f"precomputed://file://{path}", progress=False)
    assert (tuple(vol.resolution), tuple(vol.voxel_offset)) == ((4, 4, 40), offset)
    np.testing.assert_array_equal(vol[:, :, :][..., 0], expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_edited_region_goes_back_to_its_place(order: str, tmp_path: Path) -> None:
    vol, x = em_of(tmp_path)
    part = ndshm.download(vol, REGION, order=order).result()
    with part.write() as elements:
        elements += 1
    assert ndshm.upload(vol, part).result().stored == 2
    x[16:32, 0:16, 8:20] += 1
    reads(tmp_path / "em", x, (100, 205, 7))


def test_copy_of_a_region_keeps_its_place(tmp_path: Path) -> None:
    vol, x = em_of(tmp_path)
    part = ndshm.download(vol, REGION).result()
    with part.write() as elements:
        elements += 1
    copy = ndshm.create_volume(f"precomputed://{tmp_path}/copy", like=part)
    ndshm.upload(copy, part).result()
    reads(tmp_path / "copy", x[16:32, 0:16, 8:20] + 1, (116, 205, 15))
    copied = CloudVolume(f"precomputed://file://{tmp_path}/copy")
    assert tuple(copied.chunk_size) == (16, 16, 8) and copied.layer_type == "image"


def test_volume_like_a_cloudvolume_is_like_it(tmp_path: Path) -> None:
    vol, x = em_of(tmp_path)
    same = ndshm.create_volume(f"precomputed://{tmp_path}/same", like=vol)
    ndshm.upload(same, x).result()
    reads(tmp_path / "same", x, (100, 205, 7))
    assert CloudVolume(f"precomputed://file://{tmp_path}/same").info["scales"][0]["chunk_sizes"] == [[16, 16, 8]]
