"""The engine of xarray: names, coordinates and attributes, what is read and when, dask, pickles."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import dask
import matplotlib
import numpy as np
import pytest
import xarray
import xarray.core.indexing

import ndshm
from servers import serving
from test_volumes import CHUNK, SHAPE, elements, volume_of

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

ORIGIN, RESOLUTION = (100, -7, 3), (4, 4, 40)


def precomputed(path: Path, **how: Any) -> tuple[Any, str]:
    """Return elements, and the URL of a volume of them."""
    x = elements()
    volume_of(path / "em", x, format="precomputed", origin=ORIGIN, resolution=RESOLUTION, **how)
    return x, f"precomputed://{path}/em"


def opened(volume: Any, **how: Any) -> xarray.DataArray:
    return xarray.open_dataarray(volume, engine="ndshm", **how)


def ome_zarr(path: Path) -> Path:
    """A pyramid of two scales, with channels and times."""
    for mip in (0, 1):
        volume = ndshm.create_volume(path / str(mip), (2, 3, *(length >> mip for length in (16, 32))), (1, 1, 16, 16), "uint16")
        volume[...] = mip + 1
    axes = [{"name": "t", "type": "time", "unit": "second"}, {"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    datasets = [
        {"path": str(mip), "coordinateTransformations": [{"type": "scale", "scale": [0.5, 1, 0.25 * 2**mip, 0.25 * 2**mip]}]} for mip in (0, 1)
    ]
    multiscales = {"ome": {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}}
    (path / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": multiscales}))
    return path


def test_axes_have_names_and_coordinates_in_nanometres(tmp_path: Path) -> None:
    x, url = precomputed(tmp_path)
    em = opened(url)
    assert (em.name, em.dims, em.shape, em.dtype) == ("volume", ("x", "y", "z", "channel"), (*SHAPE, 1), x.dtype)
    for axis, dim in enumerate("xyz"):
        assert em[dim].attrs == {"units": "nm", "resolution": RESOLUTION[axis]}
        np.testing.assert_array_equal(em[dim], (ORIGIN[axis] + np.arange(SHAPE[axis])) * RESOLUTION[axis])
    assert em.channel.values.tolist() == [0] and not em.channel.attrs
    assert em.attrs == {"url": url, "mip": 0, "format": "Precomputed, raw", "kind": "image"}
    np.testing.assert_array_equal(em, x[..., None])
    part = em.sel(x=slice(408, 420), z=200).isel(channel=0)
    np.testing.assert_array_equal(part, x[2:6, :, 2])
    assert em.sel(z=217, method="nearest").z == 200


def test_axes_without_unit_count_from_the_first_element_of_the_volume(tmp_path: Path) -> None:
    path = ome_zarr(tmp_path)
    for mip in (0, 1):
        level = opened(path, mip=mip)
        assert (level.dims, level.attrs["mip"]) == (("t", "c", "y", "x"), mip)
        np.testing.assert_array_equal(level.x, np.arange(32 >> mip) * 0.25 * 2**mip)
        assert level.y.attrs == {"units": "µm", "resolution": 0.25 * 2**mip}
        assert (level.t.attrs, level.c.attrs) == ({"resolution": 0.5}, {"resolution": 1})
        assert (level.t.values.tolist(), level.c.values.tolist()) == ([0, 1], [0, 1, 2])
        assert (level == mip + 1).all()
    bare = opened(volume_of(tmp_path / "v", elements()))
    assert bare.dims == ("0", "1", "2") and bare["2"].dtype.kind == "i" and not bare["2"].attrs
    assert bare["2"].values.tolist() == list(range(40))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "float64", "complex64", "bfloat16"])
def test_fill_value_masks_nothing(tmp_path: Path, dtype: str) -> None:
    volume = ndshm.create_volume(tmp_path / "v", SHAPE, CHUNK, dtype)
    volume[:8] = 3
    em = opened(tmp_path / "v")
    assert em.dtype == volume.dtype and em.attrs["fill_value"] == 0 and "_FillValue" not in {**em.attrs, **em.encoding}
    np.testing.assert_array_equal(em.values, volume[...])


# What `isel` selects.
SELECTIONS: list[dict[str, Any]] = [
    {},
    {"z": 5},
    {"x": -1, "z": slice(3, 30)},
    {"x": slice(None, None, -3), "y": slice(20, 3, -1)},
    {"y": slice(2, 29, 4), "z": slice(4, 4)},
    {"x": [0, 7, 3], "z": 2},
    {"x": [1, 19], "y": np.array([29, 0, 0]), "z": slice(1, None, 2)},
    {"x": xarray.DataArray([3, 4, 9], dims="point"), "y": xarray.DataArray([0, 5, 29], dims="point")},
    {"x": 3, "y": 4, "z": 5},
]


@pytest.mark.parametrize("dims", ["xyz", "zyx", "yxz"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_selections_in_every_order_of_axes_are_numpys(tmp_path: Path, selection: dict[str, Any], dims: str) -> None:
    x, url = precomputed(tmp_path)
    want = xarray.DataArray(x, dims=list("xyz"))
    em = opened(url).squeeze("channel", drop=True).drop_vars(list("xyz"))
    want, em = want.transpose(*dims), em.transpose(*dims)
    xarray.testing.assert_equal(em.isel(selection), want.isel(selection))
    # One selection after the other, and other axes between them.
    if all(isinstance(step, slice) for step in selection.values()):
        xarray.testing.assert_equal(em.isel(x=slice(2, None)).T.isel(selection).T, want.isel(x=slice(2, None)).T.isel(selection).T)


def test_other_axes_are_read_as_a_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, url = precomputed(tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("each element would be looked up by itself")

    monkeypatch.setattr(xarray.core.indexing.LazilyVectorizedIndexedArray, "__init__", refuse)
    em = opened(url).isel(channel=0, x=[3, 9, 4]).transpose("z", "x", "y")[::2].T
    np.testing.assert_array_equal(em, x[[3, 9, 4], :, ::2].transpose(1, 0, 2))


def test_only_chunks_of_the_selection_are_read(tmp_path: Path) -> None:
    x, _ = precomputed(tmp_path)
    with serving(tmp_path) as server:
        em = opened(f"precomputed://{server.url}/em")
        plane = em.squeeze("channel").transpose("z", "y", "x").sel(z=slice(120, 160)).isel(z=0, x=slice(8, 12))
        repr(em), repr(plane)
        count = len(server.asked)
        np.testing.assert_array_equal(plane, x[8:12, :, 0].T)
        assert sorted(path.rpartition("/")[2] for path in server.asked[count:]) == ["108-116_-7-9_3-19", "108-116_9-23_3-19"]


def test_url_is_kept_without_password_and_query(tmp_path: Path) -> None:
    precomputed(tmp_path)
    with serving(tmp_path) as server:
        dataset = xarray.open_dataset(f"precomputed://{server.url.replace('://', '://me:secret@')}/em?key=hidden")
        shown = f"{dataset!r} {dataset.volume!r} {dataset.encoding} {dataset.volume.attrs} {dataset.volume.encoding}"
        assert server.url.removeprefix("http://") in shown and "secret" not in shown and "hidden" not in shown
        assert dataset.volume.mean() > 0


@pytest.mark.parametrize(("chunks", "want"), [({}, CHUNK), ({"z": 32}, (*CHUNK[:2], 32)), ("auto", None)])
def test_dask_takes_the_chunks_of_the_volume(tmp_path: Path, chunks: Any, want: tuple[int, ...] | None) -> None:
    x, url = precomputed(tmp_path)
    with dask.config.set({"array.chunk-size": "8KiB"}):
        em = opened(url, chunks=chunks).squeeze("channel")
    assert want is None or tuple(em.chunksizes[dim][0] for dim in "xyz") == want
    assert all(length % CHUNK[axis] == 0 for axis, dim in enumerate("xyz") for length in em.chunksizes[dim][:-1])
    assert (em.astype("u4") + 1).sum().compute(scheduler="threads") == x.sum() + x.size


def test_worker_processes_read_what_was_pickled(tmp_path: Path) -> None:
    x, url = precomputed(tmp_path)
    em = opened(url).squeeze("channel").transpose("z", "y", "x")
    same = pickle.loads(pickle.dumps(em))
    np.testing.assert_array_equal(same, x.T)
    found = opened(url, chunks={}).squeeze("channel").max("x").compute(scheduler="processes", num_workers=2)
    np.testing.assert_array_equal(found, x.max(0))


def test_engine_is_guessed_for_its_own_formats_only(tmp_path: Path) -> None:
    x, url = precomputed(tmp_path)
    volume = ndshm.Volume(url)
    np.testing.assert_array_equal(xarray.open_dataarray(url), x[..., None])  # not with netCDF4, which takes every URL
    np.testing.assert_array_equal(xarray.open_dataarray(volume), x[..., None])
    guess = xarray.backends.list_engines()["ndshm"].guess_can_open
    assert guess(url) and guess("n5://s3://bucket/em") and guess(volume) and guess(volume.T)
    for other in (tmp_path / "em", f"{tmp_path}/em", "em.zarr", Path("em.zarr"), "https://host/em.zarr", "zarr://em.zarr", b"precomputed://", 3):
        assert not guess(other)


def test_open_volume_says_what_is_missing_and_the_order_of_axes(tmp_path: Path) -> None:
    ndshm.create_volume(tmp_path / "em", SHAPE, CHUNK, "uint16", format="precomputed", resolution=RESOLUTION)
    volume = ndshm.Volume(tmp_path / "em", missing=7)
    em = opened(volume.transposed("zyx"))
    assert em.dims == ("z", "y", "x") and em.z[2] == 80 and (em == 7).all()
    assert em.encoding["preferred_chunks"] == {"x": 8, "y": 16, "z": 16}
    with pytest.raises(ndshm.MissingChunk):
        opened(tmp_path / "em").load()
    with pytest.raises(ndshm.InvalidArgument, match="leave out mip"):
        opened(volume, mip=0)
    with pytest.raises(ndshm.NotFound):
        opened(tmp_path / "none")


def test_variables_are_dropped(tmp_path: Path) -> None:
    _, url = precomputed(tmp_path)
    assert set(opened(url, drop_variables=["x", "channel", "none"]).coords) == {"y", "z"}
    assert set(opened(url, drop_variables="y").coords) == {"x", "z", "channel"}
    assert not xarray.open_dataset(url, drop_variables="volume").data_vars


def test_plot_of_a_plane_names_axes_and_units(tmp_path: Path) -> None:
    x, url = precomputed(tmp_path)
    figure, axes = pyplot.subplots()
    try:
        picture = opened(ndshm.Volume(url).transposed("zyx")).isel(z=4).plot.imshow(ax=axes)
        np.testing.assert_array_equal(picture.get_array(), x[:, :, 4].T)
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("x [nm]", "y [nm]")
    finally:
        pyplot.close(figure)


@pytest.mark.skipif(not os.environ.get("NDSHM_TEST_ALL"), reason="needs scripts/test-python --all")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("labelled", [False, True])
def test_napari_reads_the_chunks_of_the_plane_that_it_shows(tmp_path: Path, labelled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAPARI_CONFIG", str(tmp_path / "napari.yaml"))
    from napari.components import ViewerModel

    x, _ = precomputed(tmp_path)
    with serving(tmp_path) as server:
        view = ndshm.Volume(f"precomputed://{server.url}/em").transposed("zyx")
        viewer = ViewerModel()
        layer = viewer.add_image(opened(view) if labelled else view, contrast_limits=(0, 100))
        if labelled:
            assert layer.axis_labels == ("z", "y", "x") and {str(unit) for unit in layer.units} == {"nanometer"}
            assert (layer.scale.tolist(), layer.translate.tolist()) == ([40, 4, 4], [120, -28, 400])
        for z in (1, 38):
            count = len(server.asked)
            viewer.dims.set_point(0, (ORIGIN[2] + z) * RESOLUTION[2] if labelled else z)
            assert viewer.dims.displayed == (1, 2)
            begin = ORIGIN[2] + z // CHUNK[2] * CHUNK[2]
            assert {path.rpartition("_")[2] for path in server.asked[count:]} == {f"{begin}-{min(begin + CHUNK[2], ORIGIN[2] + SHAPE[2])}"}
            point = ((ORIGIN[2] + z) * 40, (ORIGIN[1] + 9) * 4, (ORIGIN[0] + 7) * 4) if labelled else (z, 9, 7)
            assert layer.get_value(point, world=True) == x[7, 9, z]
