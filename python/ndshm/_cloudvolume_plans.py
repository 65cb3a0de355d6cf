"""How this package reads and writes a scale of a CloudVolume, or why CloudVolume does it. Transfers nothing."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
from typing import Any, NamedTuple

from . import _volumes
from ._errors import InvalidArgument
from ._guard import require_numpy

# The element types of each encoding of Precomputed volumes, and its numbers of channels, or None for all.
_INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
_ENCODINGS: dict[str, tuple[tuple[str, ...], tuple[int, ...] | None]] = {
    "raw": ((*_INTEGERS, "float32"), None),
    "jpeg": (("uint8",), (1, 3)),
    "png": (("uint8", "uint16"), (1, 2, 3, 4)),
    "compressed_segmentation": (("uint32", "uint64"), None),
}
# The name that an encoding has here, together with the compression of its chunks.
_WRITTEN = {
    ("raw", None): "raw",
    ("raw", "gzip"): "gzip",
    ("jpeg", None): "jpeg",
    ("png", None): "png",
    ("compressed_segmentation", None): "compressed_segmentation",
    ("compressed_segmentation", "gzip"): "compressed_segmentation_gzip",
}
# The encodings that CloudVolume and this package decode to equal elements, with the element types and numbers of
# channels. Two decoders make slightly different pictures of JPEG. CloudVolume mixes up the channels of PNG, and writes
# none of 16 bits.
_EQUALLY_DECODED: dict[str, tuple[tuple[str, ...], tuple[int, ...] | None]] = {
    "raw": _ENCODINGS["raw"],
    "png": (("uint8",), (1,)),
    "compressed_segmentation": (("uint32", "uint64"), (1,)),
}
# Suffixes of files with chunks that are compressed in a way that is not read here.
_UNREADABLE = (".br", ".zstd", ".xz", ".bz2")
# How many files of a directory are looked at to find such suffixes.
_LOOKED_AT = 64


class Plan(NamedTuple):
    """How a scale of a CloudVolume is transferred by this package."""

    url: str
    mip: int
    # The first element, in CloudVolume's coordinates and in those of this package, along x, y and z.
    theirs: tuple[int, ...]
    ours: tuple[int, ...]
    channels: int
    # Whether the volume has an axis of channels here, and whether its axes are in reversed order.
    has_channels: bool = True
    is_reversed: bool = False
    # The value of chunks that are not stored.
    missing: str | float = "error"
    # The value of elements outside of the volume.
    background: Any = 0
    encoding: str | None = None

    def region(self, bbox: Any) -> tuple[slice, ...]:
        """Return a region of x, y and z in the coordinates and axes of this package."""
        shifts = [ours - theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]
        axes = [slice(int(a) + by, int(b) + by) for a, b, by in zip(bbox.minpt, bbox.maxpt, shifts, strict=True)]
        axes += [slice(0, self.channels)] if self.has_channels else []
        return tuple(reversed(axes) if self.is_reversed else axes)

    def order(self, order: str) -> str:
        """Return the order here of elements that are to have this order with the axes x, y, z and channel."""
        if order not in ("C", "F"):
            raise InvalidArgument(f"order={order!r}: give 'C' or 'F'")
        return {"C": "F", "F": "C"}[order] if self.is_reversed else order

    def theirs_of(self, x: Any) -> Any:
        """Return a view with the axes x, y, z and channel of an array with the axes of this package."""
        x = x.T if self.is_reversed else x
        return x if self.has_channels else x[..., None]

    def ours_of(self, x: Any) -> Any:
        """Return a view with the axes of this package of an array with the axes x, y, z and channel."""
        x = x if self.has_channels else x[..., 0]
        return x.T if self.is_reversed else x


class _Parts(NamedTuple):
    """The parts of a CloudVolume that decide how it is read."""

    meta: Any
    image: Any
    config: Any
    cache: Any

    @property
    def cloudpath(self) -> str:
        return str(self.meta.cloudpath)


def plan_of(vol: Any, mip: int, write: bool) -> Plan | str:
    """Return how a scale is transferred by this package, or why it is left to CloudVolume. Nothing is transferred here."""
    if type(vol) is not frontend():
        return "only volumes of the class CloudVolumePrecomputed are transferred, and not graphene"
    return _plan(vol, mip, write)


def cached_plan_of(image: Any, mip: int, is_known: bool = False) -> Plan | str:
    """As `plan_of`, for the reads of an image source through a cache: only what CloudVolume reads as the same elements.

    `is_known` says that the stored description was looked at before, and that the one in memory is still the same.
    """
    if type(image) is not image_source() or type(image.meta) is not cloudvolume("datasource.precomputed").PrecomputedMetadata:
        return "only Precomputed volumes are read through the cache, and not graphene"
    meta = image.meta
    if not 0 <= mip < len(meta.scales):
        return f"the volume has no scale {mip}"
    if meta.use_https:
        return "the volume has `use_https`"
    encoding = meta.encoding(mip)
    dtypes, channels = _EQUALLY_DECODED.get(encoding, ((), None))
    if meta.data_type not in dtypes or (channels is not None and meta.num_channels not in channels):
        return f"CloudVolume may decode {meta.data_type} with {meta.num_channels} channels in the encoding {encoding!r} to other elements"
    if len(meta.scale(mip)["chunk_sizes"]) > 1:
        return "the scale has several chunk sizes"
    return _plan(_Parts(meta, image, image.config, image.cache), mip, False, is_known)


def _plan(vol: Any, mip: int, write: bool, is_known: bool = False) -> Plan | str:
    path, image, config = vol.meta.path, vol.image, vol.config
    if path.format not in ("precomputed", "zarr", "zarr2", "zarr3", "n5"):
        return f"volumes of the format {path.format!r} are not supported"
    url = _volumes.url_of(vol)
    scheme = path.protocol
    # One with "://" in the middle is a server that CloudVolume has a name for.
    if scheme not in (("file",) if write else ("file", "http", "https", "s3")) or url.count("://") > (1 if scheme == "file" else 2):
        return f"volumes at {scheme}:// are not {'written' if write else 'read'}"
    if config.secrets:
        return "the volume has `secrets`"
    if scheme == "s3" and _has_secret_file(path.bucket):
        return "CloudVolume has a file of secrets for the bucket"
    if vol.cache.enabled:
        return "the volume has a cache"
    if getattr(image, "lru", None) is not None and image.lru.size > 0:
        return "the volume has an LRU"
    if config.green:
        return "the volume uses green threads, which would all wait"
    if write and image.readonly:
        return "the volume is read-only"
    if path.format == "precomputed":
        return _plan_precomputed(vol, mip, write, url, is_known)
    return _plan_other(vol, mip, write, url)


def _plan_precomputed(vol: Any, mip: int, write: bool, url: str, is_known: bool) -> Plan | str:
    meta, image, config = vol.meta, vol.image, vol.config
    encoding, encoded = meta.encoding(mip), None
    dtypes, channels = _ENCODINGS.get(encoding, ((), None))
    if meta.data_type not in dtypes or (channels is not None and meta.num_channels not in channels):
        return f"{meta.data_type} with {meta.num_channels} channels in the encoding {encoding!r} is not supported"
    if meta.rois is not None:
        return "the volume has regions of interest"
    if not (is_known or _is_stored(meta, mip)):
        return "the description of the scale is not stored, or was changed since"
    if not is_known and _is_packed_otherwise(vol, mip):
        return "stored chunks have a compression other than gzip"
    if write:
        if mip in meta.locked_mips():
            return "the scale is locked"
        if image.is_sharded(mip) or len(meta.scale(mip)["chunk_sizes"]) > 1:
            return "scales with shards, or with several chunk sizes, are not written"
        if config.compress_level is not None:
            return "the volume has a `compress_level`"
        if image.overwrite_partial_chunks:
            return "the volume has `overwrite_partial_chunks`"
        if image.delete_black_uploads and image.background_color != 0:
            return "`delete_black_uploads` with a background other than 0 is not supported"
        compression = cloudvolume("datasource.precomputed.common").should_compress(encoding, config.compress, vol.cache)
        encoded = _WRITTEN.get((encoding, compression or None))
        if encoded is None:
            return f"chunks of the encoding {encoding!r} are not written with the compression {compression!r}"
    # CloudVolume converts the background in the same way.
    background = (float if meta.data_type == "float32" else int)(image.background_color)
    first = tuple(map(int, meta.voxel_offset(mip)))
    return Plan(
        url,
        mip,
        theirs=first,
        ours=first,
        channels=meta.num_channels,
        missing=background if image.fill_missing else "error",
        background=background,
        encoding=encoded,
    )


def _plan_other(vol: Any, mip: int, write: bool, url: str) -> Plan | str:
    """As `_plan`, for Zarr and N5."""
    meta = vol.meta
    if write and meta.path.format == "n5":
        return "N5 volumes are not written"
    scales = _volumes.info(url).scales
    if mip >= len(scales):
        return f"scale {mip} of the volume is not found"
    scale = scales[mip]
    # Plain arrays do not name their axes. CloudVolume then takes the last one for x.
    names = tuple(name.lower() for name in scale.axes) or ("c", "z", "y", "x")[-len(scale.shape) :]
    is_reversed = names in (("z", "y", "x"), ("c", "z", "y", "x"), ("channel", "z", "y", "x"))
    if not is_reversed and names not in (("x", "y", "z"), ("x", "y", "z", "c"), ("x", "y", "z", "channel")):
        return f"the axes {', '.join(names)} are not x, y, z and channel, in this order or reversed"
    has_channels = len(scale.shape) == 4
    shape, origin = (scale.shape[::-1], scale.origin[::-1]) if is_reversed else (scale.shape, scale.origin)
    known = (*map(int, meta.volume_size(mip)), meta.num_channels)
    if (shape if has_channels else (*shape, 1)) != known or require_numpy("CloudVolume").dtype(scale.dtype) != meta.dtype:
        return "the description of the scale is not stored, or CloudVolume reads it in another way"
    background = meta.background_color(mip) if hasattr(meta, "background_color") else 0
    return Plan(
        url,
        mip,
        theirs=tuple(map(int, meta.voxel_offset(mip)))[:3],
        ours=origin[:3],
        channels=meta.num_channels,
        has_channels=has_channels,
        is_reversed=is_reversed,
        missing="fill" if vol.image.fill_missing else "error",
        background=background or 0,
    )


def _is_stored(meta: Any, mip: int) -> bool:
    """Return whether the description that CloudVolume has in memory is the stored one, for this scale."""
    try:
        stored = meta.fetch_info()
    except cloudvolume("exceptions").InfoUnavailableError:
        return False
    return bool(json.loads(description_of(stored, mip)) == json.loads(description_of(meta.info, mip)))


def description_of(info: Any, mip: int) -> str:
    """Return what a description says about a scale."""
    scales = info.get("scales", ())
    text = cloudvolume("lib").jsonify([info.get(key) for key in ("data_type", "num_channels", "type")] + list(scales[mip : mip + 1]))
    return str(text)


def has_certain_files(plan: Plan, image: Any, region: tuple[slice, ...]) -> bool:
    """Return whether CloudVolume and this package read the same file for each chunk of a region in the volume.

    CloudVolume leaves the old file where it writes a chunk with another compression. Of several files of a chunk it
    reads the one with the suffix that it has found last.
    """
    meta = image.meta
    if meta.path.protocol != "file" or image.is_sharded(plan.mip):
        return True
    directory = os.path.join(plan.url.partition("://")[2], meta.key(plan.mip))
    axes = list[list[str]]()
    for axis, first, last, chunk in zip(region, plan.ours, meta.bounds(plan.mip).maxpt, meta.chunk_size(plan.mip), strict=False):
        first, last, chunk = int(first), int(last), int(chunk)
        starts = range(axis.start - (axis.start - first) % chunk, axis.stop, chunk)
        axes.append([f"{start}-{min(start + chunk, last)}" for start in starts])
    for names in itertools.product(*axes):
        path = os.path.join(directory, "_".join(names))
        if any(os.access(path + suffix, os.F_OK) for suffix in _UNREADABLE):
            return False
        is_plain, is_packed = os.access(path, os.F_OK), os.access(path + ".gz", os.F_OK)
        if is_plain and is_packed:
            return False
        # This package also knows the layout with a folder for each axis.
        if not (is_plain or is_packed) and os.access(os.path.join(directory, names[0]), os.F_OK):
            return False
    return True


def _is_packed_otherwise(vol: Any, mip: int) -> bool:
    """Return whether one of the first files of the scale is compressed in a way that is not read here."""
    if vol.meta.path.protocol != "file":
        return False
    directory = os.path.join(_volumes.url_of(vol).partition("://")[2], vol.meta.key(mip))
    try:
        with os.scandir(directory) as files:
            return any(file.name.endswith(_UNREADABLE) for file in itertools.islice(files, _LOOKED_AT))
    except FileNotFoundError:
        return False


def _has_secret_file(bucket: str) -> bool:
    path = importlib.import_module("cloudfiles.secrets").secretpath
    return any(os.path.exists(path(name)) for name in ("aws-secret.json", f"{bucket}-aws-secret.json"))


def frontend() -> Any:
    """Return CloudVolume's class of volumes."""
    return cloudvolume("frontends.precomputed").CloudVolumePrecomputed


def image_source() -> Any:
    """Return CloudVolume's class that reads the chunks of Precomputed and graphene volumes."""
    return cloudvolume("datasource.precomputed.image").PrecomputedImageSource


@functools.cache
def cloudvolume(module: str) -> Any:
    """Import a module of CloudVolume, which is installed by the program that calls this one."""
    return importlib.import_module(f"cloudvolume.{module}")
