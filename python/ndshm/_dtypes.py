"""Names of element types: the names that callers may use, and the library's own name for each."""

from __future__ import annotations

from typing import Any

from ._errors import InvalidArgument

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
}
_KNOWN = frozenset(_NAMES.values())
_BUILTINS: dict[type, str] = {float: "<f8", int: "<i8", bool: "|b1", complex: "<c16"}


def shareable(dtype: Any) -> bool:
    """Return whether a numpy dtype is the same after it was stored by name. ``bfloat16`` would become ``uint16``."""
    return dtype.isbuiltin == 1 and dtype.str in _KNOWN


def name_of(dtype: Any) -> str:
    """Return the library's name of a dtype: a numpy dtype or scalar type, a name, or ``bool``, ``int``, ``float``, ``complex``.

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
    raise InvalidArgument(f"the dtype {text!r} is not supported: use one of {', '.join(sorted(_NAMES))}")
