"""xarray names the axes of an array in shared memory, and selects by coordinates in nanometres. No elements are copied."""

from __future__ import annotations

import tempfile

import numpy
import xarray

import ndshm


def shared(em: xarray.DataArray, volume: ndshm.Volume, bbox: tuple[slice, ...]) -> xarray.DataArray:
    """Download a region into shared memory. The result keeps the memory attached."""
    array = ndshm.download(volume, bbox).result()
    begins = zip(bbox, volume.origin)
    part = em[tuple(slice(axis.start - begin, axis.stop - begin) for axis, begin in begins)]
    x = numpy.asarray(array)  # without a lock: nothing else writes
    result = part.copy(data=x)
    assert numpy.shares_memory(result.values, x)
    return result


def main(url: str) -> None:
    x = numpy.random.default_rng(0).integers(0, 256, (128, 128, 32), "uint8")
    volume = ndshm.create_volume(url, x.shape, (64, 64, 16), x.dtype, resolution=(4, 4, 40))
    ndshm.upload(volume, x).result()

    em = xarray.open_dataarray(url, engine="ndshm")  # names and coordinates; elements are read when they are needed
    em = shared(em, volume, numpy.s_[32:128, 0:128, 0:32]).squeeze("channel")
    print(f"{em.dtype} {dict(em.sizes)}, from x = {em.x[0].item()} {em.x.units}")
    part = em.sel(x=slice(200, 300), z=400)  # nanometres; the end belongs to it
    assert (part.values == x[50:76, :, 10]).all()
    print(f"from x = 200 nm to 300 nm, at z = 400 nm, the mean is {part.mean().item():.1f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(f"precomputed://{directory}/em")
