"""A double of torch's storages, so that what torch's tensors rest on is tested where torch is not installed.

It is as strict as torch 2.15: a storage of a buffer keeps the buffer, has its address, and cannot be resized; `_swap_data_ptr_` exchanges
everything but the objects.
"""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np

_numbers = itertools.count(1)
uint8 = "uint8"


class UntypedStorage:
    """Bytes that are private, or those of a buffer."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, size: int = 0, memory: Any = None) -> None:
        self._memory = np.zeros(size, "u1") if memory is None else memory
        self._is_resizable = memory is None
        self._cdata = next(_numbers)

    def nbytes(self) -> int:
        return int(self._memory.nbytes)

    def data_ptr(self) -> int:
        return int(self._memory.ctypes.data) if self._memory.size else 0

    def resizable(self) -> bool:
        return self._is_resizable

    def copy_(self, source: UntypedStorage) -> None:
        assert source.nbytes() == self.nbytes()
        ctypes.memmove(self.data_ptr(), source.data_ptr(), self.nbytes())

    def fill_(self, value: int) -> None:
        self._memory[:] = value

    def _swap_data_ptr_(self, other: UntypedStorage) -> None:
        self._memory, other._memory = other._memory, self._memory
        self._is_resizable, other._is_resizable = other._is_resizable, self._is_resizable

    def tolist(self) -> list[int]:
        return [int(byte) for byte in self._memory]


def frombuffer(buffer: Any, *, dtype: Any, count: int, offset: int = 0) -> Any:
    """Return what has a storage of some bytes of a buffer. As torch does, it keeps the object and its address, and releases the buffer."""
    assert dtype == uint8
    with memoryview(buffer) as view:
        address = ctypes.addressof(ctypes.c_ubyte.from_buffer(view)) + offset
        assert offset + count <= view.nbytes
    kept: Any = (ctypes.c_ubyte * count).from_address(address)
    kept.keeps = buffer
    storage = UntypedStorage(memory=np.frombuffer(kept, "u1"))
    return SimpleNamespace(untyped_storage=lambda: storage)


def of(values: Any) -> UntypedStorage:
    """Return a private storage with these bytes."""
    return UntypedStorage(memory=None, size=0) if not len(values) else _private(np.array(values, "u1"))


def _private(memory: Any) -> UntypedStorage:
    storage = UntypedStorage(memory=memory)
    storage._is_resizable = True
    return storage
