"""Creates, writes and reads volumes with CloudVolume, tensorstore and zarr-python, for tests that compare.

One process serves all tests, since the imports take seconds. Each question and each answer is one line of JSON:

    {"do": "write", "oracle": "cloudvolume", "volume": {..}, "kind": "noise", "seed": 1}
    {"do": "read", "oracle": .., "volume": .., "regions": [[[0, 16], ..], ..], "into": path}

A volume is {"place": {"file": path} or {"s3": {"endpoint", "bucket", "key"}}, "format", "encoding", "dtype", "shape", "chunk",
"origin"}. Elements are exchanged in files, dense, in C order, little-endian.

No oracle is trusted: it must read back the elements that it wrote before anything is compared with it.
"""

import json
import os
import sys
import tempfile
import traceback

import numpy

import content
import mirror
import oracle_cloudvolume
import oracle_tensorstore
import oracle_zarr

ORACLES = {"cloudvolume": oracle_cloudvolume, "tensorstore": oracle_tensorstore, "zarr-python": oracle_zarr}

# Elements are whole numbers from 0 to 255; the loss of smooth pictures at quality 85 or more is far below this.
JPEG_LOSS = 20


def domain(volume):
    return [[start, start + length] for start, length in zip(volume["origin"], volume["shape"])]


def read_arrays(oracle, volume, regions):
    """The elements that an oracle reads from these regions, checked for shape and converted to the volume's type."""
    module = ORACLES[oracle]
    if "s3" in volume["place"] and not module.KNOWS_S3:
        with tempfile.TemporaryDirectory() as directory:
            mirror.from_s3(volume["place"]["s3"], directory)
            arrays = list(module.read({**volume, "place": {"file": directory}}, regions))
    else:
        arrays = list(module.read(volume, regions))
    for array, bbox in zip(arrays, regions, strict=True):
        shape = tuple(end - start for start, end in bbox)
        if array.shape != shape:
            raise ValueError(f"{oracle} reads an array of shape {array.shape} instead of {shape}")
    return [numpy.asarray(array).astype(content.dtype(volume["dtype"]), copy=False) for array in arrays]


def read_all(oracle, volume):
    return read_arrays(oracle, volume, [domain(volume)])[0]


def difference(found, expected, tolerance):
    """Returns how two arrays differ, byte for byte or by more than the tolerance; "" if they are equal."""
    if tolerance:
        wrong = numpy.abs(found.astype("float64") - expected.astype("float64")) > tolerance
    else:
        size = found.dtype.itemsize
        bytes_of = lambda array: numpy.ascontiguousarray(array).reshape(-1).view("u1").reshape(*array.shape, size)
        wrong = numpy.any(bytes_of(found) != bytes_of(expected), axis=-1)
    if not wrong.any():
        return ""
    first = tuple(int(index) for index in numpy.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements differ, first {first}: {found[first]} instead of {expected[first]}"


def write(oracle, volume, kind, seed):
    array = content.content(kind, volume["dtype"], volume["shape"], seed)
    make_volume(oracle, volume, array)
    back = read_all(oracle, volume)
    wrong = difference(back, array, JPEG_LOSS if volume["encoding"] == "jpeg" else 0)
    if wrong:
        raise ValueError(f"{oracle} does not read back what it wrote: {wrong}")
    return {}


def make(oracle, volume):
    """Creates a volume without elements."""
    make_volume(oracle, volume, None)
    return {}


def make_volume(oracle, volume, array):
    module = ORACLES[oracle]
    if "s3" in volume["place"] and not module.KNOWS_S3:
        with tempfile.TemporaryDirectory() as directory:
            module.make({**volume, "place": {"file": directory}}, array)
            mirror.to_s3(directory, volume["place"]["s3"])
    else:
        module.make(volume, array)


def read(oracle, volume, regions, into):
    """Writes the elements of regions, as an oracle reads them, into a file, one region after the other."""
    with open(into, "wb") as file:
        for array in read_arrays(oracle, volume, regions):
            file.write(numpy.ascontiguousarray(array).tobytes())
    return {}


def generate(volume, kind, seed, into):
    """Writes the elements for a volume into a file."""
    content.content(kind, volume["dtype"], volume["shape"], seed).tofile(into)
    return {}


def compare(oracle, volume, expected, tolerance):
    """Compares the elements that an oracle reads with those in a file; the answer says how they differ."""
    elements = numpy.fromfile(expected, "u1").view(content.dtype(volume["dtype"])).reshape(volume["shape"])
    return {"difference": difference(read_all(oracle, volume), elements, tolerance)}


COMMANDS = {command.__name__: command for command in (write, make, read, generate, compare)}


def main():
    # Answers keep the standard output; what the oracles print goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": sorted(ORACLES)}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = COMMANDS[question.pop("do")](**question)
        except Exception as error:
            where = [f"{frame.name} line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            answer = {"error": f"{type(error).__name__}: {error} ({' > '.join(where[1:])})"}
        print(json.dumps(answer), file=answers, flush=True)


main()
