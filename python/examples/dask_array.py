"""Dask computes with an array in shared memory, in threads and in processes.

Give dask the `ndshm.Array` itself: `dask.array.from_array` copies a numpy array such as `numpy.asarray(array)`.
"""

from __future__ import annotations

import pickle

import dask.array
import numpy

import ndshm


def main() -> None:
    array = ndshm.share_zeros((64, 512, 512), "uint8")
    # Each task copies its own chunk, under the read lock. The graph has no elements, only the array or, in processes, its handle.
    # Without name=False dask takes an array with the same handle for one with the same elements.
    x = dask.array.from_array(array, chunks=(16, 512, 512), name=False)
    assert len(pickle.dumps(array)) < 1000

    with array.write() as view:  # after the graph was made: all tasks see it
        view[...] = numpy.arange(64, dtype="uint8")[:, None, None]
    for scheduler in ("threads", "processes"):
        mean = x.mean().compute(scheduler=scheduler)
        assert mean == 31.5
        print(f"{scheduler}: the mean is {mean}")

    # Each process writes its chunk into shared memory, under the write lock. Nothing comes back through a pipe.
    inverted = ndshm.share_zeros(array.shape, array.dtype)
    dask.array.store(255 - x, inverted, lock=False, scheduler="processes")
    assert (inverted[...] == 255 - array[...]).all()
    print(f"processes inverted {inverted.nbytes >> 20} MiB in shared memory")


if __name__ == "__main__":  # dask's processes import this file
    main()
    ndshm.in_flight.clear()  # frees the arrays now, and not when the handles that dask got expire
