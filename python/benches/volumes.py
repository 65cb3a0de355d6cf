"""Times downloads from Python beside CloudVolume, tensorstore and the program `ndshm`, in one warm process, and prints a table.

    volumes.py --place DIRECTORY [--quick]

The cases of a table take turns. Medians of seven rounds, after one that does not count. Every file is read before, so the disk is not
measured. The peers read the same Precomputed volume. tensorstore does not find gzip chunks in files, so it is timed with raw ones only.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from cloudvolume import CloudVolume

import ndshm
from ndshm import _program

ROUNDS = 7
CHUNK = (64, 64, 64)
RAW, GZIP, LONG = (1024, 1024, 512), (512, 512, 256), (1024, 1024, 1024)
QUICK = {RAW: (256, 256, 256), GZIP: (128, 128, 128), LONG: (256, 256, 256)}
WORKERS = os.cpu_count() or 1


def volume(place: Path, kind: str, shape: tuple[int, ...]) -> str:
    """Create a volume, if it is not there, and read all of its files."""
    path = place / f"{kind}-{'x'.join(map(str, shape))}"
    url = f"precomputed://file://{path}"
    if not (path / "complete").exists():
        made = ndshm.create_volume(url, shape, CHUNK, "uint8", encoding=kind, exist_ok=True)
        noise = np.random.default_rng(5)
        for start in range(0, shape[0], 64):
            # Smooth with a little noise, which gzip halves, as it does pictures of tissue.
            axes = np.ogrid[start : start + 64, 0 : shape[1], 0 : shape[2]]
            x = (sum(np.sin(axis / 17) for axis in axes) * 40 + 120).astype("uint8") + noise.integers(0, 16, (64, *shape[1:]), "uint8")
            ndshm.upload(made, x, np.s_[start : start + 64, :, :, :], encoding=kind).result()
        (path / "complete").touch()
    for file in path.rglob("*"):
        if file.is_file():
            file.read_bytes()
    return url


def ours(url: str, **how: Any) -> Callable[[], float]:
    opened = ndshm.Volume(url)

    def case() -> float:
        begin = time.perf_counter()
        array = ndshm.download(opened, name=f"bench-{os.getpid()}", order="F", **how).result()
        seconds = time.perf_counter() - begin
        array.unlink()
        return seconds

    return case


def program(url: str, inner: bool) -> Callable[[], float]:
    """The program's whole process, or what it says that the download itself took."""
    path, name = _program.path(), f"bench-{os.getpid()}"
    assert path is not None

    def case() -> float:
        begin = time.perf_counter()
        out = subprocess.run([path, "download", url, name, "--order", "f", "--json", "--quiet"], check=True, capture_output=True).stdout
        seconds = time.perf_counter() - begin
        ndshm.unlink(name)
        return float(json.loads(out)["seconds"]) if inner else seconds

    return case


def of_cloudvolume(url: str, parallel: int) -> Callable[[], float]:
    opened = CloudVolume(url, parallel=parallel, progress=False, cache=False, lru_bytes=0)
    location = f"bench-cloudvolume-{os.getpid()}"

    def case() -> float:
        begin = time.perf_counter()
        image = opened.download_to_shared_memory(opened.bounds, location)
        seconds = time.perf_counter() - begin
        del image
        os.unlink(f"/dev/shm/{location}")
        return seconds

    return case


def store_of(url: str) -> Any:
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
    spec = {"driver": "neuroglancer_precomputed", "kvstore": url.removeprefix("precomputed://") + "/"}
    return tensorstore.open(spec, context=context, open=True).result()


def of_tensorstore(url: str) -> Callable[[], float]:
    """Into memory of its own."""
    store = store_of(url)

    def case() -> float:
        begin = time.perf_counter()
        x = store.read(order="F").result()
        seconds = time.perf_counter() - begin
        del x
        return seconds

    return case


def boxes(url: str, shape: tuple[int, ...], is_raw: bool) -> dict[str, Callable[[], float]]:
    """A hundred boxes of 128^3, one after the other."""
    starts = np.random.default_rng(3).integers(0, [max(length - 128, 1) for length in shape], (100, 3))
    opened, store = ndshm.Volume(url), store_of(url)
    cloud = CloudVolume(url, parallel=1, progress=False, cache=False, lru_bytes=0)
    regions = [tuple(slice(int(start), min(int(start) + 128, length)) for start, length in zip(row, shape, strict=True)) for row in starts]

    def timed(read: Callable[[tuple[slice, ...]], Any]) -> Callable[[], float]:
        def case() -> float:
            begin = time.perf_counter()
            for region in regions:
                read(region)
            return time.perf_counter() - begin

        return case

    peers = {"tensorstore, private memory": timed(lambda region: store[region].read(order="F").result())} if is_raw else {}
    return {
        "ndshm": timed(lambda region: ndshm.download(opened, region, order="F").result()),
        "ndshm, volume[..], private memory": timed(lambda region: opened[region]),
        "ndshm, all begun at once": lambda: timed_together(opened, regions),
        "CloudVolume, private memory": timed(lambda region: cloud[region]),
        **peers,
    }


def timed_together(opened: ndshm.Volume, regions: list[tuple[slice, ...]]) -> float:
    begin = time.perf_counter()
    for download in [ndshm.download(opened, region, order="F", workers=1) for region in regions]:
        download.result()
    return time.perf_counter() - begin


def table(title: str, cases: dict[str, Callable[[], float]], nbytes: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(ROUNDS + 1):
        for name, case in cases.items():
            gc.collect()
            seconds = case()
            if turn:
                times[name].append(seconds)
    print(f"\n{title}")
    own = statistics.median(times["ndshm"])
    for name, all_times in times.items():
        middle = statistics.median(all_times)
        print(
            f"  {name:<44}{middle * 1e3:>9.1f} ms ({min(all_times) * 1e3:.1f} to {max(all_times) * 1e3:.1f}) "
            f"{nbytes / middle / 1e9:>6.2f} GB/s {middle / own:>7.3f} x"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    sizes = {size: QUICK[size] if arguments.quick else size for size in QUICK}
    for kind, size in (("raw", RAW), ("gzip", GZIP)):
        shape = sizes[size]
        url = volume(arguments.place, kind, shape)
        peers = {"tensorstore, private memory": of_tensorstore(url)} if kind == "raw" else {}
        table(
            f"{kind}, {int(np.prod(shape)) >> 20} MiB, chunks of 64^3, into shared memory unless it says otherwise",
            {
                "ndshm": ours(url),
                "ndshm, one thread": ours(url, workers=1),
                f"ndshm, {WORKERS} processes": ours(url, workers=WORKERS, processes=True),
                "CloudVolume, parallel=1": of_cloudvolume(url, 1),
                f"CloudVolume, parallel={WORKERS}": of_cloudvolume(url, WORKERS),
                **peers,
            },
            int(np.prod(shape)),
        )
    shape = sizes[RAW]
    for kind, size in (("raw", RAW), ("gzip", GZIP)):
        shape = sizes[size]
        table(f"{kind}, 100 boxes of 128^3", boxes(volume(arguments.place, kind, shape), shape, kind == "raw"), 100 * min(128**3, int(np.prod(shape))))
    url = volume(arguments.place, "gzip", sizes[LONG])
    table(
        f"gzip, {int(np.prod(sizes[LONG])) >> 20} MiB: the package and the program",
        {"program, its download": program(url, True), "ndshm": ours(url), "program, its whole process": program(url, False)},
        int(np.prod(sizes[LONG])),
    )


if __name__ == "__main__":  # CloudVolume spawns processes that import this file
    main()
