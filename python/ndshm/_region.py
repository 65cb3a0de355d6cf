"""Regions of volumes, in the forms in which callers may give them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from ._errors import InvalidArgument

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
