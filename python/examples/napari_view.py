"""napari shows an array in shared memory without a copy, while another process writes to it.

This needs neither a display nor Qt. With both, `napari.Viewer()` instead of `ViewerModel()` and `napari.run()` at the end show a window.
"""

from __future__ import annotations

import multiprocessing

import numpy
from napari.components import ViewerModel

import ndshm


def paint(array: ndshm.Array) -> None:
    array[16:32] = 200


def main() -> None:
    array = ndshm.share_zeros((64, 256, 256), "uint8")
    x = numpy.asarray(array)  # the same memory, without a lock: a picture may be half new
    viewer = ViewerModel()
    # With contrast_limits napari does not read all elements to find the limits.
    layer = viewer.add_image(x, name="em", scale=(40, 4, 4), contrast_limits=(0, 255))
    assert numpy.shares_memory(layer.data, x)

    viewer.dims.set_point(0, 20 * 40)  # nanometres: image 20
    before = layer.get_value((20, 128, 128))
    painter = multiprocessing.get_context("spawn").Process(target=paint, args=(array,))
    painter.start()
    painter.join()
    layer.refresh()  # a window is drawn anew only then
    after = layer.get_value((20, 128, 128))
    assert (before, after) == (0, 200)
    print(f"{viewer.layers[0].name}: {before} before, {after} after another process wrote")


if __name__ == "__main__":
    main()
