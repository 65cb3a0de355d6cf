"""Volumes as arrays: numpy's indexing reads from the store, and nothing is read before it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core
from ._dtypes import numpy_dtype, refuse_mask, shown
from ._errors import InvalidArgument, NoSpace
from ._guard import require_numpy
from ._region import selection_of

if TYPE_CHECKING:
    import numpy

    from ._volumes import Volume

# Where a step skips elements, at most so many bytes are read at once to take those that it selects.
_DENSE = 32 << 20

# Larger results are compared with the memory that the machine has.
_LARGE = 256 << 20


class Facts(NamedTuple):
    """What a scale is, as the library says it."""

    origin: tuple[int, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    stored: tuple[int, ...]
    code: str
    order: str
    fill: bytes | None
    dims: tuple[str, ...]


def facts_of(raw: _core.RawVolume) -> Facts:
    origin, shape, chunks, stored, code, order, fill, dims = raw.facts()
    return Facts(tuple(origin), tuple(shape), tuple(chunks), tuple(stored), code, order, fill, tuple(dims))


class VolumeArray:
    """What `Volume` and `VolumeView` have in common: they are indexed as numpy's arrays, and each access reads from the store.

    Nothing is kept: the same elements are read again. Counts begin at 0 and, if they are negative, at the end.
    """

    __slots__ = ()

    def _seen(self) -> tuple[Volume, Facts, tuple[int, ...]]:
        """Return the volume, what it is, and its axes in the order of this array. Those that are missing have one element."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        _, facts, axes = self._seen()
        return tuple(facts.shape[axis] for axis in axes)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._seen()[2])

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """numpy's element type. ``bfloat16`` is that of ``ml_dtypes``, or its bits in ``uint16`` without that package."""
        return numpy_dtype(self._seen()[1].code)

    @property
    def dtype_name(self) -> str:
        """numpy's name of the element type, such as ``"uint8"``, or ``"bfloat16"``."""
        return shown(self._seen()[1].code)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, as an array has them."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements along each axis of a chunk, the unit of decoding."""
        _, facts, axes = self._seen()
        return tuple(facts.chunks[axis] for axis in axes)

    @property
    def dims(self) -> tuple[str, ...]:
        """A word for each axis: its name, or its number in the volume if it has no name of its own."""
        _, facts, axes = self._seen()
        return tuple(facts.dims[axis] for axis in axes)

    @property
    def origin(self) -> tuple[int, ...]:
        """The volume's coordinates of the element 0."""
        _, facts, axes = self._seen()
        return tuple(facts.origin[axis] for axis in axes)

    @property
    def order(self) -> str:
        """The order in memory of what is read: that of the volume's chunks, ``"C"`` or ``"F"``, or ``"A"`` if it is neither."""
        _, facts, axes = self._seen()
        if list(axes) == sorted(axes):
            return facts.order
        return "A" if list(axes) != sorted(axes, reverse=True) else "C" if facts.order == "F" else "F"

    @property
    def fill_value(self) -> Any:
        """The value of elements that were never stored, or None if the volume has none."""
        fill = self._seen()[1].fill
        return None if fill is None else require_numpy("fill_value").frombuffer(fill, self.dtype)[0]

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a volume without axes has no len()")
        return self.shape[0]

    def __bool__(self) -> bool:
        """A volume is true: it is not read to find that out."""
        return True

    def __iter__(self) -> Iterator[Any]:
        """Read one index of the first axis after the other."""
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """Read what numpy's basic indexing selects: integers, slices with steps, and ``...``. The result is a numpy array, or one element."""
        return self._read(selection_of(index, self.shape))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write elements, as `upload` does. The region has whole stored objects, unless the volume was opened with ``partial=True``."""
        volume, facts, axes = self._seen()
        selection = selection_of(index, self.shape)
        if any(isinstance(step, range) and len(step) > 1 and step.step != 1 for step in selection):
            raise InvalidArgument(f"{index!r} has a step: volumes are written without one")
        lengths = [len(step) for step in selection if isinstance(step, range)]
        if 0 in lengths:
            return
        refuse_mask(value)
        numpy = require_numpy("writing to a volume")
        x = numpy.broadcast_to(_elements(numpy, value, self.dtype), lengths)
        # The axes of this array, then those of the volume.
        x = x[tuple(None if isinstance(step, int) else slice(None) for step in selection)]
        x = numpy.transpose(x, sorted(range(len(axes)), key=axes.__getitem__))
        x = x[tuple(slice(None) if axis in axes else None for axis in range(len(facts.shape)))]
        ranges = _in_volume(selection, facts, axes)
        volume._write(x, tuple(slice(begin + step.start, begin + step[-1] + 1) for begin, step in zip(facts.origin, ranges, strict=True)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Read all elements, as ``numpy.asarray`` does.

        Raises
        ------
        NoSpace
            They do not fit into the memory that is free.
        """
        numpy = require_numpy("converting a volume")
        if copy is False:
            raise ValueError("a volume is not in memory: it becomes an array by a copy only")
        x = self[...] if self.ndim else numpy.asarray(self[()])
        return x if dtype is None else x.astype(dtype, copy=False)

    def transposed(self, dims: str | Sequence[str | int]) -> VolumeView:
        """Return a view with the axes in this order, which reads nothing.

        Parameters
        ----------
        dims
            Names or numbers of the axes. Names of one letter may be one text, as in ``"zyx"``. An axis of one element may be left out, and the
            view then lacks it: ``transposed("zyx")`` of an image in Precomputed, with x, y, z and one channel, has three axes.

        Examples
        --------
        >>> import tempfile
        >>> path = "precomputed://" + tempfile.mkdtemp() + "/em"
        >>> em = ndshm.create_volume(path, (64, 48, 10), (32, 32, 10), "uint8")
        >>> em.shape, em.transposed("zyx").shape
        ((64, 48, 10, 1), (10, 48, 64))
        """
        volume, _, axes = self._seen()
        own = self.dims
        wanted: Sequence[str | int] = [dims] if isinstance(dims, str) and dims in own else dims
        chosen = list[int]()
        for dim in wanted:
            if isinstance(dim, str) and dim in own:
                chosen.append(own.index(dim))
            elif not isinstance(dim, str) and -len(own) <= dim < len(own):
                chosen.append(dim % len(own))
            else:
                raise InvalidArgument(f"{dim!r} is no axis: there are {', '.join(own) or 'none'}")
        if len(set(chosen)) < len(chosen):
            raise InvalidArgument(f"{dims!r} has an axis twice")
        if left := [own[axis] for axis, length in enumerate(self.shape) if axis not in chosen and length != 1]:
            raise InvalidArgument(f"{dims!r} leaves out {', '.join(left)}, which has more than one element")
        return VolumeView(volume, tuple(axes[axis] for axis in chosen))

    def squeeze(self) -> VolumeView:
        """Return a view without the axes of one element, which reads nothing."""
        volume, facts, axes = self._seen()
        return VolumeView(volume, tuple(axis for axis in axes if facts.shape[axis] != 1))

    @property
    def T(self) -> VolumeView:
        """A view with the axes in reverse order, which reads nothing."""
        volume, _, axes = self._seen()
        return VolumeView(volume, axes[::-1])

    def _read(self, selection: list[range | int]) -> Any:
        numpy = require_numpy("reading from a volume")
        volume, facts, axes = self._seen()
        dtype = numpy_dtype(facts.code)
        lengths = [len(step) for step in selection if isinstance(step, range)]
        check_memory(math.prod(lengths) * dtype.itemsize)
        if 0 in lengths:
            return numpy.empty(lengths, dtype)
        # In the order of the volume, and upwards.
        ranges = _in_volume(selection, facts, axes)
        x = numpy.empty([len(step) for step in ranges], dtype, facts.order)
        _fill(volume, facts, x, [step if step.step > 0 else step[::-1] for step in ranges])
        # Each step is left out where it changes nothing: a small box takes little longer than these lines.
        if any(step.step < 0 for step in ranges):
            x = x[tuple(slice(None, None, 1 if step.step > 0 else -1) for step in ranges)]
        rest = [axis for axis in range(len(facts.shape)) if axis not in axes]
        if rest or list(axes) != sorted(axes):
            x = numpy.transpose(x, (*axes, *rest))
        if rest or len(lengths) < len(selection):
            x = x[tuple(slice(None) if isinstance(step, range) else 0 for step in selection) + (0,) * len(rest)]
        return x if x.ndim else x[()]


class VolumeView(VolumeArray):
    """A volume with its axes in another order, or without those of one element: see `Volume.transposed` and `Volume.squeeze`.

    It reads as the volume does when it is indexed, and can be pickled.
    """

    __slots__ = ("_axes", "_volume")

    def __init__(self, volume: Volume, axes: tuple[int, ...]) -> None:
        self._volume, self._axes = volume, axes

    def _seen(self) -> tuple[Volume, Facts, tuple[int, ...]]:
        volume, facts, _ = self._volume._seen()
        return volume, facts, self._axes

    @property
    def volume(self) -> Volume:
        """The volume."""
        return self._volume

    def __reduce__(self) -> tuple[Any, ...]:
        return VolumeView, (self._volume, self._axes)

    def __repr__(self) -> str:
        return f"<ndshm.VolumeView {self._volume.url!r}: mip {self._volume.mip}, {' '.join(self.dims)}>"


def check_memory(nbytes: int) -> None:
    """Raise if so many bytes are more than the memory that this process could get."""
    if nbytes < _LARGE:
        return
    free = _core.available_memory()
    if free is not None and nbytes > free:
        raise NoSpace(
            f"{nbytes:,} bytes are needed, and {free:,} are free: read a part, as in volume[:64], or download it to a file (ndshm.download(path=))"
        )


def _in_volume(selection: list[range | int], facts: Facts, axes: tuple[int, ...]) -> list[range]:
    """Return the positions along each axis of the volume."""
    ranges = [range(1)] * len(facts.shape)
    for axis, step in zip(axes, selection, strict=True):
        ranges[axis] = step if isinstance(step, range) else range(step, step + 1)
    return ranges


def _fill(volume: Volume, facts: Facts, x: Any, ranges: list[range]) -> None:
    """Read what is at these positions, which increase, into an array."""
    skips = [axis for axis, step in enumerate(ranges) if len(step) > 1 and step.step > 1]
    region = [(begin + step.start, begin + step[-1] + 1) for begin, step in zip(facts.origin, ranges, strict=True)]
    if not skips:
        volume._read_into(region, x)
        return
    lengths = [stop - start for start, stop in region]
    if math.prod(lengths) * x.itemsize <= _DENSE:
        dense = require_numpy("reading from a volume").empty(lengths, x.dtype, facts.order)
        volume._read_into(region, dense)
        x[...] = dense[tuple(slice(None, None, step.step if len(step) > 1 else 1) for step in ranges)]
        return
    # The axis that skips the most is divided.
    axis = max(skips, key=lambda axis: ranges[axis].step)
    middle = len(ranges[axis]) // 2
    for part in (slice(None, middle), slice(middle, None)):
        of_part = [*ranges]
        of_part[axis] = ranges[axis][part]
        _fill(volume, facts, x[(slice(None),) * axis + (part,)], of_part)


def _elements(numpy: Any, value: Any, dtype: Any) -> Any:
    """Return what is to be written. A number of Python is one of the volume's type if that can represent it."""
    if not isinstance(value, int | float | complex):
        return numpy.asarray(value)
    fits = "biufc" if isinstance(value, bool) else "iufc" if isinstance(value, int) else "fc" if isinstance(value, float) else "c"
    if (dtype.kind if dtype.kind != "V" else "f") not in fits:  # bfloat16 of ml_dtypes has no kind of numpy's
        raise InvalidArgument(f"{value!r} is no element of {dtype}")
    try:
        return numpy.asarray(value, dtype)
    except OverflowError as error:
        raise InvalidArgument(f"{value!r} is no element of {dtype}: {error}") from None
