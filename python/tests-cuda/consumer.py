"""A consumer of DLPack tensors, written from `dlpack.h`."""

from __future__ import annotations

import ctypes
from typing import Any

_GET = ctypes.pythonapi.PyCapsule_GetPointer
_GET.restype, _GET.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_RENAME = ctypes.pythonapi.PyCapsule_SetName
_RENAME.argtypes = [ctypes.py_object, ctypes.c_char_p]

NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Taken:
    """A tensor that was taken out of its capsule. `delete` ends it."""

    def __init__(self, capsule: Any, versioned: bool) -> None:
        self._address = _GET(capsule, NAMES[versioned])
        self.managed = (Versioned if versioned else Unversioned).from_address(self._address)
        _RENAME(capsule, USED[versioned])
        self.tensor = self.managed.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(self.tensor.strides[: self.tensor.ndim])

    def delete(self) -> None:
        self.managed.deleter(self._address)
