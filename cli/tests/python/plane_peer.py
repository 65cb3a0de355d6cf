"""Reads a plane of a volume with CloudVolume, zarr-python or tensorstore: `plane_peer.py KIND PATH Z` prints its rows, from x to x, as hexadecimal digits.

Z is a coordinate of the volume. KIND is `precomputed`, `zarr` (the axes follow, as in `zyx`) or `n5`.
"""

import sys


def plane(kind, path, z, axes):
    if kind == "precomputed":
        from cloudvolume import CloudVolume

        volume = CloudVolume(f"precomputed://file://{path}", progress=False, cache=False, parallel=1)
        return volume[:, :, z][:, :, 0, 0].T  # it has the axes x, y, z, channel
    if kind == "n5":
        import tensorstore

        volume = tensorstore.open({"driver": "n5", "kvstore": {"driver": "file", "path": path}}).result()
        return volume[:, :, z].read().result().T
    import zarr

    volume = zarr.open_array(path, mode="r")
    axes = list(axes)
    cut = tuple(z if axis == "z" else 0 if axis == "c" else slice(None) for axis in axes)
    left = [axis for axis in axes if axis in "xy"]
    found = volume[cut]
    return found.T if left == ["x", "y"] else found


kind, path, z, axes = sys.argv[1:]
print(bytes(plane(kind, path, int(z), axes).astype("u1").tobytes()).hex())
