"""Times small boxes of local volumes beside peers and a bare decoder, in one warm process: one after the other, in turns, as medians of rounds.

    boxes.py --place DIRECTORY [--rounds N] [--only KIND,..]

The volumes have uint8 in chunks of 64^3: Zarr 3 raw, gzip, zstd and zstd in shards, and Precomputed raw and gzip. A box that is aligned is one
whole chunk; others begin anywhere. Every file is read before, so the disk is not measured. Nothing is cached by any of them.

The peer is tensorstore, and CloudVolume for gzip in Precomputed, which tensorstore does not find in files. `bare` reads the encoded chunks of a box
and decodes each into memory that was used before, with two threads if there is more than one chunk: nothing is assembled. Its decoders are those of
numcodecs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import tensorstore

import ndshm

SHAPE, CHUNK, SHARD = (512, 512, 256), 64, 256
KINDS: dict[str, dict[str, Any]] = {
    "raw": {"encoding": "raw"},
    "precomputed": {"format": "precomputed", "encoding": "raw"},
    "gzip": {"encoding": "gzip"},
    "precomputed-gzip": {"format": "precomputed", "encoding": "gzip"},
    "zstd": {"encoding": "zstd"},
    "sharded-zstd": {"encoding": "zstd", "shard": (SHARD,) * 3},
}
# How many boxes of each edge in a round; 0 is the whole volume.
COUNTS = {4: 60, 64: 30, 96: 20, 128: 10, 0: 1}

Region = tuple[slice, ...]


def volume(place: Path, kind: str) -> Path:
    path = place / f"boxes-{kind}"
    if not (path / "complete").exists():
        made = ndshm.create_volume(path, SHAPE, (CHUNK,) * 3, "uint8", exist_ok=True, **KINDS[kind])
        noise = np.random.default_rng(5)
        axes = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
        x = (sum(np.sin(axis / 17) for axis in axes) * 40 + 120).astype("uint8") + noise.integers(0, 16, SHAPE, "uint8")
        ndshm.upload(made, x).result()
        (path / "complete").touch()
    for file in path.rglob("*"):
        if file.is_file():
            file.read_bytes()
    return path


def peer_of(path: Path, kind: str, order: str) -> tuple[str, Callable[[Region], Any]]:
    if kind == "precomputed-gzip":
        import cloudvolume

        opened = cloudvolume.CloudVolume(f"precomputed://file://{path}", progress=False, fill_missing=False)
        return "CloudVolume", lambda region: opened[region]
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
    driver = "neuroglancer_precomputed" if kind == "precomputed" else "zarr3"
    store: Any = tensorstore.open({"driver": driver, "kvstore": f"file://{path}/"}, context=context, open=True).result()
    return "tensorstore", lambda region: store[region].read(order=order).result()


class Bare:
    """Reads and decodes chunks."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self.decode = {"gzip": numcodecs.GZip().decode, "zstd": numcodecs.Zstd().decode}.get(kind.split("-")[-1])
        self.memory = threading.local()
        self.pool = ThreadPoolExecutor(2)
        self.indices: dict[Path, Any] = {}

    def chunks(self, region: Region) -> list[tuple[Path, int, int]]:
        """Return file, offset and length of each encoded chunk."""
        numbers = [range(axis.start // CHUNK, -(-axis.stop // CHUNK)) for axis in region]
        return [self.chunk(number) for number in itertools.product(*numbers)]

    def chunk(self, number: tuple[int, ...]) -> tuple[Path, int, int]:
        if self.kind.startswith("precomputed"):
            (scale,) = (folder for folder in self.path.iterdir() if folder.is_dir())
            name = "_".join(f"{at * CHUNK}-{(at + 1) * CHUNK}" for at in number)
            path = next(path for path in (scale / name, scale / f"{name}.gz") if path.exists())
        elif self.kind.startswith("sharded"):
            side = SHARD // CHUNK
            path = self.path.joinpath("c", *(str(at // side) for at in number))
            if path not in self.indices:
                # At the end, with a checksum of 4 bytes.
                self.indices[path] = np.frombuffer(path.read_bytes()[-(16 * side**3 + 4) : -4], "<u8").reshape((side,) * 3 + (2,))
            offset, length = self.indices[path][tuple(at % side for at in number)]
            return path, int(offset), int(length)
        else:
            path = self.path.joinpath("c", *map(str, number))
        return path, 0, path.stat().st_size

    def one(self, chunk: tuple[Path, int, int]) -> None:
        path, offset, length = chunk
        if not hasattr(self.memory, "encoded"):
            self.memory.encoded, self.memory.decoded = bytearray(2 * CHUNK**3), bytearray(CHUNK**3)
        encoded = memoryview(self.memory.encoded if self.decode else self.memory.decoded)[:length]
        descriptor = os.open(path, os.O_RDONLY)
        os.preadv(descriptor, [encoded], offset)
        os.close(descriptor)
        if self.decode:
            self.decode(encoded, self.memory.decoded)

    def read(self, chunks: list[tuple[Path, int, int]]) -> None:
        if len(chunks) == 1:
            self.one(chunks[0])
        else:
            list(self.pool.map(self.one, chunks))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(KINDS))
    arguments = parser.parse_args()
    random = np.random.default_rng(3)
    for kind in arguments.only.split(","):
        path = volume(arguments.place.absolute(), kind)
        opened, bare = ndshm.Volume(path), Bare(path, kind)
        peer, read_peer = peer_of(path, kind, opened.order)
        for edge, aligned in ((4, False), (64, True), (64, False), (96, False), (128, False), (0, True)):
            count = COUNTS[edge]
            edges = (edge,) * 3 if edge else SHAPE
            starts = random.integers(0, [length - axis + 1 for length, axis in zip(SHAPE, edges, strict=True)], (count, 3))
            if aligned:
                starts = starts // CHUNK * CHUNK
            regions = [tuple(slice(int(at), int(at) + axis) for at, axis in zip(start, edges, strict=True)) for start in starts]
            chunks = {id(region): bare.chunks(region) for region in regions}
            cases: dict[str, Callable[[Region], Any]] = {
                "ndshm": lambda region, opened=opened: opened[region],
                peer: lambda region, read=read_peer: read(region),
                "bare": lambda region, bare=bare, chunks=chunks: bare.read(chunks[id(region)]),
            }
            for region in regions[:3]:
                a, b = (np.asarray(cases[name](region)) for name in ("ndshm", peer))
                assert (a.reshape(edges) == b.reshape(edges)).all()
            times: dict[str, list[float]] = {name: [] for name in cases}
            for _ in range(arguments.rounds):
                for name, read in cases.items():
                    begin = time.perf_counter()
                    for region in regions:
                        read(region)
                    times[name].append((time.perf_counter() - begin) / count)
            ours, theirs, least = (statistics.median(times[name]) for name in cases)
            best, their_best, _ = (min(times[name]) for name in cases)
            print(
                f"{kind:<17}{f'{edge}^3' if edge else 'whole':>6} {'aligned' if aligned else 'any':<8} ndshm {ours * 1e6:>8.0f} us   {peer:<11}"
                f" {theirs * 1e6:>8.0f}   bare {least * 1e6:>8.0f}   {theirs / ours:>5.2f} times the peer's rate, {least / ours:>5.2f} of the bare one"
                f"   (best rounds {best * 1e6:.0f}, {their_best * 1e6:.0f}: {their_best / best:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
