"""Dividing the work on a volume among machines: parts of a region, and markers of finished parts.

The machines do not talk to each other. Each computes the same parts, does its own, and writes a marker when it is done.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core
from ._errors import InvalidArgument
from ._job import run
from ._region import RegionLike, slices_of, text_of
from ._volumes import VolumeLike, _absolute, _target

__all__ = ["Markers", "Shard", "from_environment", "plan"]


class Shard(NamedTuple):
    """One of several parts, counted from 0."""

    part: int
    parts: int


def plan(volume: VolumeLike, bbox: RegionLike, count: int, *, mip: int | None = None) -> list[tuple[slice, ...] | None]:
    """Divide a region into parts with about the same number of stored objects each.

    No two parts touch the same stored object, so that they can be written at the same time. The result is the same on every
    machine.

    Parameters
    ----------
    volume, bbox, mip
        As for `ndshm.download`.
    count
        The number of parts.

    Returns
    -------
    list
        A region for each part. If there are fewer objects than parts, the last parts are None.
    """
    if count < 1:
        raise InvalidArgument(f"count={count}: a region has at least one part")
    target, _ = _target(volume, mip)
    parts = run(target.plan(text_of(bbox), count))
    return [None if part is None else slices_of(part) for part in parts]


def from_environment(count: int | None = None) -> Shard:
    """Return the part of this process, from the variables of SLURM (an array task) or Kubernetes (a pod of an Indexed Job).

    Parameters
    ----------
    count
        The number of parts. Needed under Kubernetes, which has no variable for it.

    Raises
    ------
    InvalidArgument
        The variables do not determine the part.
    """
    return Shard(*_core.shard_from_environment(count))


class Markers:
    """The markers of one work: small objects in a directory or store that say which parts are finished.

    Parameters
    ----------
    place
        A directory or URL for the markers.
    work
        A line that identifies the work among all that have markers in this place, such as source and destination of a copy.
    bbox
        The whole region that is divided: each range with both ends.
    """

    __slots__ = ("_bbox", "_place", "_work")

    def __init__(self, place: Any, work: str, bbox: RegionLike) -> None:
        text = text_of(bbox)
        if text is None:
            raise InvalidArgument("markers need the whole region, with both ends of each range")
        self._place, self._work, self._bbox = _absolute(place), work, text

    def write(self, shard: Shard, part: RegionLike = None, nbytes: int = 0) -> None:
        """Record that a part is finished. Call it after the part's data was stored.

        Parameters
        ----------
        shard
            The part.
        part, nbytes
            Its region and its size in bytes, for people who read the marker.
        """
        run(_core.write_marker(self._place, shard.part, shard.parts, self._work, self._bbox, text_of(part), nbytes))

    def missing(self, count: int) -> list[Shard]:
        """Return the parts, of this many, that are not finished."""
        return [Shard(part, count) for part in run(_core.missing_markers(self._place, count, self._work, self._bbox))]
