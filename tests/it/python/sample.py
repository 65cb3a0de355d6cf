"""The elements of test arrays; tests/it/interop/sample.rs computes the same ones."""

import numpy as np

WIDE = 65521
NARROW = 251
WIDER = {4: 65537, 8: 281474976710597}


def storage(dtype):
    """Returns the numpy type for a type's name. numpy has no bfloat16: its bits travel as an integer."""
    return np.dtype("<u2" if dtype == "bfloat16" else dtype)


def axes(shape):
    """Parses a shape in the tests' notation, such as 5,6,7."""
    return tuple(int(length) for length in shape.split(","))


def sample(shape, dtype, seed):
    """Returns the sample array: an element depends on its number in C order, whatever the order in memory."""
    number = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) * 3 + int(seed)
    wide, narrow = number % WIDE, number % NARROW
    kind, size = storage(dtype).kind, storage(dtype).itemsize
    if dtype == "bfloat16":
        return (((narrow - 125) * 0.5).astype("<f4").view("<u4") >> 16).astype("<u2")
    if kind == "u" or kind == "i":
        middle = {1: 125, 2: 32760}.get(size, 32760) if kind == "i" else 0
        small = (narrow if size == 1 else wide) - middle
        return small.astype(dtype) * np.array(WIDER.get(size, 1), dtype)
    if kind == "c":
        real = (wide - 32760) * 0.5
        return (real + 1j * (-1 - real)).astype(dtype)
    return (((narrow - 125) if size == 2 else (wide - 32760)) * 0.5).astype(dtype)


def compare(found, dtype, seed):
    """Returns "same", or the place of the first difference."""
    expected = sample(found.shape, dtype, seed)
    different = np.argwhere(found != expected)
    if len(different) == 0:
        return "same"
    at = tuple(int(place) for place in different[0])
    return f"{len(different)} differ, first {at}: {found[at]!r} instead of {expected[at]!r}"
