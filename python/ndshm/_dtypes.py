"""Names of element types: the names that callers may use, and the library's own name for each."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from ._errors import InvalidArgument
from ._guard import optional_numpy, require_numpy
from ._imports import importing

if TYPE_CHECKING:
    import numpy

_NAMES = {
    "uint8": "|u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "bfloat16": "bfloat16",
    "complex64": "<c8",
    "complex128": "<c16",
    "bool": "|b1",
    "float": "<f8",
    "complex": "<c16",
}
_KNOWN = frozenset(_NAMES.values())
# The first name of each is numpy's.
_SHOWN = {code: name for name, code in reversed(_NAMES.items())}
_BUILTINS: dict[type, str] = {float: "<f8", int: "<i8", bool: "|b1", complex: "<c16"}


def shown(code: str) -> str:
    """Return numpy's name of an element type of the library, such as ``uint8``."""
    return _SHOWN.get(code, code)


def numpy_dtype(name: str) -> numpy.dtype[Any]:
    """Return numpy's dtype of an element type of the library. `bfloat16` is that of ``ml_dtypes``, or ``uint16`` without that package."""
    found: Any = name
    if name == "bfloat16":
        try:
            with importing("ml_dtypes"):
                from ml_dtypes import bfloat16 as found
        except ImportError:
            found = "<u2"
    result: numpy.dtype[Any] = require_numpy("dtype").dtype(found)
    return result


def refuse_all_but_bits(dtype: Any, value: Any) -> None:
    """Raise if numbers would be written to elements of `bfloat16` that appear as bits: numpy would store 1.0 as the bits 0x0001."""
    if dtype.name != "bfloat16" and require_numpy("bfloat16").asarray(value).dtype != dtype:
        raise InvalidArgument(
            "numpy cannot convert numbers to bfloat16: `pip install ml_dtypes`, or write the bits, as an array of uint16"
        )


def refuse_mask(x: Any) -> None:
    """Raise if an array has a mask, which would be dropped."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(x, masked.MaskedArray):
        raise InvalidArgument(
            "the array has a mask, and shared memory has room for its elements only: give x.filled(value), and share numpy.ma.getmaskarray(x) too"
        )


def shareable(dtype: Any) -> bool:
    """Return whether a numpy dtype is the same after it was stored by name. ``bfloat16`` would become ``uint16``."""
    return dtype.isbuiltin == 1 and dtype.str in _KNOWN


def name_of(dtype: Any) -> str:
    """Return the library's name of a dtype: what numpy accepts as one, or ``"bfloat16"``. Without numpy, a name.

    Raises
    ------
    InvalidArgument
        The dtype is big-endian, structured, or not supported.
    """
    if isinstance(dtype, type) and dtype in _BUILTINS:
        return _BUILTINS[dtype]
    text = dtype
    if isinstance(dtype, type) and isinstance(getattr(dtype, "dtype", None), object) and not isinstance(dtype, str):
        # A numpy scalar type has the name of its dtype, as in `numpy.float32`. `numpy.bool` is named `bool`, formerly `bool_`.
        text = dtype.__name__.rstrip("_")
    elif type(dtype).__module__ == "torch":
        text = str(dtype).removeprefix("torch.")
    elif not isinstance(dtype, str):
        if getattr(dtype, "names", None) is not None:
            raise InvalidArgument(f"the dtype {dtype} is structured: share each of its fields as an array of its own")
        text = "bfloat16" if getattr(dtype, "name", None) == "bfloat16" else getattr(dtype, "str", None)
    if not isinstance(text, str):
        raise InvalidArgument(f"{dtype!r} is no dtype: give a name such as 'float32', or a numpy dtype")
    if text in _NAMES:
        return _NAMES[text]
    if text in _KNOWN:
        return text
    if text.startswith(">"):
        raise InvalidArgument(
            f"the dtype {text!r} is big-endian, and shared arrays are little-endian: convert with `x.astype({'<' + text[1:]!r})`"
        )
    # Short names without a byte order, such as `f4`.
    for mark in "<|":
        if mark + text in _KNOWN:
            return mark + text
    # What only numpy can read: "f", "=f4", `numpy.longlong`.
    module = sys.modules.get("numpy") or optional_numpy()
    with contextlib.suppress(TypeError, ValueError):
        if module is not None and (text := module.dtype(dtype).str) in _KNOWN:
            return text
    raise InvalidArgument(f"the dtype {dtype!r} is not supported: use one of {', '.join(sorted(_NAMES))}")
