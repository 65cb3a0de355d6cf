"""Reads and writes what plain arrays of ndarray-shm say about themselves. Python 3.9 or later on Linux."""

import math
import os

ATTRIBUTE = "user.ndshm"
LONGEST = 3500
ITEM = {"|u1": 1, "<u2": 2, "<u4": 4, "<u8": 8, "|i1": 1, "<i2": 2, "<i4": 4, "<i8": 8, "<f2": 2, "<f4": 4, "<f8": 8,
        "bfloat16": 2, "<c8": 8, "<c16": 16}


def description(fd):
    """What an open file says: a dict with "dtype", "shape", "order", "bytes" and its notes, or None."""
    try:
        lines = os.getxattr(fd, ATTRIBUTE).decode().split("\n")
        head, dtype, shape, order, length = lines[:5]
        if head != "ndshm 1" or lines.pop() or dtype[:6] != "dtype " or shape[:5] != "shape":
            return None
        if order not in ("order C", "order F") or length[:6] != "bytes ":
            return None
        found = dict(line.split(" ", 1) for line in lines[5:])
        axes = tuple(int(length) for length in shape.split(" ")[1:])
        found |= {"dtype": dtype[6:], "shape": axes, "order": order[6:], "bytes": int(length[6:])}
        is_true = ITEM[found["dtype"]] * math.prod(found["shape"]) == found["bytes"] == os.fstat(fd).st_size
        return found if is_true else None
    except (OSError, ValueError, KeyError):  # none, no room for any, or not one of ours
        return None


def describe(fd, dtype, shape, order="C", **notes):
    """Describes an open file of elements. OSError: files have no attributes here."""
    length = ITEM[dtype] * math.prod(shape)
    if length != os.fstat(fd).st_size:
        raise ValueError(f"{dtype} of shape {shape} is {length} bytes")
    lines = ["ndshm 1", f"dtype {dtype}", " ".join(["shape", *map(str, shape)]), f"order {order}", f"bytes {length}"]
    lines += [f"{key} {text}" for key, text in notes.items()]
    text = "".join(f"{line}\n" for line in lines).encode()
    if len(text) > LONGEST:
        raise ValueError("too many notes")
    os.setxattr(fd, ATTRIBUTE, text)
