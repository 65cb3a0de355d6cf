"""Times random crops of a chunked volume in several processes, as training reads them: by this library with and without a cache, and by others.

    crops.py --place DIRECTORY [--workers N ..] [--crops N] [--epoch N] [--room FACTOR] [--only KIND ..]

The volume has 512 x 512 x 256 uint8 in zstd chunks of 64^3, Zarr 3. Each worker reads random crops of 96^3 into a new array, as a DataLoader's worker does before
it sends them; nothing is sent here. The cache is empty in the beginning and has room for 1.25 times the volume, or `--room` times; the first epoch with a cache is of `--epoch` crops,
everything else of `--crops`. `decodes` is how many chunks were decoded in all workers together, where that is known; the volume has 256. Memory is the sum of the workers'
proportional set sizes, in which memory that several processes map counts once, when all have read their crops.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

import ndshm

SHAPE, CHUNK, CROP = (512, 512, 256), 64, 96
CACHE = "bench-crops"


def opened(kind: str, path: str) -> Any:
    """Open the volume by one of the libraries."""
    if kind == "ndshm":
        return ndshm.Volume(path)
    if kind == "ndshm, cached":
        return ndshm.Volume(path, cache=ndshm.ChunkCache(CACHE))
    if kind.startswith("tensorstore"):
        import tensorstore

        limit = int(1.25 * np.prod(SHAPE)) if kind.endswith("cached") else 0
        context = tensorstore.Context({"cache_pool": {"total_bytes_limit": limit}, "data_copy_concurrency": {"limit": 1}, "file_io_concurrency": {"limit": 1}})
        return tensorstore.open({"driver": "zarr3", "kvstore": f"file://{path}/", "recheck_cached_data": "open"}, context=context, open=True).result()
    import zarr

    if kind == "zarr, cached":
        zarr.config.set({"codec_pipeline.path": "ndshm.zarr.SharedCachePipeline", "codec_pipeline.cache": ndshm.ChunkCache(CACHE)})
    elif kind == "zarrs":
        import zarrs  # noqa: F401

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": 1})
    return zarr.open_array(path, mode="r")


def work(kind: str, path: str, seed: int, count: int, barrier: Any, results: Any) -> None:
    """Read crops, and report how long it took, the processor time and a checksum."""
    volume, random = opened(kind, path), np.random.default_rng(seed)
    barrier.wait()
    begin, total = time.perf_counter(), 0
    for _ in range(count):
        region = tuple(slice(start := int(random.integers(0, length - CROP + 1)), start + CROP) for length in SHAPE)
        found = volume[region]
        if kind.startswith("tensorstore"):
            found = found.read().result()
        total += int(found[::13, ::17, ::19].sum(dtype="u8"))
    took, spent = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    barrier.wait()
    memory = next(int(line.split()[1]) for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    barrier.wait()
    results.put((took, spent.ru_utime + spent.ru_stime, total, memory / 1024))


def run(kind: str, path: str, workers: int, count: int) -> tuple[float, float, int, float]:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(workers), context.Queue()
    children = [context.Process(target=work, args=(kind, path, seed, count // workers, barrier, results)) for seed in range(workers)]
    for child in children:
        child.start()
    found = [results.get() for _ in children]
    for child in children:
        child.join()
    return max(row[0] for row in found), sum(row[1] for row in found), sum(row[2] for row in found), sum(row[3] for row in found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--crops", type=int, default=400)
    parser.add_argument("--epoch", type=int, default=10_000)
    parser.add_argument("--room", type=float, default=1.25)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    room = int(arguments.room * np.prod(SHAPE))
    path = arguments.place / "crops.zarr"
    if not (path / "complete").exists():
        made = ndshm.create_volume(path, SHAPE, (CHUNK,) * 3, "uint8", exist_ok=True, encoding="zstd")
        noise, axes = np.random.default_rng(5), np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
        x = (sum(np.sin(axis / 17) for axis in axes) * 40 + 120).astype("uint8") + noise.integers(0, 16, SHAPE, "uint8")
        made[:] = x
        (path / "complete").touch()
        time.sleep(2.5)  # files that have just changed are not cached
    for file in path.rglob("*"):
        if file.is_file():
            file.read_bytes()
    for workers in arguments.workers:
        sums: dict[int, set[int]] = {}
        turns = [(kind, arguments.crops, False) for kind in ("zarr", "zarrs", "tensorstore", "ndshm")]
        turns.append(("tensorstore, cached", arguments.epoch, False))  # in each worker, anew with each run
        for kind in ("ndshm, cached", "zarr, cached"):
            turns += [(kind, arguments.epoch, True), (kind, arguments.crops, False)]
        for kind, count, is_first in turns:
            if arguments.only and kind not in arguments.only:
                continue
            cache = None
            if kind in ("ndshm, cached", "zarr, cached"):
                if is_first:
                    ndshm.ChunkCache(CACHE, room).unlink()
                cache = ndshm.ChunkCache(CACHE, room)
                before = cache.inspect().fills
            seconds, spent, total, memory = run(kind, str(path), workers, count)
            sums.setdefault(count, set()).add(total)
            decodes = "" if cache is None else f", {cache.inspect().fills - before} decodes, {cache.inspect().waits} waits"
            print(
                f"{workers} workers, {kind:20}{count:6} crops {count / seconds:8.1f} crops/s {spent / count * 1e3:8.2f} CPU ms each {memory:7.0f} MiB{decodes}",
                flush=True,
            )
        assert all(len(found) == 1 for found in sums.values()), "the libraries read different elements"
        ndshm.ChunkCache(CACHE).unlink()


if __name__ == "__main__":
    main()
