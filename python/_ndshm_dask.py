"""What dask imports whenever it is imported itself. It is outside of the package, so that dask needs neither its time nor its success."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def register_sizes(sizeof: Any) -> None:
    """Tell dask how large an `ndshm.Array` is, once dask meets an object of the package."""

    @sizeof.register_lazy("ndshm")  # type: ignore[untyped-decorator]
    def register() -> None:
        import ndshm

        sizeof.register(ndshm.Array, attrgetter("nbytes"))
