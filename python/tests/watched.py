"""An array that notes its locks."""

from __future__ import annotations

from typing import Any

import ndshm


class Watched(ndshm.Array[Any]):
    """Notes each lock in `locks`, a list that all such arrays share."""

    __slots__ = ()
    locks: list[tuple[str, ndshm.Array]] = []

    def read(self, timeout: float | None = None) -> ndshm.Guard[Any]:
        self.locks.append(("read", self))
        return super().read(timeout)

    def write(self, timeout: float | None = None) -> ndshm.Guard[Any]:
        self.locks.append(("write", self))
        return super().write(timeout)


def watched(array: ndshm.Array) -> Watched:
    """Return the same memory as an array that notes its locks."""
    return Watched(array._part_at(0, array.shape, array.strides))
