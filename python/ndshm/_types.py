"""What type checkers know of element types: ``Array[numpy.uint8]`` has guards with views of that type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    from typing_extensions import TypeVar  # Python's own has no default before 3.13

    Scalar = TypeVar("Scalar", bound=numpy.generic, default=Any)
else:
    from typing import TypeVar

    Scalar = TypeVar("Scalar")
