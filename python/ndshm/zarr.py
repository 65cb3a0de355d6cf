"""Chunks that zarr-python has decoded, shared by all processes of this user: each chunk is decoded once per machine.

A program gets it by its configuration alone:

>>> import zarr  # doctest: +SKIP
>>> zarr.config.set({"codec_pipeline.path": "ndshm.zarr.SharedCachePipeline", "codec_pipeline.cache": "16GiB"})  # doctest: +SKIP

or by the environment: ``ZARR_CODEC_PIPELINE__PATH=ndshm.zarr.SharedCachePipeline`` and ``NDSHM_CHUNK_CACHE=16GiB``. Arrays that are opened
from then on read through the cache.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import math
import operator
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import numpy as np
from zarr import config
from zarr.abc.codec import Codec, CodecPipeline
from zarr.codecs import ShardingCodec
from zarr.codecs._v2 import V2Codec
from zarr.core.common import concurrent_map

from . import _core
from ._caches import ChunkCache, nbytes_of
from ._errors import InvalidArgument
from ._zarr_places import File, Object, Place, Version, place_of

__all__ = ["SharedCachePipeline"]

# How long a chunk is waited for that another process decodes, in seconds.
_PATIENCE = 5.0
# How many versions of objects an open array remembers, 350 bytes each.
_REMEMBERED = 1 << 17
_MIB = 1 << 20
# How many pieces of a shard are claimed at once, because the kernel walks a list of all locks of a file, and how many bytes they may have,
# because all are in memory before they are kept.
_AT_ONCE = 128
_BYTES_AT_ONCE = 64 * _MIB

# A chunk that is asked for, as zarr gives it: where its bytes are, what it is, which elements of it go where, and whether these are all.
_Item = tuple[Any, Any, Any, Any, bool]
_Region = tuple[slice, ...]


@dataclass(frozen=True)
class SharedCachePipeline(CodecPipeline):
    """A codec pipeline of zarr-python that keeps decoded chunks in a `ChunkCache`.

    Chunks that are in the cache are copied from it. All others zarr's own pipeline reads and decodes, in one process while others wait for it.
    Of a sharded array the inner chunks are cached.

    In a ``LocalStore``, a chunk is taken from the cache only if its file still has the device, inode, length and times that it had when it was
    decoded: this is asked at each access, so changes by any program are seen at once.

    Behind a server, a chunk is taken from the cache only if the server names the entity tag, length and time that it named when it was decoded. An
    array that was opened for reading asks once for each chunk or shard, without its bytes; what is changed later is seen by arrays that are opened
    afterwards. An array that can be written asks at each access. Such stores are a ``FsspecStore`` over ``s3fs.S3FileSystem`` or fsspec's
    ``HTTPFileSystem``, and an ``ObjectStore`` over obstore's ``S3Store`` or ``HTTPStore``. Servers without strong entity tags pass by, and so do clients
    with headers or parameters of their own and URLs with a query. Of shards, the tags before and after reading must be equal: behind mirrors that do
    not agree, that is no proof.

    Everything else (other stores, since their keys may mean other bytes in another process; objects and strings, since their size is not fixed;
    memory of other devices; files that changed less than 2 s before, and objects of web servers that did less than a minute before) passes by, as
    without the cache. Writes pass by, too.

    The cache is the configuration's ``codec_pipeline.cache``: an `ndshm.ChunkCache`, or the size of this user's cache in bytes or as text. Without
    it, the environment variable ``NDSHM_CHUNK_CACHE`` gives the size; ``0`` is without a cache. ``codec_pipeline.inner`` names the pipeline
    that reads and decodes, if that is not zarr's default.

    Raises
    ------
    InvalidArgument
        Neither the configuration nor the environment names a cache.
    Mismatch
        This user's cache exists with another size.
    NoSpace, PermissionDenied
        It cannot be made.
    """

    inner: CodecPipeline
    given: Any = field(default=None, repr=False, compare=False)
    """The cache of a pipeline that was pickled, if the configuration here has none."""
    known: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec], **options: Any) -> SharedCachePipeline:
        """Make a pipeline of these codecs."""
        return cls(_inner_class().from_codecs(codecs, **options))

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Any) -> SharedCachePipeline:
        """Make a pipeline for this array, if the inner pipeline is made so."""
        return cls(_inner_class().from_array_metadata_and_store(array_metadata, store))

    def evolve_from_array_spec(self, array_spec: Any) -> SharedCachePipeline:
        """Return the pipeline for arrays of this kind."""
        return type(self)(self.inner.evolve_from_array_spec(array_spec), self.given)

    def __iter__(self) -> Iterator[Codec]:
        return iter(cast("Iterable[Codec]", self.inner))

    @property
    def supports_partial_decode(self) -> bool:
        """Whether a part of a chunk is decoded without the rest."""
        return self.inner.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """Whether a part of a chunk is written without the rest."""
        return self.inner.supports_partial_encode

    def validate(self, **facts: Any) -> None:
        """Refuse codecs that do not fit the array."""
        self.inner.validate(**facts)

    def compute_encoded_size(self, byte_length: int, array_spec: Any) -> int:
        """Return the length of an encoded chunk."""
        return self.inner.compute_encoded_size(byte_length, array_spec)

    async def decode(self, chunk_bytes_and_specs: Iterable[tuple[Any, Any]]) -> Iterable[Any]:
        """Decode chunks, without the cache."""
        return await self.inner.decode(chunk_bytes_and_specs)

    async def encode(self, chunk_arrays_and_specs: Iterable[tuple[Any, Any]]) -> Iterable[Any]:
        """Encode chunks."""
        return await self.inner.encode(chunk_arrays_and_specs)

    async def write(self, batch_info: Iterable[_Item], value: Any, drop_axes: tuple[int, ...] = ()) -> None:
        """Write chunks, without the cache. Readers see by their versions that they have changed."""
        await self.inner.write(batch_info, value, drop_axes)

    async def read(self, batch_info: Iterable[_Item], out: Any, drop_axes: tuple[int, ...] = ()) -> Any:
        """Read chunks into ``out``, through the cache where that is possible."""
        batch = list(batch_info)
        places = [] if self._codecs is None else [await place_of(getter) for getter, *_ in batch]
        cache = _cache(self.given) if any(places) else None
        if cache is None:
            return await self.inner.read(batch, out, drop_axes)
        limit = config.get("async.concurrency")
        await concurrent_map([(place,) for place in places if isinstance(place, Object) and self._must_ask(place)], self._ask, limit)
        reading = _Reading(self, cache, batch, places, out.as_ndarray_like(), drop_axes)
        # In a thread, because copying blocks the loop, which all threads of the program share.
        parts = await asyncio.to_thread(reading.find_all)
        busy = await concurrent_map([(part,) for part in parts], reading.fill, limit)
        reading.patience_ends = time.monotonic() + _PATIENCE
        await concurrent_map([(piece,) for piece in itertools.chain.from_iterable(busy)], reading.wait_for, limit)
        results: list[Any] = [{"status": "present"}] * len(batch)
        rest = sorted(reading.rest)
        if rest:
            reads: Callable[..., Awaitable[Any]] = self.inner.read  # which answers None before zarr 3.2
            answers = await reads([batch[number] for number in rest], out, drop_axes)
            for number, answer in zip(rest, answers or (), strict=False):
                results[number] = answer
        return tuple(results)

    # Not a `cached_property`: before Python 3.12 that has a lock, which a forked child could inherit locked.
    @property
    def _codecs(self) -> bytes | None:
        """What the codecs are and which classes decode them, as text; None if that is not known."""
        if "codecs" not in self.known:
            try:
                self.known["codecs"] = json.dumps([_described(codec) for codec in self], sort_keys=True).encode()
            except (AttributeError, NotImplementedError, TypeError, ValueError):
                self.known["codecs"] = None
        text: bytes | None = self.known["codecs"]
        return text

    @property
    def _sharding(self) -> ShardingCodec | None:
        """The codec of the shards, if all there is to decode is in it."""
        if "sharding" not in self.known:
            codecs = list(self)
            self.known["sharding"] = codecs[0] if len(codecs) == 1 and type(codecs[0]) is ShardingCodec else None
        sharding: ShardingCodec | None = self.known["sharding"]
        return sharding

    @property
    def _versions(self) -> dict[str, Version | None]:
        """The versions of objects that servers were asked for since the array was opened."""
        versions: dict[str, Version | None] = self.known.setdefault("versions", {})
        return versions

    def _must_ask(self, place: Object) -> bool:
        # An array that can be written is changed by its own process, by more ways than `write`.
        if not place.getter.store.read_only:
            return True
        known = self._versions.get(place.name)
        return not known.is_settled if known is not None else place.name not in self._versions

    async def _ask(self, place: Object) -> Version | None:
        return self._remember(place, await place.ask())

    def _remember(self, place: Object, version: Version | None) -> Version | None:
        if len(self._versions) >= _REMEMBERED:
            self._versions.clear()
        self._versions[place.name] = version
        return version

    def __reduce__(self) -> tuple[Any, ...]:
        # With what this program's configuration says about the cache: a worker may have another one.
        wanted = config.get("codec_pipeline.cache", None)
        return type(self), (self.inner, self.given if wanted is None else wanted)


class _Piece(NamedTuple):
    """What is cached under one key: a chunk or, of a shard, an inner chunk."""

    number: int
    """Which item of the batch it is of."""
    key: bytes
    region: _Region
    """Where it is in the item's chunk."""


class _Part(NamedTuple):
    """Pieces of one item that are not in the cache."""

    place: Place
    version: bytes
    pieces: list[_Piece]


class _Reading:
    """One call of `SharedCachePipeline.read`."""

    def __init__(
        self,
        pipeline: SharedCachePipeline,
        cache: _core.RawCache,
        batch: list[_Item],
        places: list[Place | None],
        out: Any,
        drop_axes: tuple[int, ...],
    ) -> None:
        self.pipeline, self.cache, self.batch, self.places = pipeline, cache, batch, places
        self.out, self.drop_axes = out, drop_axes
        self.rest = set[int]()
        """Items that the inner pipeline reads."""
        self.patience_ends = 0.0
        """When a process that has claimed a piece is no longer waited for."""

    def find_all(self) -> list[_Part]:
        """Copy what is in the cache, and return what is not."""
        parts = list[_Part]()
        for number, (_, spec, selection, target, _) in enumerate(self.batch):
            piece_shape = self._piece_shape(spec)
            place = self.places[number]
            found = None if place is None or piece_shape is None else self._version_of(place)
            regions = None if found is None or piece_shape is None else self._regions(spec, selection, target, piece_shape)
            if place is None or found is None or regions is None:
                self.rest.add(number)
                continue
            version, is_settled = found
            dtype = spec.dtype.to_native_dtype()
            seed = blake2b(self.pipeline._codecs or b"", digest_size=16)
            seed.update(os.fsencode(place.name) + f"\0{spec.shape}\0{dtype!r}\0{spec.order}\0{spec.fill_value!r}\0".encode())
            missed = list[_Piece]()
            for region in regions:
                digest = seed.copy()
                digest.update(repr([(axis.start, axis.stop) for axis in region]).encode())
                piece = _Piece(number, digest.digest(), region)
                if not self._use_found(piece, self.cache.find(piece.key, self._length(piece), version)):
                    missed.append(piece)
            if missed and not is_settled:
                self.rest.add(number)
            elif missed:
                many = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // self._length(missed[0])))
                parts += [_Part(place, version, missed[at : at + many]) for at in range(0, len(missed), many)]
        return parts

    async def fill(self, part: _Part) -> list[tuple[_Piece, bytes]]:
        """Decode pieces that no other process decodes now. Return the others, with the version."""
        claimed, busy = list[tuple[_Piece, _core.RawKeyClaim]](), list[tuple[_Piece, bytes]]()
        try:
            for piece in part.pieces:
                got = self.cache.claim(piece.key, self._length(piece), part.version, 0.0)
                if isinstance(got, _core.RawKeyClaim):
                    claimed.append((piece, got))
                elif not self._use_found(piece, got):
                    busy.append((piece, part.version))
                del got  # what was found is held until then
            if claimed:
                await self._decode(part, claimed)
        finally:
            for _, claim in claimed:
                claim.release()
        return busy

    async def wait_for(self, busy: tuple[_Piece, bytes]) -> None:
        """Wait for a piece that another process decodes. Nothing is claimed meanwhile, so that no two processes wait for each other."""
        piece, version = busy
        if piece.number in self.rest:
            return
        # Together, and again after each that came: a process that is stopped holds up a read once, whatever it has claimed.
        patience = max(0.0, self.patience_ends - time.monotonic())
        loop = asyncio.get_running_loop()
        got = await loop.run_in_executor(_waiters(), self.cache.claim, piece.key, self._length(piece), version, patience)
        if got is not None:
            self.patience_ends = time.monotonic() + _PATIENCE
        if isinstance(got, _core.RawKeyClaim):
            try:
                place = self.places[piece.number]
                assert place is not None, "it was claimed"
                await self._decode(_Part(place, version, [piece]), [(piece, got)])
            finally:
                got.release()
        elif got is None:
            self.rest.add(piece.number)
        else:
            await asyncio.to_thread(self._use_found, piece, got)

    async def _decode(self, part: _Part, claimed: Sequence[tuple[_Piece, _core.RawKeyClaim]]) -> None:
        """Read and decode claimed pieces of one item, use them, and keep them if the file did not change meanwhile."""
        number = claimed[0][0].number
        getter, spec, *_ = self.batch[number]
        sharding = self.pipeline._sharding
        arrays, decoded = list[Any](), list[Any]()
        after: Version | None = None
        if sharding is None:
            if isinstance(part.place, Object):
                fetched = await part.place.fetch(spec.prototype)
                if fetched is None:
                    self.rest.add(number)  # whatever it is, zarr will say it
                    return
                encoded, after = fetched
                self.pipeline._remember(part.place, after)
            else:
                encoded = await getter.get(prototype=spec.prototype)
            arrays += await self.pipeline.inner.decode([(encoded, spec)])
        else:
            boxes = _boxes([piece.region for piece, _ in claimed])
            decoded += await sharding.decode_partial([(getter, box, spec) for box in boxes])
            if len(boxes) < len(claimed) and decoded[0] is not None:
                whole: Any = decoded[0].as_ndarray_like()
                arrays = [whole[_within(piece.region, boxes[0])] for piece, _ in claimed]
            else:
                arrays = decoded
        if any(array is None for array in arrays):  # the file has gone
            self.rest.add(number)
            return
        if isinstance(part.place, File):
            after = part.place.version()
        elif sharding is not None:
            after = await self.pipeline._ask(part.place)
        is_kept = after is not None and after.digest == part.version

        def keep() -> None:
            for (piece, claim), array in zip(claimed, arrays, strict=True):
                elements: Any = array.as_ndarray_like() if hasattr(array, "as_ndarray_like") else array
                dtype = spec.dtype.to_native_dtype()
                if elements.shape != self._shape(piece) or not np.can_cast(elements.dtype, dtype, "equiv"):
                    self.rest.add(number)  # not what the codecs should make of it
                    continue
                elements = np.asarray(elements, dtype, order="C")
                if is_kept:
                    claim.publish(elements.reshape(-1).view(np.uint8))
                claim.release()
                self._use(piece, elements)

        await asyncio.to_thread(keep)

    def _version_of(self, place: Place) -> Version | None:
        return place.version() if isinstance(place, File) else self.pipeline._versions.get(place.name)

    def _piece_shape(self, spec: Any) -> tuple[int, ...] | None:
        """Return the shape of what is cached of a chunk, or None if that passes by."""
        dtype = spec.dtype.to_native_dtype()
        if type(self.out) is not np.ndarray or self.out.dtype != dtype or dtype.hasobject or not dtype.itemsize:
            return None
        sharding = self.pipeline._sharding
        shape = tuple(spec.shape) if sharding is None else tuple(sharding.chunk_shape)
        length = math.prod(shape) * dtype.itemsize
        return shape if 0 < length <= min(64 * _MIB, self.cache.nbytes // 4) else None

    def _regions(self, spec: Any, selection: Any, target: Any, piece_shape: tuple[int, ...]) -> list[_Region] | None:
        """Return the pieces of a chunk in which the selected elements are, or None if the selection is not made of ranges."""
        if self.pipeline._sharding is None:
            return [tuple(slice(0, length) for length in spec.shape)]
        axes = _ranges(selection, spec.shape)
        if axes is None or self.drop_axes or not all(isinstance(axis, slice) for axis in _as_tuple(target, 0)):
            return None
        starts = [
            range(axis.start // step * step, axis.stop, step) if axis.stop > axis.start else range(0)
            for axis, step in zip(axes, piece_shape, strict=True)
        ]
        return [
            tuple(slice(start, start + step) for start, step in zip(corner, piece_shape, strict=True)) for corner in itertools.product(*starts)
        ]

    def _shape(self, piece: _Piece) -> tuple[int, ...]:
        return tuple(axis.stop - axis.start for axis in piece.region)

    def _length(self, piece: _Piece) -> int:
        return math.prod(self._shape(piece)) * int(self.batch[piece.number][1].dtype.to_native_dtype().itemsize)

    def _use_found(self, piece: _Piece, chunk: memoryview | None) -> bool:
        """Copy the selected elements of a chunk, if it was found."""
        if chunk is None:
            return False
        dtype = self.batch[piece.number][1].dtype.to_native_dtype()
        self._use(piece, np.frombuffer(chunk, dtype).reshape(self._shape(piece)))
        return True

    def _use(self, piece: _Piece, elements: Any) -> None:
        """Copy the selected elements of a piece into the result."""
        _, spec, selection, target, _ = self.batch[piece.number]
        if self.pipeline._sharding is None:
            chosen = elements[selection]
            self.out[target] = chosen.squeeze(axis=self.drop_axes) if self.drop_axes else chosen
            return
        axes = _ranges(selection, spec.shape)
        assert axes is not None, "other selections pass by"
        chosen, places = list[Any](), list[slice]()
        for axis, cell, asked in zip(axes, piece.region, _as_tuple(selection, len(spec.shape)), strict=True):
            begin, end = max(axis.start, cell.start), min(axis.stop, cell.stop)
            if isinstance(asked, slice):
                chosen.append(slice(begin - cell.start, end - cell.start))
                places.append(slice(begin - axis.start, end - axis.start))
            else:
                chosen.append(begin - cell.start)
        if places:
            self.out[target][tuple(places)] = elements[tuple(chosen)]
        else:
            self.out[target] = elements[tuple(chosen)]


def _described(codec: Any) -> Any:
    """Return what a codec does to a chunk, and which class does it."""
    kind = f"{type(codec).__module__}.{type(codec).__qualname__}"
    if type(codec) is V2Codec:  # all codecs of an array in zarr's format 2
        filters: Any = codec.filters or ()
        compressor: Any = codec.compressor
        return [kind, [part.get_config() for part in filters], compressor and compressor.get_config()]
    return [kind, codec.to_dict()]


def _as_tuple(selection: Any, axes: int) -> tuple[Any, ...]:
    axes_of: Any = selection
    given: tuple[Any, ...] = tuple(axes_of) if isinstance(selection, tuple) else (axes_of,)
    return given + (slice(None),) * (axes - len(given))


def _ranges(selection: Any, shape: Sequence[int]) -> _Region | None:
    """Return a selection as one range per axis, or None if it is no such thing."""
    ranges = list[slice]()
    selected = _as_tuple(selection, len(shape))
    if len(selected) != len(shape):
        return None
    for axis, length in zip(selected, shape, strict=True):
        if isinstance(axis, slice):
            start, stop, step = axis.indices(length)
            if step != 1:
                return None
            ranges.append(slice(start, max(start, stop)))
        else:
            try:
                at = operator.index(axis)
            except TypeError:
                return None  # an array of numbers
            ranges.append(slice(at, at + 1))
    return tuple(ranges)


def _boxes(regions: Sequence[_Region]) -> list[_Region]:
    """Return one box around all regions if most of it is asked for, so that the shard is read once. Otherwise the regions."""
    box = tuple(slice(min(axis.start for axis in axes), max(axis.stop for axis in axes)) for axes in zip(*regions, strict=True))

    def volume(region: _Region) -> int:
        return math.prod(axis.stop - axis.start for axis in region)

    return [box] if volume(box) <= 2 * sum(map(volume, regions)) else list(regions)


def _within(region: _Region, box: _Region) -> _Region:
    return tuple(slice(axis.start - around.start, axis.stop - around.start) for axis, around in zip(region, box, strict=True))


def _inner_class() -> type[CodecPipeline]:
    path = config.get("codec_pipeline.inner", "zarr.core.codec_pipeline.BatchedCodecPipeline")
    module, _, name = path.rpartition(".")
    return cast("type[CodecPipeline]", getattr(importlib.import_module(module), name))


# The cache of each size that was asked for: a program has one.
_caches = dict[int, _core.RawCache]()


def _cache(given: Any) -> _core.RawCache | None:
    """Return the cache that the configuration, a pickled pipeline or the environment names, or None if it says that there is none."""
    wanted: Any = config.get("codec_pipeline.cache", None)
    wanted = given if wanted is None else wanted
    if isinstance(wanted, ChunkCache):
        return wanted._raw
    if wanted is None or wanted == "":
        wanted = os.environ.get("NDSHM_CHUNK_CACHE", "")
    if wanted == "":
        raise InvalidArgument(
            'the pipeline ndshm.zarr.SharedCachePipeline needs a cache: set NDSHM_CHUNK_CACHE=16GiB, or zarr.config.set({"codec_pipeline.cache": "16GiB"})'
        )
    size = nbytes_of(wanted)
    if size and size not in _caches:
        _caches[size] = _core.RawCache(None, size)
    return _caches[size] if size else None


# Threads that wait for other processes. Not zarr's own, in which the chunks are decoded that this process has claimed.
_waiting: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _waiters() -> ThreadPoolExecutor:
    global _waiting
    with _lock:
        if _waiting is None:
            _waiting = ThreadPoolExecutor(16, "ndshm-wait")
        return _waiting


def _forget_waiters() -> None:
    """Forget the threads of the parent, which a forked child does not have."""
    global _waiting, _lock
    _waiting, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_waiters)
