"""A notebook user: cells run again and again in one process, with an event loop that is running.

Follows docs/guide/python.md, "Volumes".
"""

from __future__ import annotations

from pathlib import Path

import small_shm

CELLS = """
import ast
import asyncio
import os

import numpy

import ndshm

cells = {
    "volume": '''
em = ndshm.create_volume("em.zarr", (50, 1024, 1024), (50, 256, 256), "uint8", encoding="zstd", exist_ok=True)
await ndshm.upload(em, numpy.ones((50, 256, 256), "uint8"), ":,:256,:256")
''',
    "download": "array = await ndshm.download(em)",
    "look": "shown = array, array._repr_html_(), array[3, ::100, 7]",
    "paint": "ndshm.download(em, out=array).result()",
    "broken": "array = await ndshm.download(em, '0:99,:,:')",
}
names = {"ndshm": ndshm, "numpy": numpy}


async def run(cell):
    code = compile(cells[cell], cell, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (found := eval(code, names)) is not None:
        await found


async def main():
    await run("volume")
    for _ in range(7):  # more than the memory has room for
        await run("download")
        await run("look")
        await run("paint")
        try:
            await run("broken")
        except ndshm.InvalidArgument as error:
            print(error)


asyncio.run(main())
print(os.listdir("/dev/shm"), os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_bsize >> 20)
names.clear()
print(os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_bsize >> 20)
"""


def test_cells_that_run_again_free_what_they_replace(tmp_path: Path) -> None:
    *errors, left, free = small_shm.run(CELLS, tmp_path)
    assert len(errors) == 7 and len(set(errors)) == 1 and "axis 0 ends at 50" in errors[0]
    assert left == "[] 249"  # one array, which has no name
    assert free == "300"
