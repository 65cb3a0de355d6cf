"""Chunked volumes, in directories and behind URLs: downloads into arrays, uploads from arrays."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, overload

from . import _core, _program
from ._array import Array, is_array, register_with_multiprocessing
from ._attach import number_of
from ._attach import open as open_array
from ._caches import ChunkCache
from ._dtypes import name_of, refuse_mask, shown
from ._errors import InvalidArgument, TransferWarning, Unsupported
from ._guard import require_numpy
from ._imports import importing
from ._job import Work, run
from ._region import RegionLike, slices_of, text_of
from ._volume_arrays import Facts, VolumeArray, check_memory, facts_of

if TYPE_CHECKING:
    import numpy.typing

_Out = TypeVar("_Out")

_ENCODINGS = ("raw", "gzip", "zstd", "blosc", "jpeg", "png", "compressed_segmentation", "compressed_segmentation_gzip")
_FORMATS = {"zarr3": ("zarr", 3), "zarr2": ("zarr", 2), "precomputed": ("precomputed", 1)}
_KINDS = ("image", "segmentation")
_MISSING = ("stored", "error", "fill")


class Scale(NamedTuple):
    """One scale of a volume, also called mip or level."""

    key: str
    """The volume's name of the scale."""
    shape: tuple[int, ...]
    """Elements along each axis."""
    origin: tuple[int, ...]
    """Coordinates of the first element."""
    chunk: tuple[int, ...]
    """Elements along each axis of a chunk, the unit of decoding."""
    stored: tuple[int, ...]
    """Elements along each axis of a stored object: a chunk, or a shard of many."""
    dtype: str
    """numpy's name of the element type, such as ``"uint8"``, or ``"bfloat16"``."""
    axes: tuple[str, ...]
    """A word for each axis: its name, or its number if it has no name of its own. Empty if the volume names none."""
    resolution: tuple[float, ...]
    """The size of an element along each axis, in `unit`; a Precomputed volume has none for channels. Empty if the volume does not say."""
    unit: str
    """The unit of the resolution, such as ``"nm"``."""
    kind: str | None
    """``"image"`` or ``"segmentation"``, if the volume says."""
    description: str
    """The format in a few words."""

    @property
    def bounds(self) -> tuple[slice, ...]:
        """The region of all elements."""
        return tuple(slice(start, start + length) for start, length in zip(self.origin, self.shape, strict=True))


class VolumeInfo(NamedTuple):
    """What a volume is."""

    url: str
    """Its path or URL, without password."""
    scales: tuple[Scale, ...]
    """Its scales, the finest first."""

    def _repr_html_(self) -> str:
        html = _html()
        rows = [
            (
                str(mip),
                scale.key,
                html.lengths(scale.shape),
                ", ".join(scale.axes) or "-",
                scale.dtype,
                html.lengths(scale.chunk),
                f"{' × '.join(f'{length:g}' for length in scale.resolution)} {scale.unit}" if scale.resolution else "-",
                scale.description,
            )
            for mip, scale in enumerate(self.scales)
        ]
        head = ("mip", "key", "shape", "axes", "dtype", "chunk", "resolution", "format")
        return f"{html.table({'volume': self.url})}{html.grid(head, rows)}"


def _html() -> Any:
    with importing("ndshm._html"):
        from . import _html as html
    return html


class Volume(VolumeArray):
    """An open volume. It is indexed as a numpy array, and each access reads from the store.

    ``volume[5, ::2]`` counts from 0, and from the end if a number is negative; `read` takes the volume's coordinates, as `download` does. The
    two differ where a volume does not begin at 0. ``volume[region] = x`` writes, as `upload` does.

    It can be pickled: the receiver opens the same volume. (The pickle has the whole URL, with a password if there is one.)

    Parameters
    ----------
    url
        A path, or a URL: ``file://``, ``http://``, ``https://``, ``s3://``, ``gs://``, ``az://``, with ``precomputed://``, ``zarr://`` or
        ``n5://`` in front to name the format.
    mip
        The number of the scale. 0 is the finest.
    missing
        The elements of chunks that are not stored, as for `download`.
    partial
        Whether ``volume[region] = x`` may change a part of a stored object, as for `upload`.
    cache
        A `ChunkCache`, or the size of this user's own one, such as ``"16GiB"``: each chunk is decoded once per machine, and all processes copy it.
        None takes the size from the environment variable ``NDSHM_CHUNK_CACHE``; if that is not set, nothing is cached.
    recheck
        When a cached chunk is compared with the stored object again, which a file's times or a server's entity tag tell from a later one:
        ``"open"``, once after a volume was opened; True, at each access; False, never.

    Raises
    ------
    NotFound, NotAVolume, Unsupported, InvalidArgument
        There is no volume, something else is there, it needs what this library lacks, or it has no such scale.
    StoreError, PermissionDenied
        The server does not answer, or refuses.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/em.zarr"
    >>> volume = ndshm.create_volume(path, (64, 64, 64), (32, 32, 32), "uint8")
    >>> volume[:32] = 7
    >>> volume[30:34, 5, ::16].tolist()
    [[7, 7, 7, 7], [7, 7, 7, 7], [0, 0, 0, 0], [0, 0, 0, 0]]
    """

    __slots__ = ("_cache", "_encoding", "_facts", "_missing", "_partial", "_raw", "_recheck", "_url")

    def __init__(
        self,
        url: str | os.PathLike[str],
        mip: int = 0,
        *,
        missing: str | float | None = None,
        partial: bool = False,
        cache: ChunkCache | int | str | None = None,
        recheck: bool | Literal["open"] = "open",
    ) -> None:
        self._url = _absolute(url)
        if missing is not None:
            _missing(missing)  # checks it
        self._missing = missing
        self._partial = partial
        # What `create_volume` was told that the description of the volume does not tell: how chunks are wrapped.
        self._encoding: str | None = None
        if recheck not in ("open", True, False):
            raise InvalidArgument(f'recheck is {recheck!r}: give "open", True or False')
        self._cache = cache if cache is None or isinstance(cache, ChunkCache) else ChunkCache(nbytes=cache)
        self._recheck = recheck
        self._raw = self._opened(number_of(mip, "mip"))
        run(self._raw.open())
        self._facts = facts_of(self._raw)

    def _opened(self, mip: int) -> _core.RawVolume:
        """Return a scale of the volume, to be read through the same cache."""
        recheck = {"open": "open", True: "always", False: "never"}[self._recheck]
        return _core.RawVolume(self._url, mip, None if self._cache is None else self._cache._raw, recheck)

    def _seen(self) -> tuple[Volume, Facts, tuple[int, ...]]:
        return self, self._facts, tuple(range(len(self._facts.shape)))

    @property
    def cache(self) -> ChunkCache | None:
        """The cache of its chunks."""
        return self._cache

    @property
    def mip(self) -> int:
        """The number of the scale."""
        return self._raw.mip

    @property
    def url(self) -> str:
        """The path or URL, without password and query."""
        return self._raw.url

    @overload
    def read(self, region: RegionLike = None) -> numpy.typing.NDArray[Any]: ...
    @overload
    def read(self, region: RegionLike = None, *, out: _Out) -> _Out: ...

    def read(self, region: RegionLike = None, *, out: Any = None) -> Any:
        """Read a region, given in the volume's coordinates, into memory of this process.

        `download` does so in the background, with progress, and into memory that processes share.

        Parameters
        ----------
        region
            As for `download`: text such as ``"100:164,:,5:"``, a slice for each axis, a ``Bbox`` of CloudVolume, or None for all of the volume.
        out
            Memory for the elements, an `Array` or part of one, which is locked for writing meanwhile, or a numpy array. It has the shape of
            the region, where the last axis of a volume of one channel may be left out, the volume's dtype, and positive strides.

        Returns
        -------
        numpy.ndarray or out
            `out`, or a new array in the order of the volume's chunks, the fastest: C, and F in Precomputed and N5.

        Raises
        ------
        InvalidArgument, Mismatch
            The region is not in the volume, or `out` does not fit.
        ChunkError, MissingChunk, StoreError, NoSpace
            As for `download`.

        Examples
        --------
        >>> import tempfile
        >>> path = "precomputed://" + tempfile.mkdtemp() + "/em"
        >>> volume = ndshm.create_volume(path, (64, 64, 64), (32, 32, 32), "uint8", origin=(100, 0, 0))
        >>> volume[:32] = 7
        >>> int(volume.read("100:101,5:6,9:10").item()), int(volume[0, 5, 9, 0])
        (7, 7)
        """
        ends = self._raw.resolve(text_of(region))
        if out is not None:
            elements, dtype = _writable(out)
            _core.read(self._raw, ends, elements, dtype, self._missing_text())
            return out
        numpy = require_numpy("reading from a volume")
        lengths = [stop - start for start, stop in ends]
        element = self.dtype
        check_memory(math.prod(lengths) * element.itemsize)
        x = numpy.empty(lengths, element, self._facts.order)
        self._read_into(ends, x)
        return x

    def _read_into(self, ends: Sequence[tuple[int, int]], x: Any) -> None:
        """Read a region into an array with positive strides."""
        code = self._facts.code
        x = x if x.ndim else x.reshape(1)  # a buffer without axes has no shape
        # bfloat16 has no format in the buffer protocol.
        _core.read(self._raw, ends, x.view("u2") if code == "bfloat16" else x, code, self._missing_text())

    def _missing_text(self) -> str:
        return "stored" if self._missing is None else _missing(self._missing)

    def _write(self, x: Any, region: tuple[slice, ...]) -> None:
        upload(self, x, region, partial=self._partial).result()

    def __reduce__(self) -> tuple[Any, ...]:
        return _volume, (self._url, self.mip, self._missing, self._partial, self._cache, self._recheck, self._encoding)

    def __repr__(self) -> str:
        return f"<ndshm.Volume {self.url!r}: mip {self.mip}>"

    def _repr_html_(self) -> str:
        html = _html()
        rows = {"volume": self.url, "mip": str(self.mip)}
        if (seen := self._raw.seen) is not None:
            shape, chunk, dtype, axes, description = seen
            rows |= {"shape": html.lengths(shape), **({"axes": ", ".join(axes)} if axes else {})}
            rows |= {"dtype": shown(dtype), "chunk": html.lengths(chunk), "format": description}
        return str(html.table(rows))


def _volume(
    url: str,
    mip: int,
    missing: str | float | None,
    partial: bool,
    cache: ChunkCache | None,
    recheck: bool | Literal["open"],
    encoding: str | None,
) -> Volume:
    """Open a volume that was pickled."""
    volume = Volume(url, mip, missing=missing, partial=partial, cache=cache, recheck=recheck)
    volume._encoding = encoding
    return volume


#: What `download` and `upload` accept: a path or URL, an open volume, or a ``CloudVolume``.
VolumeLike: TypeAlias = str | os.PathLike[str] | Volume | Any


class DownloadReport(NamedTuple):
    """What a download did."""

    chunks: int
    """Chunks that the region touches."""
    painted: int
    """Chunks that this call painted."""
    filled: int
    """Those of them that are not stored."""
    resumed: int
    """Chunks that earlier calls had painted."""
    nbytes: int
    """Bytes of the array."""
    fetched: int
    """Bytes that were fetched, as they are stored. 0 if the volume is fetched and decoded in one step."""


class UploadReport(NamedTuple):
    """What an upload did."""

    region: tuple[slice, ...]
    """The region that was written."""
    stored: int
    """Objects that were stored."""
    background: int
    """Objects of only background, which were left out or removed."""
    nbytes: int
    """Bytes of the array that were written."""
    stored_nbytes: int
    """Bytes that were stored."""


class Download(Work[Array]):
    """A download that runs in the background. ``await`` it, or call `result`: both give the array.

    It goes on if no caller waits for it. When the program ends, it is cancelled.
    """

    _report: DownloadReport | None = None
    # The memory that was painted, if the caller gave it.
    _out: Any = None

    def _converted(self, taken: tuple[Any, Any] | Sequence[Any]) -> Any:
        attachment, (*numbers, _warnings) = taken if self._out is None else (None, taken)  # they have been given as warnings
        self._report = DownloadReport(*numbers)
        if attachment is None:
            return self._out
        return Array(attachment)

    @property
    def report(self) -> DownloadReport:
        """What was done. Waits for the end."""
        self.result()
        assert self._report is not None
        return self._report


class Upload(Work[UploadReport]):
    """An upload that runs in the background. ``await`` it, or call `result`: both give an `UploadReport`.

    It goes on if no caller waits for it. When the program ends, it is cancelled; a repeated upload stores the same objects again.
    """

    def _converted(self, taken: Sequence[Any]) -> UploadReport:
        ends, *numbers, _warnings = taken  # they have been given as warnings
        return UploadReport(slices_of(ends), *numbers)


def download(
    volume: VolumeLike,
    bbox: RegionLike = None,
    *,
    name: str | None = None,
    path: str | os.PathLike[str] | None = None,
    out: Array | numpy.typing.NDArray[Any] | None = None,
    mip: int | None = None,
    order: str | None = None,
    workers: int | None = None,
    processes: bool = False,
    requests: int | None = None,
    missing: str | float | None = None,
    replace: bool = False,
    keep_partial: bool = False,
    progress: bool = False,
) -> Download:
    """Download a region of a volume into an array in shared memory, with all processors.

    Parameters
    ----------
    volume
        A path or URL, a `Volume`, or a ``CloudVolume``, which is asked for its path, scale, and value for missing chunks.
    bbox
        The region in the volume's coordinates: text such as ``"0:512,0:512,:"``, a slice for each axis (``numpy.s_[0:512, 0:512, :]``), or
        a ``Bbox`` of CloudVolume. Open ends are the volume's bounds, negative numbers are coordinates, and a last axis of channels may be
        left out. None is all of the volume.
    name
        The name of the array, which other processes open. Until the download is finished, no array has it. Without a name the array is
        counted, as that of `share` is: it can be sent to other processes by anything that pickles, and its last user frees it. Until it is
        pickled for the first time, it has no name, and the kernel frees it if this process is killed. (Not so with ``processes=True``.)
    path
        Instead of a name: the path of a file that gets the elements and nothing else.
    out
        Instead of a name: memory that is painted, an `Array` or part of one, which is locked for writing meanwhile, or a numpy array, which
        no other code may use until the download has ended. Parts of one `Array` are painted one after the other, because its lock is one; numpy
        views of it, as ``numpy.asarray(array)[0]``, take no lock. It has the shape of the region, where the last axis of a volume of one channel
        may be left out, the dtype of the volume, and positive strides. After an error it has what was painted until then.
    mip
        The number of the scale, 0 is the finest. By default 0, or the scale of the `Volume` or ``CloudVolume``.
    order
        The order of the array in memory, by default ``"C"``. `out` has its own.
    workers
        The number of threads or processes that decode. By default one for each processor.
    processes
        Decode in worker processes of the program `ndshm`, which comes with the package: a worker that crashes or is killed costs only
        the chunk that it was painting. They paint under a name, a random one if `name` is None, which is removed at the end: such an array
        cannot be pickled.
    requests
        How many requests a server gets at a time. By default 16.
    missing
        The elements of chunks that are not stored, by default what the `Volume` or ``CloudVolume`` says: ``"stored"`` takes the volume's fill value, and is an error in a volume
        without one; ``"error"``; ``"fill"`` takes the volume's fill value or 0; a number is the value.
    replace
        Replace the array or file that has the name, if any, and at once what a killed download of another region left under the name.
    keep_partial
        Keep what was painted when the download fails or is cancelled. The same call resumes there.
    progress
        Show a progress bar in `Download.result`. Needs the package tqdm.

    Returns
    -------
    Download
        Its result is the array: shape and dtype are those of the region. With `out` it is `out`.

    Raises
    ------
    InvalidArgument
        An argument is not valid. All other errors are raised by `Download.result`: those of `Volume` and `create`, `InvalidArgument` for
        a region that is not in the volume, `Mismatch` if `out` does not fit, `ChunkError`, `MissingChunk`, `StoreError`, `PaintError`,
        `Cancelled`.
    WouldDeadlock, PermissionDenied, Unlinked, ValueError
        This thread itself has a guard of `out`; `out` is read-only or frozen, has lost its name, is closed.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/em.zarr"
    >>> _ = ndshm.create_volume(path, (64, 64, 64), (32, 32, 32), "uint8")
    >>> array = ndshm.download(path, "0:32,:,10:20").result()
    >>> array.shape
    (32, 64, 10)
    """
    if sum(given is not None for given in (name, path, out)) > 1:
        raise InvalidArgument("give either name, path or out")
    if out is not None and (processes or replace or keep_partial or order is not None):
        raise InvalidArgument("`out` is painted by threads as it is: leave out processes, replace, keep_partial and order")
    elements, out_dtype = _writable(out) if out is not None else (None, None)
    if name is None and path is None and out is None:
        register_with_multiprocessing()  # the result is counted
    target, of_volume = _target(volume, mip)
    program = None
    if processes:
        program = _program.path()
        if program is None:
            raise Unsupported("processes=True needs the program `ndshm`, which comes with the wheel: install the wheel, or use threads")
    if missing is None:
        missing = of_volume or "stored"
    job = _begin_download(
        target,
        text_of(bbox),
        name=name,
        path=None if path is None else os.path.abspath(path),
        out=elements,
        out_dtype=out_dtype,
        order=order or "C",
        workers=number_of(workers or 0, "workers"),
        program=program,
        requests=number_of(requests or 0, "requests"),
        missing=_missing(missing),
        replace=replace,
        keep_partial=keep_partial,
    )
    work = Download(job, f"download {name or path or ''}".rstrip(), progress)
    work._out = out
    return work


def _begin_download(target: _core.RawVolume, region: str | None, **how: Any) -> _core.Job:
    try:
        return _core.download(target, region, **how)
    except BufferError as error:
        raise InvalidArgument(f"out cannot be painted: {error}") from error


def _writable(out: Any) -> tuple[Any, str | None]:
    """Return what is painted: an array of this package, or a numpy array and its dtype."""
    if is_array(out):
        return out, None
    numpy = require_numpy("downloading into what is not an Array")
    refuse_mask(out)
    if not isinstance(out, numpy.ndarray):
        raise InvalidArgument(f"out is of type {type(out).__name__}: give an ndshm.Array or a numpy array")
    if not out.flags.writeable:
        raise InvalidArgument("out is read-only")
    if not out.size:
        raise InvalidArgument("out has no elements, and a region has")
    steps = [stride for stride, length in zip(out.strides, out.shape, strict=True) if length > 1]
    if not out.flags.aligned or any(stride <= 0 or stride % out.itemsize for stride in steps):
        raise InvalidArgument("out must be aligned and have positive strides: paint its base, or another array")
    dtype = name_of(out.dtype)
    return out.view("u2") if dtype == "bfloat16" else out, dtype


def upload(
    volume: VolumeLike,
    x: Any,
    bbox: RegionLike = None,
    *,
    mip: int | None = None,
    cutout: RegionLike = None,
    partial: bool = False,
    skip_background: bool = False,
    workers: int | None = None,
    requests: int | None = None,
    encoding: str | None = None,
    progress: bool = False,
) -> Upload:
    """Write an array into a region of a volume, with all processors.

    Parameters
    ----------
    volume
        A path or URL, a `Volume`, or a ``CloudVolume``. `create_volume` creates one. Zarr and Precomputed volumes can be written.
    x
        An `Array`, which is locked for reading meanwhile; the name of one; or a numpy array with any strides, which is not copied
        if its strides are positive, and must not change until the upload has ended. Its shape is that of the region; the last axis of a
        volume of one channel may be left out. Its dtype is that of the volume.
    bbox
        The region, as for `download`. By default the region that `x` is from, if it is an `Array` that was downloaded from this scale of this
        volume, however the volume is named, and else all of the volume. An `Array` of another scale needs a region.
    mip
        The number of the scale, as for `download`.
    cutout
        Write only this part of the array's region. The region may then reach beyond the volume.
    partial
        Where the region cuts through stored objects, read them, change them and write them back, each under a lock that all uploads of
        this machine take. Otherwise such a region is an error.
    skip_background
        Do not store objects that hold only the volume's fill value or 0, and remove those that were stored before.
    workers, requests, progress
        As for `download`.
    encoding
        For Precomputed volumes, the encoding with which the volume was created, if it is ``"gzip"`` or ``"compressed_segmentation_gzip"``:
        its description does not tell, but the `Volume` that `create_volume` returned knows it, and so do chunks that are stored already.

    Returns
    -------
    Upload
        Its result is an `UploadReport`.

    Raises
    ------
    InvalidArgument
        An argument is not valid. All other errors are raised by `Upload.result`: `InvalidArgument` if there is no `bbox` and the array is
        from another scale of this volume, or if its axes have the names of the volume's in another order, and `Mismatch` if it has not the shape of the region.
    WouldDeadlock
        This thread itself has a write guard of the array.
    """
    target, _ = _target(volume, mip)
    if encoding is not None and encoding not in _ENCODINGS:
        raise InvalidArgument(f"encoding={encoding!r}: give one of {', '.join(_ENCODINGS)}")
    if encoding is None and isinstance(volume, Volume):
        encoding = volume._encoding
    region, part = text_of(bbox), text_of(cutout)
    dtype: str | None = None
    elements: Any = open_array(x, readonly=True) if isinstance(x, str) else x
    if part is not None and region is None and not isinstance(elements, Array):
        raise InvalidArgument("a cutout is a part of bbox: give bbox too")
    if not isinstance(elements, Array):
        elements, dtype = _buffer(elements)
    job = _core.upload(
        target,
        elements,
        dtype,
        region,
        cutout=part,
        partial=partial,
        skip_background=skip_background,
        workers=number_of(workers or 0, "workers"),
        requests=number_of(requests or 0, "requests"),
        encoding=encoding,
    )
    return Upload(job, "upload", progress)


def _buffer(x: Any) -> tuple[Any, str]:
    """Return a numpy array with elements that can be read where they are, and its dtype."""
    refuse_mask(x)
    numpy = require_numpy("uploading what is not an Array")
    x = numpy.asarray(x)
    dtype = name_of(x.dtype)
    if not x.flags.aligned or any(stride <= 0 or stride % x.itemsize for stride in x.strides):
        x = x.copy()
    x = x if x.ndim else x.reshape(1)  # a buffer without axes has no shape
    # bfloat16 has no format in the buffer protocol.
    return x.view("u2") if dtype == "bfloat16" else x, dtype


def info(volume: VolumeLike) -> VolumeInfo:
    """Return the scales of a volume.

    Raises
    ------
    NotFound, NotAVolume, Unsupported, StoreError, PermissionDenied
        As for `Volume`.
    """
    target, _ = _target(volume, None)
    return VolumeInfo(target.url, tuple(map(_scale, run(target.scales()))))


def _scale(row: Sequence[Any]) -> Scale:
    key, resolution, unit, origin, shape, chunk, stored, dtype, kind, _fill, axes, description = row
    return Scale(
        key, tuple(shape), tuple(origin), tuple(chunk), tuple(stored), shown(dtype), tuple(axes), tuple(resolution), unit, kind, description
    )


def create_volume(
    url: str | os.PathLike[str],
    shape: Sequence[int] | None = None,
    chunk: Sequence[int] | None = None,
    dtype: numpy.typing.DTypeLike | None = None,
    *,
    like: Array | VolumeLike | None = None,
    format: str | None = None,
    encoding: str | None = None,
    shard: Sequence[int] | None = None,
    origin: Sequence[int] | None = None,
    resolution: Sequence[float] | None = None,
    kind: str | None = None,
    quality: int | None = None,
    exist_ok: bool = False,
) -> Volume:
    """Create a volume without chunks.

    Parameters
    ----------
    url
        Where: as for `Volume`.
    shape, chunk
        Elements along each axis, of the volume and of a chunk. A Precomputed volume has the axes x, y, z and, if there are several,
        channels. A chunk may leave out an axis that is known to be channels, and then has all of them.
    dtype
        The element type. Volumes of ``bool`` can be read and written, but not created.
    like
        An `Array` that was downloaded, or a volume as for `download`. What no other argument says is as there: shape, dtype, chunk,
        encoding, resolution, the names of the axes (Zarr 3), and for Precomputed the origin and the kind. Without it, shape, chunk and
        dtype are needed; an `Array` that was not downloaded has only shape and dtype. What the format cannot keep is a
        `TransferWarning`. Chunks that are JPEG, or of an encoding that does not fit, become ``"raw"``, in Zarr ``"zstd"``, with a warning:
        JPEG would change the elements once more, and is for ``encoding="jpeg"`` to ask for. Shards are for ``shard=`` to ask for.
    format
        ``"zarr3"``, ``"zarr2"`` or ``"precomputed"``. By default what the URL says, or ``"zarr3"``.
    encoding
        ``"raw"`` (the default), ``"gzip"``; for Zarr ``"zstd"``, ``"blosc"``; for Precomputed ``"jpeg"``, ``"png"``, ``"compressed_segmentation"``,
        ``"compressed_segmentation_gzip"``.
    shard
        Elements along each axis of a shard, for Zarr 3.
    origin
        Coordinates of the first element, for Precomputed.
    resolution
        The size of an element along each axis in nanometres. By default 1 in Precomputed, and not recorded in Zarr.
    kind
        ``"image"`` or ``"segmentation"``, for Precomputed. Needed for ``uint32`` and ``uint64``, unless the encoding or `like` says it.
    quality
        Quality of JPEG chunks, 1 to 100.
    exist_ok
        If a volume with the same description exists, open it.

    Raises
    ------
    AlreadyExists
        The place is not empty.
    InvalidArgument
        The format does not support what is asked for.

    Examples
    --------
    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> em = ndshm.create_volume(place + "/em.zarr", (64, 64, 64), (32, 32, 32), "uint8", resolution=(4, 4, 40), encoding="zstd")
    >>> copy = ndshm.create_volume(place + "/copy.zarr", like=em)
    >>> ndshm.info(copy).scales[0].resolution
    (4.0, 4.0, 40.0)
    """
    place = _absolute(url)
    if format is None:
        format = "precomputed" if place.startswith("precomputed://") else "zarr2" if place.startswith("zarr2://") else "zarr3"
    for what, value, known in (("format", format, tuple(_FORMATS)), ("encoding", encoding, (*_ENCODINGS, None)), ("kind", kind, (*_KINDS, None))):
        if value not in known:
            raise InvalidArgument(f"{what}={value!r}: give one of {', '.join(map(str, known))}")
    if like is None:
        given = (("shape", shape), ("chunk", chunk), ("dtype", dtype))
        if missing := [what for what, value in given if value is None]:
            raise InvalidArgument(f"{' and '.join(missing)}: give a value, or an array or volume that the new one is like (like=)")
    array = like if is_array(like) else None
    model = None if like is None or array is not None else _target(like, None)[0]
    element = None if dtype is None else name_of(dtype)
    if (element or (None if array is None else array._dtype_code)) == "|b1":
        raise Unsupported("a volume of bool cannot be created: create one of uint8, which takes bool arrays too")
    family, version = _FORMATS[format]
    said = run(
        _core.new_volume(
            place,
            family,
            version,
            None if shape is None else list(shape),
            None if chunk is None else list(chunk),
            element,
            like_array=array,
            like_volume=model,
            origin=None if origin is None else list(origin),
            shard=None if shard is None else list(shard),
            encoding=encoding,
            quality=quality,
            resolution=list(resolution) if resolution else None,
            kind=kind,
            exist_ok=exist_ok,
        )
    )
    for text in said:
        warnings.warn(text, TransferWarning, stacklevel=2)
    volume = Volume(place)
    if family == "precomputed" and encoding in ("raw", "gzip", "compressed_segmentation_gzip"):
        volume._encoding = encoding
    return volume


def _target(volume: VolumeLike, mip: int | None) -> tuple[_core.RawVolume, str | float | None]:
    """Return the volume, and what it says about missing chunks."""
    if isinstance(volume, Volume):
        if mip is None or mip == volume.mip:
            return volume._raw, volume._missing
        return volume._opened(number_of(mip, "mip")), volume._missing
    if hasattr(volume, "__fspath__") or isinstance(volume, str):
        place: Any = volume
        return _core.RawVolume(_absolute(place), number_of(mip or 0, "mip")), None
    other: Any = volume
    if not isinstance(getattr(other, "cloudpath", None), str):
        raise InvalidArgument(f"a {type(volume).__name__} is no volume: give a path, a URL, an ndshm.Volume or a CloudVolume")
    missing = getattr(other, "background_color", 0) or "fill" if getattr(other, "fill_missing", False) else None
    return _core.RawVolume(url_of(other), number_of(other.mip if mip is None else mip, "mip")), missing


def url_of(volume: Any) -> str:
    """Return the URL of a ``CloudVolume``. CloudVolume's paths of files are literal, and do not always begin with the format."""
    format, _, rest = volume.cloudpath.partition("://")
    if format not in ("precomputed", "zarr", "zarr2", "zarr3", "n5"):
        known = getattr(getattr(volume, "meta", None), "path", None)
        format, rest = getattr(known, "format", "precomputed"), volume.cloudpath
    if rest.startswith("file://"):
        rest = os.path.abspath(os.path.expanduser(rest.removeprefix("file://")))
    return f"{format}://{rest}"


def _absolute(url: str | os.PathLike[str]) -> str:
    """Return a URL as it is, and a path so that it leads to the same place from every working directory."""
    text = os.fspath(url)
    return text if "://" in text else os.path.abspath(text)


def _missing(value: str | float) -> str:
    if isinstance(value, str) and value not in _MISSING:
        raise InvalidArgument(f"missing={value!r}: give one of {', '.join(map(repr, _MISSING))}, or a number")
    return value if isinstance(value, str) else str(value)
