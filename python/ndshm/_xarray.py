"""The engine of xarray: volumes as lazy labelled arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy
import xarray
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core import indexing

from ._errors import InvalidArgument
from ._volume_arrays import VolumeArray
from ._volumes import Scale, Volume, info

# The name of the variable with the elements.
_NAME = "volume"

# The formats that no other engine of xarray reads.
_OURS = ("precomputed://", "n5://")

# Axes with steps that are no lengths, whatever the unit of the others.
_NO_LENGTHS = ("c", "channel", "t", "time")


class VolumeBackendEntrypoint(BackendEntrypoint):
    """Opens volumes: ``xarray.open_dataarray(url, engine="ndshm")``."""

    description = "Open Zarr, Neuroglancer Precomputed and N5 volumes"
    open_dataset_parameters = ("filename_or_obj", "mip", "drop_variables")

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether this is an open volume, or a URL with a format that only this engine reads."""
        if isinstance(filename_or_obj, str):
            return filename_or_obj.startswith(_OURS)
        return isinstance(filename_or_obj, VolumeArray)

    def open_dataset(
        self, filename_or_obj: Any, *, mip: int | None = None, drop_variables: str | Iterable[str] | None = None
    ) -> xarray.Dataset:
        """Open one scale of a volume. Its elements are read when they are needed.

        Parameters
        ----------
        filename_or_obj
            A path or URL as for `Volume`, or an open `Volume` or `VolumeView`, which says more: what is missing, the order of the axes.
        mip
            The number of the scale. By default 0, or that of the open volume.
        drop_variables
            Names of variables and coordinates that the dataset is to lack.
        """
        if not isinstance(filename_or_obj, VolumeArray):
            array: VolumeArray = Volume(filename_or_obj, mip or 0)
        elif mip is None:
            array = filename_or_obj
        else:
            raise InvalidArgument(f"{filename_or_obj!r} is open and has its scale: leave out mip, or give the URL")
        volume, facts, axes = array._seen()
        scale = info(volume).scales[volume.mip]
        elements = xarray.Variable(array.dims, _LazyArray(_Elements(array)), _attributes(array, volume, scale))
        elements.encoding["preferred_chunks"] = dict(zip(array.dims, array.chunks, strict=True))
        coordinates = {facts.dims[axis]: _coordinate(scale, axis, facts.dims[axis]) for axis in axes}
        dataset = xarray.Dataset({_NAME: elements}, coordinates)
        dataset.encoding["source"] = volume.url  # otherwise xarray takes the URL with its password
        dropped = [drop_variables] if isinstance(drop_variables, str) else [*(drop_variables or ())]
        return dataset.drop_vars(dropped, errors="ignore")


def _attributes(array: VolumeArray, volume: Volume, scale: Scale) -> dict[str, Any]:
    """Return what a file can keep. The fill value has no name that xarray knows: integers would become floats by it."""
    fill = array.fill_value
    known = {"kind": scale.kind, "fill_value": None if fill is None else fill.item()}
    return {"url": volume.url, "mip": volume.mip, "format": scale.description, **{name: x for name, x in known.items() if x is not None}}


def _coordinate(scale: Scale, axis: int, dim: str) -> xarray.Variable:
    """Return where the elements along an axis are: in the volume's unit, or as integers if it has no unit for the axis."""
    x = numpy.arange(scale.origin[axis], scale.origin[axis] + scale.shape[axis])
    size = scale.resolution[axis] if axis < len(scale.resolution) else 0
    attributes: dict[str, Any] = {"resolution": size} if size else {}
    # Several units are no unit.
    if not size or not scale.unit or "," in scale.unit or dim.lower() in _NO_LENGTHS:
        return xarray.Variable(dim, x, attributes)
    return xarray.Variable(dim, x * size, {"units": scale.unit, **attributes})


class _Elements(BackendArray):
    """The elements of a volume, of which xarray asks for integers and slices only."""

    def __init__(self, array: VolumeArray) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self.array.__getitem__)


class _LazyArray(indexing.LazilyIndexedArray):
    """Elements and an index. Other axes stay a view of the volume: xarray's own class would look up each element by itself."""

    def transpose(self, order: Iterable[int]) -> Any:
        own: Any = self  # xarray's types say less
        key = own.key.tuple
        kept = [axis for axis, step in enumerate(key) if isinstance(step, slice | numpy.ndarray)]
        axes = [kept[axis] for axis in order] + [axis for axis in range(len(key)) if axis not in kept]
        return _LazyArray(_Elements(own.array.array.transposed(axes)), type(own.key)(tuple(key[axis] for axis in axes)))
