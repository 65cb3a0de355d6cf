"""Regions of volumes and of arrays, in the forms in which callers may give them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from ._errors import InvalidArgument, InvalidType

#: A region in the coordinates of a volume: text such as ``"0:64,:,5:9"``, a slice for each axis, or an object with the corners ``minpt``
#: and ``maxpt``. None is all of the volume.
RegionLike: TypeAlias = str | slice | Sequence[slice] | Any | None


def text_of(region: RegionLike) -> str | None:
    """Return a region as the library reads it. None stays None."""
    if region is None or isinstance(region, str):
        return region
    corners: Any = region
    if hasattr(corners, "minpt") and hasattr(corners, "maxpt"):
        return ",".join(f"{int(start)}:{int(stop)}" for start, stop in zip(corners.minpt, corners.maxpt, strict=True))
    axes: Any = (region,) if isinstance(region, slice) else region
    return ",".join(map(_axis, axes))


def _axis(axis: Any) -> str:
    ends: Any = axis
    if not isinstance(axis, slice):
        raise InvalidArgument(
            f"{axis!r} is not a slice: give a slice for each axis, such as numpy.s_[0:64, :, 5:6], or text such as '0:64,:,5:6'"
        )
    if ends.step not in (None, 1):
        raise InvalidArgument(f"{axis!r} has a step: regions have none")
    return ":".join("" if end is None else str(operator.index(end)) for end in (ends.start, ends.stop))


def slices_of(ends: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    """Return a region as slices."""
    return tuple(slice(start, stop) for start, stop in ends)


def region_of(index: Any, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, list[int], list[int]]:
    """Return offset, lengths and strides of a region of an array, as numpy's basic indexing has them. The unit is that of `strides`."""
    offset, lengths, distances = 0, list[int](), list[int]()
    for step, stride in zip(selection_of(index, shape), strides, strict=True):
        if isinstance(step, range):
            count = len(step)
            offset += step.start * stride if count else 0
            lengths.append(count)
            # One element has no distance to the next, and a step may be longer than memory.
            distances.append(step.step * stride if count > 1 else stride)
        else:
            offset += step * stride
    # Where there are no elements, an index along another axis may lie behind the memory.
    return 0 if 0 in lengths else offset, lengths, distances


def selection_of(index: Any, shape: Sequence[int]) -> list[range | int]:
    """Return what numpy's basic indexing selects along each axis: the positions, or one position of an axis that the result lacks."""
    steps: list[Any] = [*index] if isinstance(index, tuple) else [index]
    if sum(step is ... for step in steps) > 1:
        raise IndexError(f"{index!r} has more than one `...`")
    given = sum(step is not ... for step in steps)
    if given > len(shape):
        raise IndexError(f"{index!r} has {given} positions, and the array has {len(shape)} axes")
    rest = [slice(None)] * (len(shape) - given)
    if given < len(steps):
        at = next(position for position, step in enumerate(steps) if step is ...)
        steps[at : at + 1] = rest
    else:
        steps += rest
    selection = list[range | int]()
    for axis, (step, length) in enumerate(zip(steps, shape, strict=True)):
        if isinstance(step, slice):
            selection.append(range(*step.indices(length)))
        else:
            position = _position(step, index)
            if not -length <= position < length:
                raise IndexError(f"{position} is outside of axis {axis}, which has {length} elements")
            selection.append(position % length)
    return selection


def _position(step: Any, index: Any) -> int:
    advice = f"{index!r} is no region of an array: give integers and slices, such as numpy.s_[5, :, ::2]; array[index] copies other elements"
    if isinstance(step, bool) or getattr(step, "ndim", 0) != 0:
        raise InvalidType(advice)
    try:
        return operator.index(step)
    except TypeError:
        raise InvalidType(advice) from None
