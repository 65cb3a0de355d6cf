"""The engine of this package for programs that use CloudVolume: one line changes.

>>> import ndshm.cloudvolume
>>> ndshm.cloudvolume.install()  # doctest: +SKIP

From then on ``cloudvolume.sharedmemory`` has the functions of `ndshm.sharedmemory`, and four methods of volumes transfer with this package:
``download_to_shared_memory``, ``download_to_file``, ``upload_from_shared_memory`` and ``upload_from_file``. What this package cannot do,
CloudVolume's own method does; `why_not` decides it and gives the reason.

``install(cache="8GiB")`` also leads CloudVolume's own reads through a cache of chunks, which all processes of this
user share.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from . import _core, _volumes, sharedmemory
from ._array import Array
from ._caches import ChunkCache
from ._cloudvolume_plans import Plan, cached_plan_of, cloudvolume, frontend, image_source, plan_of
from ._cloudvolume_reads import CachedReads
from ._dtypes import name_of
from ._errors import InvalidArgument, MissingChunk, NoSpace, Unsupported
from ._guard import require_numpy
from ._share import share_zeros

__all__ = ["download", "install", "uninstall", "upload", "why_not"]

_FUNCTIONS = ("ndarray", "ndarray_fs", "ndarray_shm", "allocate_shm_file", "unlink", "unlink_fs", "unlink_shm")

# What `install` has replaced: object, attribute and original value.
_replaced: list[tuple[Any, str, Any]] = []


def install(cache: ChunkCache | int | str | None = None) -> None:
    """Replace functions of ``cloudvolume.sharedmemory`` and four methods of volumes, in this process.

    Functions that were imported before with ``from cloudvolume.sharedmemory import ...`` are not replaced. Processes that are spawned later do
    not inherit the replacement: call `install` there too. CloudVolume's own worker processes do not need it.

    Parameters
    ----------
    cache
        A `ChunkCache`, or the size of this user's own one, such as ``"8GiB"``. CloudVolume's own reads of Precomputed
        volumes, as ``vol[...]`` and ``vol.download(...)``, then go through it: each chunk is decoded once per machine.
        The results are the same, and so are the exceptions. At each read, chunks are compared with the stored objects,
        so that writes are seen. What could differ, CloudVolume reads itself; ``why_not(vol, cached=True)`` gives the
        reason. None leaves these reads as they are.

    Raises
    ------
    Mismatch, NoSpace, PermissionDenied, InvalidArgument
        The cache cannot be opened or made, as for `ChunkCache`. Nothing is replaced.
    """
    if cache is not None and not isinstance(cache, ChunkCache):
        cache = ChunkCache(nbytes=cache)
    module = cloudvolume("sharedmemory")
    if not _replaced:
        for name in _FUNCTIONS:
            _replace(module, name, getattr(sharedmemory, name))
        for name, method in _METHODS.items():
            _replace(frontend(), name, method)
        sharedmemory.adopt(module)
    if cache is not None:
        source = image_source()
        original = _original("download", source)
        if original is None:
            original = source.download
            _replaced.append((source, "download", original))
        source.download = CachedReads(cache).instead_of(original)


def uninstall() -> None:
    """Take back what `install` has done. Arrays that exist stay as they are."""
    while _replaced:
        setattr(*_replaced.pop())
    sharedmemory.adopt(None)


def download(
    vol: Any,
    bbox: Any,
    location: str | None = None,
    order: str = "F",
    *,
    path: str | os.PathLike[str] | None = None,
    mip: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Any:
    """Download a region of a ``CloudVolume`` into shared memory.

    The settings of the volume apply: ``mip``, ``bounded``, ``autocrop``, ``fill_missing``, ``background_color``, ``parallel``, ``progress``.

    Parameters
    ----------
    vol
        The volume.
    bbox
        The region: a ``Bbox``, or slices as in ``vol[...]``.
    location
        The name that the array gets once all of it is there. An array that has the name loses it; processes that have it attached keep its
        memory. Without a name and a path, the memory is freed with the result.
    order
        The order of the elements in memory.
    path
        Instead of a name: the path of a file.
    mip
        The number of the scale. By default that of the volume.
    workers
        The number of threads that decode. By default ``vol.parallel``.
    progress
        Show a progress bar. By default ``vol.progress``.

    Returns
    -------
    cloudvolume.volumecutout.VolumeCutout
        The array, with the axes x, y, z and channel. Its ``handle`` is the `Array`. (If `bbox` has steps or selects channels, the result is a
        part of the array and has no handle.)

    Raises
    ------
    Unsupported
        This package cannot read the volume. The text has the reason, which is that of `why_not`.
    cloudvolume.exceptions.OutOfBoundsError, cloudvolume.exceptions.EmptyVolumeException
        As by CloudVolume: the region is not in the volume, or a chunk is not stored.
    SharedMemoryAllocationError
        There is not enough memory.
    """
    if location is not None and path is not None:
        raise InvalidArgument("give either location or path")
    plan = plan_of(vol, _mip(vol, mip), False)
    if isinstance(plan, str):
        raise Unsupported(f"{plan}: use the methods of CloudVolume")
    target = _Target.named(location) if path is None else _Target.file(path)
    return _fetch(vol, plan, bbox, target, order, workers, progress)


def upload(
    vol: Any,
    location: str | Any,
    bbox: Any,
    order: str = "F",
    cutout_bbox: Any = None,
    *,
    path: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> _volumes.UploadReport | None:
    """Upload an array in shared memory into a region of a ``CloudVolume``.

    The settings of the volume apply: those of `download`, and ``non_aligned_writes``, ``delete_black_uploads`` and ``compress``. If stored
    chunks are compressed by gzip, or are not, new ones are like them, whatever ``compress`` says.

    Parameters
    ----------
    vol
        The volume.
    location
        The name of the array, or a numpy array with the axes x, y, z and channel.
    bbox
        The region of the array: a ``Bbox``, or slices.
    order
        The order of the array's elements. It is not used for a numpy array.
    cutout_bbox
        Upload only this part of the region.
    path
        The path of a file with the elements. `location` is then None.
    workers, progress
        As for `download`.

    Returns
    -------
    UploadReport | None
        What was done. None if no element of the region is in the volume, and ``autocrop`` is set.

    Raises
    ------
    Unsupported
        This package cannot write the volume.
    SharedMemoryReadError
        There is no such array, or it has another size.
    cloudvolume.exceptions.AlignmentError
        As by CloudVolume: the region cuts through chunks, and ``non_aligned_writes`` is not set.
    cloudvolume.exceptions.EmptyVolumeException
        As by CloudVolume: a chunk that the region cuts through is not stored, and ``fill_missing`` is not set.
    """
    if (location is None) == (path is None):
        raise InvalidArgument("give either location or path")
    plan = plan_of(vol, vol.mip, True)
    if isinstance(plan, str):
        raise Unsupported(f"{plan}: use the methods of CloudVolume")
    x: Any = _File(path) if path is not None else location
    return _store(vol, plan, x, bbox, order, cutout_bbox, workers, progress)


def why_not(vol: Any, mip: int | None = None, *, write: bool = False, cached: bool = False) -> str | None:
    """Return why the methods that `install` replaces leave this volume to CloudVolume, or None if they transfer it with this package.

    With `cached`, it is about CloudVolume's own reads, which ``install(cache=...)`` leads through a cache.
    """
    if cached and write:
        raise InvalidArgument("only reads go through the cache: give either write or cached")
    if cached:
        plan: Plan | str = cached_plan_of(getattr(vol, "image", None), _mip(vol, mip))
        return plan if isinstance(plan, str) else None
    plan = plan_of(vol, _mip(vol, mip), write)
    return plan if isinstance(plan, str) else None


def _download_to_shared_memory(self: Any, slices: Any, location: str | None = None, mip: int | None = None) -> Any:
    """Download a region into shared memory, with `ndshm`. The location is ``self.image.shared_memory_id`` by default."""
    plan = plan_of(self, _mip(self, mip), False)
    if isinstance(plan, str):
        return _original("download_to_shared_memory")(self, slices, location, mip)
    target = _Target.named(self.image.shared_memory_id if location is None else location)
    return _fetch(self, plan, slices, target, "F")


def _download_to_file(self: Any, path: str, bbox: Any, mip: int | None = None) -> Any:
    """Download a region into a file, with `ndshm`."""
    plan = plan_of(self, _mip(self, mip), False)
    if isinstance(plan, str):
        return _original("download_to_file")(self, path, bbox, mip)
    return _fetch(self, plan, bbox, _Target.file(path), "F")


def _upload_from_shared_memory(self: Any, location: str, bbox: Any, order: str = "F", cutout_bbox: Any = None) -> None:
    """Upload an array in shared memory, or a part of it, with `ndshm`."""
    plan = plan_of(self, self.mip, True)
    if isinstance(plan, str):
        return _original("upload_from_shared_memory")(self, location, bbox, order, cutout_bbox)  # type: ignore[no-any-return]
    _store(self, plan, location, bbox, order, cutout_bbox)
    return None


def _upload_from_file(self: Any, location: str, bbox: Any, order: str = "F", cutout_bbox: Any = None) -> None:
    """Upload the elements in a file, or a part of them, with `ndshm`."""
    plan = plan_of(self, self.mip, True)
    if isinstance(plan, str):
        return _original("upload_from_file")(self, location, bbox, order, cutout_bbox)  # type: ignore[no-any-return]
    _store(self, plan, _File(location), bbox, order, cutout_bbox)
    return None


_METHODS = {
    "download_to_shared_memory": _download_to_shared_memory,
    "download_to_file": _download_to_file,
    "upload_from_shared_memory": _upload_from_shared_memory,
    "upload_from_file": _upload_from_file,
}


class _Target(NamedTuple):
    """Where a downloaded array is put: a name in the default directory, a path, or neither."""

    name: str | None = None
    path: str | None = None
    is_file: bool = False

    @staticmethod
    def named(location: str | None) -> _Target:
        if location is None:
            return _Target()
        place = sharedmemory.place(location)
        is_emulated, emulated = _core.emulation()
        default = os.fspath(emulated) if is_emulated else sharedmemory.SHM_DIRECTORY
        if os.path.realpath(place[0]) == os.path.realpath(default):
            return _Target(name=place[1])
        return _Target(path=os.path.join(*place))

    @staticmethod
    def file(path: str | os.PathLike[str]) -> _Target:
        return _Target(path=cloudvolume("lib").toabs(os.fspath(path)), is_file=True)


class _File:
    """The elements of an upload are in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: str = cloudvolume("lib").toabs(os.fspath(path))


def _mip(vol: Any, mip: Any) -> int:
    """Return the number of a scale, which CloudVolume also lets callers name by its resolution."""
    return int(vol.mip if mip is None else vol.meta.to_mip(mip))


def _fetch(
    vol: Any, plan: Plan, region: Any, target: _Target, order: str, workers: int | None = None, progress: bool | None = None
) -> Any:
    """Download a region, and return it as CloudVolume's methods do."""
    bbox, steps, channels = _requested(vol, plan.mip, region)
    inside = cloudvolume("lib").Bbox.intersection(bbox, vol.meta.bounds(plan.mip))
    permissions = _permissions(target.path) if target.is_file else None
    try:
        if inside == bbox:
            array = _downloaded(vol, plan, bbox, target, order, workers, progress)
        else:
            part = None if inside.subvoxel() else _downloaded(vol, plan, inside, _Target(), order, workers, progress)
            array = _surrounded(vol, plan, bbox, inside, part, target, order)
    except MissingChunk as error:
        raise cloudvolume("exceptions").EmptyVolumeException(str(error)) from error
    except NoSpace as error:
        raise sharedmemory.allocation_error(error) from error
    if permissions is not None and target.path is not None:
        os.chmod(target.path, permissions)
    cutout = _cutout(vol, plan, bbox, array)
    if steps == [1, 1, 1] and channels in (slice(0, plan.channels), slice(0, plan.channels, 1)):
        return cutout
    return cutout[:: steps[0], :: steps[1], :: steps[2], channels]


def _requested(vol: Any, mip: int, region: Any) -> tuple[Any, list[int], slice]:
    """Return the region of x, y and z that is asked for, its steps, and the channels."""
    meta, lib = vol.meta, cloudvolume("lib")
    if isinstance(region, lib.Bbox):
        region = region.convert_units("vx", meta.resolution(mip)).to_slices()
    *axes, channels = meta.bbox(mip).reify_slices(region, bounded=vol.bounded)
    steps = [int(axis.step) for axis in axes]
    bbox = lib.Bbox([int(axis.start) for axis in axes], [int(axis.stop) for axis in axes])
    if vol.autocrop:
        bbox = lib.Bbox.intersection(bbox, meta.bounds(mip))
    if bbox.subvoxel():
        raise cloudvolume("exceptions").SubvoxelVolumeError(f"{bbox} has no elements")
    return bbox, steps, channels


def _downloaded(
    vol: Any, plan: Plan, bbox: Any, target: _Target, order: str, workers: int | None, progress: bool | None
) -> Array:
    work = _volumes.download(
        plan.url,
        plan.region(bbox),
        name=target.name,
        path=target.path,
        mip=plan.mip,
        order=plan.order(order),
        workers=workers or vol.parallel,
        missing=plan.missing,
        replace=target != _Target(),
        progress=vol.progress if progress is None else progress,
    )
    # `fill_missing` says that nothing need be stored.
    work.warns = plan.missing == "error"
    return work.result()


def _surrounded(vol: Any, plan: Plan, bbox: Any, inside: Any, part: Array | None, target: _Target, order: str) -> Array:
    """Create an array for a region that reaches beyond the volume: background, and the part of it that is in the volume."""
    shape = [axis.stop - axis.start for axis in plan.region(bbox)]
    how: dict[str, Any] = {"dtype": name_of(vol.meta.dtype), "order": plan.order(order)}
    if target.name is not None:
        array = Array(_core.create(target.name, shape, replace=True, **how))
    elif target.path is not None:
        directory, name = os.path.split(target.path)
        array = Array(_core.create(name, shape, directory=directory, replace=True, **how))
    else:
        array = share_zeros(tuple(shape), **how)
    with array.write() as x:
        if part is not None or plan.background != 0:
            x[...] = plan.background
        if part is not None:
            corner = inside.minpt - bbox.minpt
            window = tuple(slice(int(a), int(a + n)) for a, n in zip(corner, inside.size3(), strict=True))
            plan.theirs_of(x)[window] = plan.theirs_of(require_numpy("CloudVolume").asarray(part))
        del x
    return array


def _cutout(vol: Any, plan: Plan, bbox: Any, array: Array) -> Any:
    """Return an array as a `VolumeCutout`. CloudVolume's own constructor would copy an array in C order."""
    x = plan.theirs_of(require_numpy("CloudVolume").asarray(array))
    meta, kind = vol.meta, cloudvolume("volumecutout").VolumeCutout
    cutout = x.view(kind)
    resolution = meta.resolution(plan.mip)
    kind.__init__(cutout, x, meta.path, meta.cloudpath, resolution, plan.mip, meta.layer_type, bbox, array)
    return cutout


def _store(
    vol: Any,
    plan: Plan,
    x: Any,
    bbox: Any,
    order: str,
    cutout_bbox: Any,
    workers: int | None = None,
    progress: bool | None = None,
) -> _volumes.UploadReport | None:
    """Upload an array: a name, a file, or a numpy array."""
    lib, exceptions, mip = cloudvolume("lib"), cloudvolume("exceptions"), plan.mip
    bounds = vol.meta.bounds(mip)
    bbox = _voxels(vol, bbox)
    cutout = bbox.clone() if cutout_bbox is None else _voxels(vol, cutout_bbox)
    if not bbox.contains_bbox(cutout):
        raise exceptions.AlignmentError(f"the cutout {cutout} is not in the region of the array, {bbox}")
    if vol.autocrop:
        cutout = lib.Bbox.intersection(cutout, bounds)
    if cutout.subvoxel():
        return None
    if vol.bounded and not bounds.contains_bbox(cutout):
        raise exceptions.OutOfBoundsError(f"{cutout} is not in the volume, which is {bounds}: set bounded=False to ignore what is outside")
    handle, image = _elements(vol, x, bbox, order)
    try:
        is_aligned = cloudvolume("datasource").check_grid_aligned(
            vol.meta, image, cutout, mip, throw_error=not vol.non_aligned_writes
        )
        cutout = lib.Bbox.intersection(cutout, bounds)
        if cutout.subvoxel():
            return None
        if not is_aligned and plan.missing == "error" and vol.meta.path.format == "precomputed":
            _require_border(vol, cutout, mip)
        return _volumes.upload(
            plan.url,
            plan.ours_of(image),
            plan.region(bbox),
            mip=mip,
            cutout=plan.region(cutout),
            partial=not is_aligned,
            skip_background=getattr(vol.image, "delete_black_uploads", False),
            workers=workers or vol.parallel,
            encoding=plan.encoding,
            progress=vol.progress if progress is None else progress,
        ).result()
    finally:
        del image
        if handle is not None:
            handle.close()


def _voxels(vol: Any, region: Any) -> Any:
    """Return a region of x, y and z as a `Bbox` of whole numbers."""
    bbox = cloudvolume("lib").Bbox.create(region).convert_units("vx", vol.resolution)
    return cloudvolume("lib").Bbox([int(end) for end in bbox.minpt[:3]], [int(end) for end in bbox.maxpt[:3]])


def _elements(vol: Any, x: Any, bbox: Any, order: str) -> tuple[Any, Any]:
    """Return the elements of an upload, and what is to be closed after it."""
    shape = (*map(int, bbox.size3()), vol.num_channels)
    if isinstance(x, str):
        return sharedmemory.ndarray(shape, vol.dtype, x, order=order, readonly=True)
    if isinstance(x, _File):
        return sharedmemory.ndarray_fs(shape, vol.dtype, x.path, None, order=order, readonly=True)
    x = require_numpy("CloudVolume").asarray(x)
    x = x[..., None] if x.ndim == 3 else x
    if x.shape != shape:
        raise cloudvolume("exceptions").AlignmentError(f"the array has the shape {x.shape}, and its region {shape}")
    return None, x


def _require_border(vol: Any, cutout: Any, mip: int) -> None:
    """Raise an exception if a chunk that the region cuts through is not stored."""
    lib = cloudvolume("lib")
    for name, is_stored in vol.image.exists(cutout, mip).items():
        if not is_stored and not cutout.contains_bbox(lib.Bbox.from_filename(name)):
            raise cloudvolume("exceptions").EmptyVolumeException(name)


def _permissions(path: str | None) -> int:
    """Return the permissions for a downloaded file: those of the file that it replaces, or those of a new one."""
    try:
        return os.stat(path or "").st_mode & 0o777
    except FileNotFoundError:
        return sharedmemory.file_permissions()


def _replace(where: Any, name: str, value: Any) -> None:
    _replaced.append((where, name, getattr(where, name)))
    setattr(where, name, value)


def _original(name: str, where: Any = None) -> Any:
    """Return what `install` has replaced in a class, by default that of volumes, or None."""
    where = frontend() if where is None else where
    return next((value for place, known, value in _replaced if known == name and place is where), None)
