"""tifffile decodes a stack of images straight into shared memory, without a second array."""

from __future__ import annotations

import tempfile

import numpy
import tifffile

import ndshm


def main(path: str) -> None:
    x = numpy.random.default_rng(0).integers(0, 65536, (16, 256, 256), "uint16")
    tifffile.imwrite(path, x, photometric="minisblack", compression="zlib")

    with tifffile.TiffFile(path) as file:
        shape, dtype = file.series[0].shape, file.series[0].dtype
    array = ndshm.share_zeros(shape, dtype)
    with array.write() as view:  # other processes that read the array wait for the end
        tifffile.imread(path, out=view)

    assert (array[...] == x).all()
    print(f"read {path}: {array!r}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"{directory}/stack.tif")
