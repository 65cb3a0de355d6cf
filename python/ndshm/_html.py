"""What notebooks show: tables, and the middle plane of an array as a picture."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from ._errors import NdshmError
from ._guard import optional_numpy
from ._imports import importing

if TYPE_CHECKING:
    from ._array import Array

# The longest side of a picture, in pixels.
_SIDE = 256


def table(rows: Mapping[str, str]) -> str:
    """Return a table with a row for each property."""
    return f"<table>{''.join(f'<tr><th>{escape(key)}</th><td>{escape(text)}</td></tr>' for key, text in rows.items())}</table>"


def grid(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table with a row for each thing, and its properties in columns."""
    lines = [f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def lengths(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape)) or "()"


def picture(array: Array) -> str:
    """Return the middle plane of an array as a picture in grey, or nothing.

    There is none if the array is locked, since a picture is not worth a wait, if it has no plane, or without the package pillow, which matplotlib brings.
    """
    numpy = optional_numpy()
    plane = _plane(array)
    if numpy is None or plane is None:
        return ""
    try:
        with array.read(timeout=0) as x:
            elements = numpy.array(x[plane])
    except (NdshmError, ValueError):
        return ""
    if _is_transposed(array):
        elements = elements.T
    return _image(elements, numpy)


def _axes(array: Array) -> tuple[int, int] | None:
    """Return which axes are the rows and columns of a picture: y and x by their names, otherwise those that are contiguous."""
    names = [name.lower() for name in array.axes]
    if "y" in names and "x" in names:
        return names.index("y"), names.index("x")
    # A last axis of a few elements is one of colours or channels.
    count = array.ndim - (array.ndim > 2 and array.shape[-1] <= 4)
    if count < 2:
        return None
    return (1, 0) if array.order == "F" else (count - 2, count - 1)


def _plane(array: Array) -> tuple[int | slice, ...] | None:
    """Return the index of the middle plane, with steps that leave few enough elements."""
    axes = _axes(array)
    if axes is None or not array.size or _has_holes(array) or array.dtype_name.startswith(("complex", "bfloat")):
        return None
    step = -(-max(array.shape[axis] for axis in axes) // _SIDE)
    return tuple(slice(None, None, step) if axis in axes else length // 2 for axis, length in enumerate(array.shape))


def _has_holes(array: Array) -> bool:
    """Return whether the array has no memory for some elements: reading them would take it."""
    try:
        with importing():  # for the class of paths
            place = array.directory
        facts = os.stat(place / array.name) if array.name else None
    except OSError:
        return False  # it has no name any more, and is not read
    return getattr(facts, "st_blocks", array.nbytes) * 512 < array.nbytes


def _is_transposed(array: Array) -> bool:
    axes = _axes(array)
    return axes is not None and axes[0] > axes[1]


def _image(x: Any, numpy: Any) -> str:
    x = x.astype("float64")
    known = x[numpy.isfinite(x)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    # Halves, since the difference of two numbers may be too large for one.
    scaled = (x / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
    scaled = numpy.nan_to_num(scaled, nan=0.0, posinf=1.0, neginf=0.0)
    png = _png((scaled.clip(0, 1) * 255).astype("uint8"))
    if png is None:
        return ""
    # Small planes are enlarged, without blurring their elements.
    scale = max(1, _SIDE // 2 // max(x.shape))
    style = f"image-rendering: pixelated; width: {x.shape[1] * scale}px; height: {x.shape[0] * scale}px"
    text = base64.b64encode(png).decode("ascii")
    return f'<img alt="middle plane, {low:g} black, {high:g} white" style="{style}" src="data:image/png;base64,{text}">'


def _png(pixels: Any) -> bytes | None:
    file = io.BytesIO()
    with importing():  # also while pillow saves, when it imports formats
        try:
            from PIL import Image  # matplotlib needs it too
        except ImportError:
            return None
        Image.fromarray(pixels).save(file, "png")
    return file.getvalue()
