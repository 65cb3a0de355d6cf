"""A microscopist in a notebook: what was downloaded is edited and goes back, or becomes a volume of its own, and keeps its place, resolution
and chunks. Follows docs/guide/python.md ("Volumes"). The volume's documents and chunks are read as files, without this package."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm

SHAPE, ORIGIN, CHUNK, RESOLUTION = (40, 34, 20), (100, 205, 7), (16, 16, 8), (4, 4, 40)
#: A region that is aligned to chunks, and not a cube.
REGION = np.s_[116:132, 205:221, 15:27]


def elements() -> Any:
    x, y, z = np.mgrid[:40, :34, :20]
    return (x + 50 * y + 1800 * z).astype("uint16")


def em_of(place: Path, **how: Any) -> str:
    """Create the volume as an earlier program did, and return its URL."""
    url = f"precomputed://{place}/em"
    how = {"origin": ORIGIN, "resolution": RESOLUTION, **how}
    em = ndshm.create_volume(url, SHAPE, CHUNK, "uint16", **how)
    ndshm.upload(em, elements()).result()
    return url


def document(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_raw(volume: Path) -> Any:
    """Read all elements of a Precomputed volume of raw chunks."""
    (scale,) = document(volume / "info")["scales"]
    begin = scale["voxel_offset"]
    found = np.full(scale["size"], 9999, "uint16")
    for chunk in (volume / scale["key"]).iterdir():
        ranges = [tuple(map(int, ends.split("-"))) for ends in chunk.name.split("_")]
        at = tuple(slice(a - o, b - o) for (a, b), o in zip(ranges, begin, strict=True))
        found[at] = np.fromfile(chunk, "<u2").reshape([b - a for a, b in ranges], order="F")
    return found


@pytest.mark.parametrize("named", [True, False])
def test_edited_region_goes_back_to_its_place(named: bool, tmp_path: Path, name: str) -> None:
    url = em_of(tmp_path)
    part = ndshm.download(url, REGION, name=name if named else None).result()
    with part.write() as x:
        x += 1
    os.symlink(tmp_path / "em", tmp_path / "link")
    report = ndshm.upload(tmp_path / "link", part).result()
    assert report.region == np.s_[116:132, 205:221, 15:27, 0:1] and report.stored == 2
    expected = elements()
    expected[16:32, 0:16, 8:20] += 1
    np.testing.assert_array_equal(read_raw(tmp_path / "em"), expected)
    # Also by its name, opened again, and a part of it.
    if named:
        assert ndshm.upload(url, name).result().stored == 2
        same = ndshm.open(name, part.shape, "uint16")
        assert ndshm.upload(f"precomputed://file://{tmp_path}/em/", same, cutout="116:132,205:221,15:23").result().stored == 1


def test_replaced_array_still_knows_where_it_is_from(tmp_path: Path, name: str) -> None:
    url = em_of(tmp_path)
    first = ndshm.download(url, REGION, name=name).result()
    opened = [ndshm.open(name, first.shape, "uint16", keep_fd=True), ndshm.open(name, keep_fd=True)]
    ndshm.download(url, np.s_[100:116, 205:221, 15:27], name=name, replace=True).result()
    for array in opened:
        assert ndshm.upload(url, array).result().region[0] == slice(116, 132)
    np.testing.assert_array_equal(read_raw(tmp_path / "em"), elements())


def test_array_of_another_volume_or_scale_needs_its_region(tmp_path: Path) -> None:
    url = em_of(tmp_path)
    part = ndshm.download(url, REGION).result()
    other = ndshm.create_volume(tmp_path / "other", SHAPE, CHUNK, "uint16", format="precomputed", origin=ORIGIN)
    with pytest.raises(ndshm.Mismatch, match=r'give bbox="116:132,205:221,15:27,0:1"') as error:
        ndshm.upload(other, part).result()
    assert f"{tmp_path}/em" in str(error.value)
    assert ndshm.upload(other, part, REGION).result().stored == 2

    info = document(tmp_path / "em" / "info")
    coarse = {**info["scales"][0], "key": "8_8_40", "resolution": [8, 8, 40], "size": [20, 17, 20], "voxel_offset": [50, 102, 7]}
    info["scales"].append(coarse)
    (tmp_path / "em" / "info").write_text(json.dumps(info), encoding="utf-8")
    with pytest.raises(ndshm.InvalidArgument, match="4_4_40.*8_8_40.*mip=.*bbox=") as error:
        ndshm.upload(url, part, mip=1).result()
    assert ndshm.upload(url, part).result().region[0] == slice(116, 132)


def test_copy_of_a_region_keeps_offset_resolution_and_chunks(tmp_path: Path) -> None:
    part = ndshm.download(em_of(tmp_path), REGION).result()
    with part.write() as x:
        x += 1
    copy = ndshm.create_volume(f"precomputed://{tmp_path}/copy", like=part)
    ndshm.upload(copy, part).result()
    (scale,), (old,) = document(tmp_path / "copy" / "info")["scales"], document(tmp_path / "em" / "info")["scales"]
    assert (scale["voxel_offset"], scale["size"]) == ([116, 205, 15], [16, 16, 12])
    assert all(scale[member] == old[member] for member in ("key", "resolution", "chunk_sizes", "encoding"))
    np.testing.assert_array_equal(read_raw(tmp_path / "copy"), elements()[16:32, 0:16, 8:20] + 1)
    ndshm.create_volume(f"precomputed://{tmp_path}/copy", like=part, exist_ok=True)


def test_volume_like_another_has_all_of_it_but_what_is_given(tmp_path: Path) -> None:
    em = ndshm.Volume(em_of(tmp_path))
    for like in (em, em.url):
        number = len(os.listdir(tmp_path))
        ndshm.create_volume(tmp_path / f"v{number}", like=like, format="precomputed")
        info = document(tmp_path / f"v{number}" / "info")
        old = document(tmp_path / "em" / "info")
        assert info == old
    # Arguments win. What is computed from an image may be labels.
    with pytest.raises(ndshm.InvalidArgument, match="type image or segmentation"):
        ndshm.create_volume(f"precomputed://{tmp_path}/labels", like=em, dtype="uint64")
    how: Any = {"dtype": "uint64", "kind": "segmentation", "encoding": "compressed_segmentation", "chunk": (8, 8, 8)}
    ndshm.create_volume(f"precomputed://{tmp_path}/labels", like=em, resolution=(8, 8, 8), origin=(1, 2, 3), **how)
    labels = document(tmp_path / "labels" / "info")
    (scale,) = labels["scales"]
    assert (labels["type"], labels["data_type"], scale["encoding"]) == ("segmentation", "uint64", "compressed_segmentation")
    assert (scale["resolution"], scale["voxel_offset"], scale["chunk_sizes"]) == ([8, 8, 8], [1, 2, 3], [[8, 8, 8]])


def test_zarr_copy_keeps_what_zarr_can_and_warns_of_the_rest(tmp_path: Path) -> None:
    part = ndshm.download(em_of(tmp_path, encoding="png"), REGION).result()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        copy = ndshm.create_volume(tmp_path / "copy.zarr", like=part)
    texts = [str(warning.message) for warning in said if issubclass(warning.category, ndshm.TransferWarning)]
    assert len(texts) == 2 and "116,205,15,0" in texts[0] and "png" in texts[1]
    assert said[0].filename == __file__
    ndshm.upload(copy, part).result()
    written = document(tmp_path / "copy.zarr" / "zarr.json")
    assert written["dimension_names"] == ["x", "y", "z", "channel"]
    assert written["attributes"]["dimension_units"] == ["4 nm", "4 nm", "40 nm", None]
    (scale,) = ndshm.info(copy).scales
    assert (scale.resolution, scale.unit, scale.chunk) == ((4.0, 4.0, 40.0), "nm", (16, 16, 8, 1))
    # A chunk of three numbers has all channels, as a region of three ranges.
    with pytest.warns(ndshm.TransferWarning):
        three = ndshm.create_volume(tmp_path / "three.zarr", like=part, chunk=(8, 8, 8))
    assert ndshm.info(three).scales[0].chunk == (8, 8, 8, 1)
    # Nothing but the offset was lost on the way.
    back = ndshm.create_volume(f"precomputed://{tmp_path}/back", like=copy, origin=(116, 205, 15), encoding="raw")
    ndshm.upload(back, ndshm.download(copy).result()).result()
    np.testing.assert_array_equal(read_raw(tmp_path / "back"), elements()[16:32, 0:16, 8:20])
    assert document(tmp_path / "back" / "info")["scales"][0]["resolution"] == [4, 4, 40]


def test_array_that_says_nothing_needs_the_rest(tmp_path: Path, name: str) -> None:
    array = ndshm.create(name, (8, 8, 8), "uint8")
    with pytest.raises(ndshm.InvalidArgument, match="give chunk="):
        ndshm.create_volume(tmp_path / "v", like=array)
    with pytest.warns(ndshm.TransferWarning, match=r"assumed to be 1 nm: give resolution="):
        ndshm.create_volume(f"precomputed://{tmp_path}/v", like=array, chunk=(8, 8, 8))
    for call in (lambda: ndshm.create_volume(tmp_path / "w"), lambda: ndshm.create_volume(tmp_path / "w", (8, 8), (8, 8))):
        with pytest.raises(ndshm.InvalidArgument, match="like="):
            call()
    with pytest.raises(ndshm.InvalidArgument, match="no volume"):
        ndshm.create_volume(tmp_path / "w", like=7)
    assert os.listdir(tmp_path) == ["v"]
