"""CloudVolume's own reads of Precomputed volumes through a cache. What could differ is left to CloudVolume."""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

from . import _volumes
from ._caches import ChunkCache
from ._cloudvolume_plans import Plan, cached_plan_of, cloudvolume, description_of, has_certain_files
from ._errors import Cancelled, NdshmError
from ._guard import require_numpy

# The arguments of `PrecomputedImageSource.download`, beside the region, scale and `parallel`, with which it is
# replaced, and their values. None stands for any value.
_KNOWN: dict[str, tuple[Any, ...] | None] = {"renumber": (False,), "label": (None,), "order": ("F",), "progress": None}


class _Opened(NamedTuple):
    """A scale of a CloudVolume that was opened here."""

    volume: _volumes.Volume
    # The description that CloudVolume had in memory, which was the stored one, and the URL.
    described: tuple[str, str]
    # The value of chunks that are not stored.
    missing: str | float


class CachedReads:
    """Reads of CloudVolume's image sources through one cache."""

    def __init__(self, cache: ChunkCache) -> None:
        self._cache = cache
        # By image source, which lives as long as its CloudVolume, and scale. Without a lock, which a forked child could
        # inherit locked: two threads may open the same scale, and one of both stays.
        self._opened: weakref.WeakKeyDictionary[Any, dict[int, _Opened]] = weakref.WeakKeyDictionary()

    def instead_of(self, original: Any) -> Any:
        """Return a method that reads through the cache where it can, and else calls the original one."""

        @functools.wraps(original)
        def download(image: Any, bbox: Any, mip: Any, parallel: Any = 1, *rest: Any, **others: Any) -> Any:
            if not rest and all(name in _KNOWN and _is_one_of(value, _KNOWN[name]) for name, value in others.items()):
                found = self.read(image, bbox, mip, parallel, others.get("progress"))
                if found is not None:
                    return found
            return original(image, bbox, mip, parallel, *rest, **others)

        return download

    def read(self, image: Any, bbox: Any, mip: Any, parallel: Any, progress: Any) -> Any:
        """Return a region as CloudVolume would, or None if CloudVolume is to read it."""
        try:
            return self._read(image, bbox, mip, parallel, progress)
        except Cancelled:
            raise
        except NdshmError:
            return None  # CloudVolume reads what can be read, or raises its own exception

    def _read(self, image: Any, bbox: Any, mip: Any, parallel: Any, progress: Any) -> Any:
        numpy, lib = require_numpy("CloudVolume"), cloudvolume("lib")
        if not isinstance(bbox, lib.Bbox) or not isinstance(mip, int | numpy.integer) or not isinstance(parallel, int) or parallel < 1:
            return None
        mip = int(mip)
        found = self._open(image, mip)
        if found is None:
            return None
        volume, plan = found
        meta = image.meta
        bbox = bbox.convert_units("vx", meta.resolution(mip))
        bounds = meta.bounds(mip)
        if image.autocrop:
            bbox = lib.Bbox.intersection(bbox, bounds)
        if bbox.ndim != 3 or not numpy.issubdtype(bbox.dtype, numpy.integer):
            return None
        begin, end = [int(x) for x in bbox.minpt], [int(x) for x in bbox.maxpt]
        first = [max(a, int(b)) for a, b in zip(begin, bounds.minpt, strict=True)]
        last = [min(a, int(b)) for a, b in zip(end, bounds.maxpt, strict=True)]
        # CloudVolume answers in several ways when nothing of the region is in the volume.
        if any(a >= b for a, b in zip(first, last, strict=True)):
            return None
        is_inside = (first, last) == (begin, end)
        if image.bounded and not is_inside:
            return None  # an error of CloudVolume
        lengths = [b - a for a, b in zip(begin, end, strict=True)]
        is_one = lengths == [1, 1, 1]
        if is_one and plan.channels > 1:
            return None  # CloudVolume puts the channels elsewhere
        if parallel > 1 and plan.background != 0:
            return None  # CloudVolume's worker processes put the background elsewhere
        region = tuple(slice(a, b) for a, b in zip(first, last, strict=True))
        if not has_certain_files(plan, image, region):
            return None
        shape = (*lengths, plan.channels)
        if plan.background != 0:
            x = numpy.full(shape, plan.background, meta.dtype, "F")
        else:
            x = (numpy.empty if is_inside else numpy.zeros)(shape, meta.dtype, "F")
        window = x[tuple(slice(a - at, b - at) for a, b, at in zip(first, last, begin, strict=True))]
        self._fill(volume, (*region, slice(0, plan.channels)), window, image.config.progress if progress is None else progress)
        if is_one and not image.is_sharded(mip):
            return x  # CloudVolume gives a plain array
        return cloudvolume("volumecutout").VolumeCutout.from_volume(meta, mip, x, bbox)

    def _open(self, image: Any, mip: int) -> tuple[_volumes.Volume, Plan] | None:
        """Return a scale that is opened, and how it is read; or None if it is left to CloudVolume."""
        described = (str(image.meta.cloudpath), description_of(image.meta.info, mip))
        opened = self._opened.get(image, {}).get(mip)
        plan = cached_plan_of(image, mip, opened is not None and opened.described == described)
        if isinstance(plan, str):
            return None
        if opened is None or (opened.described, opened.missing) != (described, plan.missing):
            # A comparison at each access: CloudVolume sees what it has written itself, and so does this.
            volume = _volumes.Volume(plan.url, mip, missing=plan.missing, cache=self._cache, recheck=True)
            opened = _Opened(volume, described, plan.missing)
            self._opened.setdefault(image, {})[mip] = opened
        return opened.volume, plan

    @staticmethod
    def _fill(volume: _volumes.Volume, region: tuple[slice, ...], x: Any, progress: Any) -> None:
        if not progress:
            volume.read(region, out=x)
            return
        work = _volumes.download(volume, region, out=x, progress=True)
        work.warns = False  # `fill_missing` says that nothing need be stored
        work.result()


def _is_one_of(value: Any, known: tuple[Any, ...] | None) -> bool:
    """Return whether an argument has one of these values. A truth value and a number are different ones."""
    return known is None or any(type(value) is type(one) and value == one for one in known)
