"""The test double of the CUDA driver, as a library that the tests call beside the package: as torch would, and to count what is left."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

LIBRARY = ctypes.CDLL("libcuda.so")
LIBRARY.fakeCudaMemoryInUse.restype = ctypes.c_uint64
LIBRARY.fakeCudaLive.restype = ctypes.c_uint64
LIBRARY.fakeCudaCalls.restype = ctypes.c_uint64
LIBRARY.fakeCudaViolations.restype = ctypes.c_uint64
LIBRARY.fakeCudaLastViolation.restype = ctypes.c_char_p

#: What an array takes at least.
UNIT = 2 << 20


def call(name: str, *arguments: object) -> None:
    answer = getattr(LIBRARY, name)(*arguments)
    assert answer == 0, f"{name}: {answer}"


def until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def memory_in_use() -> int:
    """Bytes of all GPUs that the processes of these tests use."""
    return int(LIBRARY.fakeCudaMemoryInUse())


def calls(name: str) -> int:
    return int(LIBRARY.fakeCudaCalls(name.encode()))


def live(kind: str) -> int:
    return int(LIBRARY.fakeCudaLive(kind.encode()))


def violations() -> str:
    return str(LIBRARY.fakeCudaLastViolation()) if LIBRARY.fakeCudaViolations() else ""


class Stream:
    """A stream of the first GPU, as another library makes it. The thread's context is that of this GPU from then on."""

    def __init__(self) -> None:
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        call("cuCtxSetCurrent", context)
        call("cuStreamCreate", ctypes.byref(stream), 1)
        assert stream.value is not None
        self.number = stream.value

    def fill(self, address: int, value: int, nbytes: int) -> None:
        """Enqueue a write, as a kernel would."""
        call("cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(value), ctypes.c_size_t(nbytes), ctypes.c_void_p(self.number))

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy bytes to the host in this stream, and wait for that."""
        copy = ctypes.create_string_buffer(nbytes)
        stream = ctypes.c_void_p(self.number)
        call("cuMemcpyDtoHAsync_v2", copy, ctypes.c_uint64(address), ctypes.c_size_t(nbytes), stream)
        call("cuStreamSynchronize", stream)
        return copy.raw
