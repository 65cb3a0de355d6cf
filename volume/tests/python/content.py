"""Elements from seeds: one definition for every format, store and program."""

import ml_dtypes
import numpy

def dtype(name):
    """The numpy type of a name; "bfloat16" is one that numpy itself does not know."""
    return numpy.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def content(kind, name, shape, seed):
    """An array of this kind: noise cannot be compressed, smooth is like an image, labels are boxes of equal elements.

    One corner of labels is 0 and larger than a chunk, so that writers leave chunks out.
    """
    kind_of = {"noise": noise, "smooth": smooth, "labels": labels, "filled": filled}[kind]
    array = numpy.ascontiguousarray(kind_of(dtype(name), tuple(shape), seed))
    assert array.shape == tuple(shape) and array.dtype == dtype(name)
    if numpy.count_nonzero(array) * 2 < array.size:
        raise ValueError(f"{kind} {name} {shape} is mostly 0, like a volume that was not read at all")
    return array


def random(kind, shape, seed):
    generator = numpy.random.Generator(numpy.random.PCG64(seed))
    count = int(numpy.prod(shape)) * kind.itemsize
    if kind.kind == "b":
        # Three of four elements are true.
        return (numpy.frombuffer(generator.bytes(count), "u1") % 4 > 0).reshape(shape)
    return numpy.frombuffer(generator.bytes(count), kind).reshape(shape)


def noise(kind, shape, seed):
    return random(kind, shape, seed)


def smooth(kind, shape, seed):
    axes = numpy.meshgrid(*(numpy.arange(length) for length in shape), indexing="ij")
    wave = sum(numpy.sin((0.5 + axis) / (9 + number) + seed) for number, axis in enumerate(axes))
    wave = 0.5 + wave / (2 * len(shape))
    if kind.kind in "iu":
        limits = numpy.iinfo(kind)
        # Beyond 2^53 a float64 cannot represent every integer.
        low, high = max(limits.min, -(2**53)), min(limits.max, 2**53)
        return (low + wave * (float(high) - low)).astype(kind)
    if kind.kind == "c":
        return (wave - 2j * wave).astype(kind)
    return (wave.astype("float32") - 0.25).astype(kind)


def labels(kind, shape, seed):
    values = random(kind, tuple(-(-length // 19) for length in shape), seed)
    for axis, length in enumerate(shape):
        values = numpy.repeat(values, 19, axis=axis).take(range(length), axis=axis)
    values[tuple(slice(length // 2) for length in shape)] = 0
    return values


def fill_value(name):
    """The value of elements that were never written, where it is not 0. For one type it is NaN, which is not equal to itself."""
    kind = dtype(name)
    if kind.kind == "c":
        return kind.type(1.5 - 2j)
    if name == "float32":
        return kind.type("nan")
    return kind.type(7 if kind.kind in "iu" else 1.5)


def filled(kind, shape, seed):
    values = labels(kind, shape, seed)
    values[tuple(slice(length // 2) for length in shape)] = fill_value(kind.name)
    return values
