"""Times small boxes of local volumes beside tensorstore, in one warm process: one after the other, in turns, and as medians of rounds.

    boxes.py --place DIRECTORY [--rounds N]

The volumes have uint8 in chunks of 64^3: Zarr 3, raw and zstd, and Precomputed, raw. A box that is aligned is one whole chunk; others begin anywhere.
Every file is read before, so the disk is not measured. Nothing is cached by either.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

import ndshm

SHAPE, CHUNK = (512, 512, 256), 64


def volume(place: Path, kind: str) -> Path:
    path = place / f"boxes-{kind}"
    if not (path / "complete").exists():
        how: dict[str, Any] = {"format": "precomputed"} if kind == "precomputed" else {"encoding": kind}
        made = ndshm.create_volume(path, SHAPE, (CHUNK,) * 3, "uint8", exist_ok=True, **how)
        noise = np.random.default_rng(5)
        axes = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
        x = (sum(np.sin(axis / 17) for axis in axes) * 40 + 120).astype("uint8") + noise.integers(0, 16, SHAPE, "uint8")
        ndshm.upload(made, x).result()
        (path / "complete").touch()
    for file in path.rglob("*"):
        if file.is_file():
            file.read_bytes()
    return path


def store_of(path: Path, kind: str) -> Any:
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})
    driver = "neuroglancer_precomputed" if kind == "precomputed" else "zarr3"
    spec = {"driver": driver, "kvstore": f"file://{path}/"}
    return tensorstore.open(spec, context=context, open=True).result()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    random = np.random.default_rng(3)
    for kind in ("raw", "precomputed", "zstd"):
        path = volume(arguments.place, kind)
        opened, store = ndshm.Volume(path), store_of(path, kind)
        order = opened.order
        for edge, aligned in ((4, False), (64, True), (64, False), (128, False)):
            count = {4: 60, 64: 30, 128: 10}[edge]
            starts = random.integers(0, [length - edge for length in SHAPE], (count, 3))
            if aligned:
                starts = starts // CHUNK * CHUNK
            regions = [tuple(slice(int(at), int(at) + edge) for at in start) for start in starts]
            cases: dict[str, Callable[[Any], Any]] = {
                "ndshm": lambda region, opened=opened: opened[region],
                "tensorstore": lambda region, store=store, order=order: store[region].read(order=order).result(),
            }
            for region in regions[:3]:
                a, b = (read(region) for read in cases.values())
                assert (a == b).all()
            times: dict[str, list[float]] = {name: [] for name in cases}
            for _ in range(arguments.rounds):
                for name, read in cases.items():
                    begin = time.perf_counter()
                    for region in regions:
                        read(region)
                    times[name].append((time.perf_counter() - begin) / count)
            ours, theirs = (statistics.median(times[name]) for name in cases)
            best, their_best = (min(times[name]) for name in cases)
            print(
                f"{kind:<12}{edge:>4}^3 {'aligned' if aligned else 'any':<8} ndshm {ours * 1e6:>8.0f} us   tensorstore {theirs * 1e6:>8.0f} us   "
                f"{theirs / ours:>5.2f} times its rate   (best rounds {best * 1e6:.0f}, {their_best * 1e6:.0f}: {their_best / best:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
