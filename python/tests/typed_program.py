"""A program with the common calls, as its author's type checker sees it. mypy and pyright check it in their strict modes, and a test runs it."""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import ndshm

Bytes = ndshm.Array[np.uint8]


def fill(x: NDArray[np.uint8], region: tuple[slice, ...]) -> None:
    x[...] = region[0].start


def rows(array: Bytes) -> Iterator[Bytes]:
    yield from array.parts(axis=0)


async def brightest(array: Bytes) -> int:
    async with array.read(timeout=5) as x:
        return int(x.max())


def images(name: str) -> None:
    array = assert_type(ndshm.create(name, (8, 16), np.uint8), Bytes)
    same: Bytes = ndshm.create(name, (8, 16), np.dtype(np.uint8), exist_ok=True)
    with same.write(timeout=1) as x:
        x[:] = 3
        x[2:4, ::2] = np.arange(8)
    with array.read() as view:
        assert view.dtype == np.uint8 and view[3, 4] == 2
    array += 1
    assert_type(array, Bytes)
    assert_type(ndshm.open(name, (8, 16), np.uint8), Bytes)
    doubled: NDArray[Any] = array * 2
    assert doubled[3, 4] == 6 and array.sum() == int(doubled.sum()) // 2 and array[3, 4] == 3
    assert {part.shape for part in rows(array)} == {(16,)} and asyncio.run(brightest(array)) == 8
    named: ndshm.Array = ndshm.open(name, dtype="uint8", timeout=5)
    assert named.name in {row.name for row in ndshm.ls()} and named.notes == {}
    ndshm.unlink(name)


def volumes(place: Path) -> None:
    volume = ndshm.create_volume(place / "em", (8, 16), (4, 4), np.uint8, encoding="zstd", resolution=(4, 40))
    shared = assert_type(ndshm.share(np.full((8, 16), 5, np.uint8)), Bytes)
    report = ndshm.upload(volume, shared).result()
    work: ndshm.Download = ndshm.download(volume, np.s_[0:4, 8:16])
    piece = work.result(timeout=60)
    assert report.stored == 8 and (piece == 5).all() and piece.shape == (4, 8) and work.progress.done == 2
    assert [scale.shape for scale in ndshm.info(volume).scales] == [(8, 16)]


def painting(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, (8, 16), (4, 16), np.uint8, exist_ok=True)
    for claim in buffer.claims():
        with claim as x:
            fill(x, claim.region)
    with buffer.finish() as array:
        assert array[7, 0] == 4 and ndshm.attached(name)
    ndshm.unlink(name)


def streaming(name: str) -> None:
    with ndshm.Stream.create(name, (8, 16), np.uint8, slots=4, meta={"gain": "float32", "stage": ("int32", 2)}) as out:
        assert_type(out, ndshm.StreamWriter[np.uint8])
        cam: ndshm.StreamReader[np.uint8] = ndshm.Stream.open(name, cursor="disk", backpressure="wait", timeout=5)
        with out.frame(timeout=1) as new:
            new.x[:] = 3
            new.meta["gain"] = 0.5
        number: int = out.send(np.full((8, 16), 4, np.uint8), stage=(1, 2))
        kept: list[NDArray[np.uint8]] = []
        assert select.select([cam], [], [], 5)[0] == [cam]
        for frame in cam:
            assert_type(frame, ndshm.Frame[np.uint8])
            kept.append(frame.x)
            cam.ack(frame.number)
            if frame.number == number:
                break
        assert [int(x[0, 0]) for x in kept] == [3, 4] and ndshm.Stream.inspect(name).head == 2


if __name__ == "__main__":
    streaming(sys.argv[1])
    images(sys.argv[1])
    painting(sys.argv[1])
    volumes(Path(sys.argv[2]))
