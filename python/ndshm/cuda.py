"""Arrays in the memory of a GPU, which several processes share. Linux, with NVIDIA's driver; without one, the import is an ImportError.

>>> import ndshm.cuda
>>> array = ndshm.cuda.from_numpy(numpy.arange(6, dtype="float32").reshape(2, 3))
>>> array.device, array.numpy().sum()
(0, 15.0)

torch, CuPy, jax and numba use the same memory through ``torch.from_dlpack(array)`` or their counterparts. ``multiprocessing`` sends an array
itself, and not a copy::

    queue.put(array)           # spawn or forkserver
    same = queue.get()         # in another process: the same memory

The memory is freed with the last process that has it, in whatever order they end, and whether they are killed.

CUDA does not work in a forked child of a process that used it: there, everything raises `ndshm.CudaError`. Start workers with ``spawn`` or
``forkserver``.
"""

from __future__ import annotations

import os
import sys

# All of it now: if the thread of a Queue were the first to import the sharer, a child forked meanwhile would wait for the import for ever.
from multiprocessing import reduction, resource_sharer
from multiprocessing.context import get_spawning_popen
from types import TracebackType
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import _array, _core
from ._attach import contiguous, lengths_of
from ._dtypes import name_of, numpy_dtype, refuse_mask, shown
from ._errors import HandleExpired, InvalidArgument, Mismatch, NdshmError, Unsupported
from ._guard import require_numpy

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["Array", "device_count", "from_numpy", "zeros"]

if sys.platform != "linux":
    raise ImportError("ndshm.cuda is for Linux")
try:
    _core.cuda_find_driver()
except NdshmError as error:
    raise ImportError(f"ndshm.cuda cannot be used here: {error}") from error


class Array(_core.RawDeviceArray):
    """An n-dimensional array in the memory of a GPU, contiguous in C or Fortran order. `zeros` and `from_numpy` make one.

    Each array takes a multiple of 2 MiB.

    No lock protects the elements. The work of a GPU is brought in order by its streams. Once another library has the array, copies and pickles
    come after what the legacy default stream has to do, and after the calling thread's current stream of torch: a `Queue` pickles in a thread
    of its own, where that is the default stream. Of other streams, `written_on` says that one writes to the array, `used_on` that one reads it,
    and `wait_on` lets one wait. Streams are given by their address, such as ``torch.cuda.Stream.cuda_stream`` or ``cupy.cuda.Stream.ptr``; 0 and 1
    are the legacy default stream, 2 is that of the thread.

    Another library may use the array in any stream, and drop it at any time. Dropping does not wait: the memory ends after all work that the GPU has
    then, and a new array that finds no room waits up to 10 s for it. A graph of CUDA that uses the array must not be launched after its end, unless the
    array was exported while the graph was captured: then its memory stays until the process ends. While torch captures a graph, memory that was exported
    after torch began to use the GPU stays. Of captures on streams that are not torch's and do not block, nothing can be known, nor of those that begin
    in the same microseconds: the end of such memory ends them.

    A pickle of an array leads to the same memory. Only multiprocessing can send it: as an argument of a Process or Pool, or through a Queue,
    Pipe or ``ProcessPoolExecutor``. Sending waits for the work that writes to the array; a ``Queue`` does so in its own
    thread. The sender must live until the array is received. A message that is never received keeps its memory
    until the sender ends or calls ``multiprocessing.resource_sharer.stop()``.
    """

    __slots__ = ()

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The element type, as a numpy dtype, as that of `ndshm.Array`. `dtype_name` is its name, and needs no numpy."""
        return numpy_dtype(self._dtype_code)

    @property
    def dtype_name(self) -> str:
        """numpy's name of the element type, such as ``"uint8"``."""
        return shown(self._dtype_code)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numpy(self) -> numpy.ndarray[Any, Any]:
        """Copy the elements to the host, after everything that is known to write to them."""
        self._say_torch()
        copy: numpy.ndarray[Any, Any] = require_numpy("numpy()").asarray(memoryview(self.download()))
        return copy.view(self.dtype)

    def _say_torch(self) -> None:
        """Say that the current stream of torch writes to the array, if torch may have it. Its default stream is the legacy one."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None and self.is_shared and cuda.is_initialized():
            stream = cuda.current_stream(self.device).cuda_stream
            if stream:
                self.written_on(stream)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return the memory as a DLPack capsule. The consumer's stream waits for everything that is known to write to it.

        If that stream is captured into a graph, the calling thread waits instead, and the memory stays until the process ends.
        """
        _name_streams_of_torch(self.device)
        return super().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    @property
    def ptr(self) -> int:
        """The address of the first element on the GPU. It stays valid as long as this object lives, also after `close`."""
        _name_streams_of_torch(self.device)
        return super().ptr

    def write(self, x: ArrayLike) -> None:
        """Replace the elements by those of an array of the same shape and dtype. Nothing may write to `x` meanwhile.

        Raises
        ------
        InUse
            Another process or library has the array, or had it: see `overwrite`.
        Mismatch
            Shape or dtype differ.
        """
        self.upload(self._bytes_of(x), False)

    def overwrite(self, x: ArrayLike) -> None:
        """Replace the elements of an array that may be shared.

        The caller must ensure that no process and no kernel uses the elements until this returns, except in streams that wait for it.
        """
        self.upload(self._bytes_of(x), True)

    def _bytes_of(self, x: Any) -> Any:
        refuse_mask(x)
        numpy = require_numpy("writing")
        x = numpy.asarray(x)
        name = name_of(x.dtype)
        if x.shape != self.shape or (name != self._dtype_code and (name, self._dtype_code) != ("<u2", "bfloat16")):
            raise Mismatch(f"the elements are {shown(name)} {x.shape}, and the array is {self.dtype_name} {self.shape}")
        return numpy.asarray(x, order=self.order).ravel(order="K").view("u1") if x.size else None

    def part(self, index: slice) -> Array:
        """Return a part of the array without a copy: a range along the axis that is outermost in memory, the first in C order and the last
        in Fortran order.
        """
        if not self.shape:
            raise Mismatch("an array without axes has no parts")
        start, stop, step = index.indices(self.shape[0 if self.order == "C" else -1])
        if step != 1:
            raise InvalidArgument(f"a part is a range: step={step} would leave elements out")
        return Array(self.range(start, max(start, stop)))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory for CuPy, numba and torch. Its consumer waits for ``stream``, unless that is None.

        The memory stays as long as this object, also after `close`. ``bfloat16`` is not a type of this interface: use DLPack.
        """
        if self._dtype_code == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16: use DLPack")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self._dtype_code,
            "data": (self.ptr if self.size else 0, False),
            "strides": None if self.order == "C" else self.strides,
            "stream": self.ready_stream(),
        }

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("the array is on a GPU: array.numpy() copies it to the host")

    def __enter__(self) -> Array:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<ndshm.cuda.Array: {self.dtype_name} {self.shape} order {self.order} on GPU {self.device}{state}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise Unsupported(
            "an array on a GPU is sent as a descriptor, which only multiprocessing can carry: give it to a Process, Pool, Queue or Pipe, "
            "or pickle a copy, array.numpy()"
        )


#: The GPUs of which torch's streams are named.
_named: set[int] = set()


def _name_streams_of_torch(device: int) -> None:
    """Name the streams of torch, any of which may be captured into a graph. torch gives out the same few in turn, and never destroys them."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if device in _named or cuda is None or not cuda.is_initialized():
        return
    for priority in (0, -1, -2, -3):
        streams: set[int] = set()
        known = 0
        while known < 32:  # other threads may be given some of them meanwhile
            stream = cuda.Stream(device, priority).cuda_stream
            known = known + 1 if stream in streams else 0
            streams.add(stream)
            if len(streams) > 256:  # no torch that this code knows
                return
        _core.cuda_may_be_captured(device, list(streams))
    _named.add(device)


def device_count() -> int:
    """Return how many GPUs this process sees."""
    return _core.cuda_device_count()


def zeros(shape: int | tuple[int, ...] | list[int], dtype: DTypeLike, order: str = "C", device: int = 0) -> Array:
    """Create an array of zeros.

    Parameters
    ----------
    shape
        The lengths of the axes.
    dtype
        A numpy dtype or its name, as for `ndshm.create`.
    order
        ``"C"``, the last axis contiguous, or ``"F"``, the first. An array of one axis is in C order.
    device
        The number of the GPU in this process.

    Raises
    ------
    NoSpace
        The GPU has too little free memory. Nothing was created.
    InvalidArgument
        The shape or dtype is not valid, or there is no such GPU.
    CudaError
        This process is a forked child of one that used CUDA, or the driver refused a call.
    """
    return Array(_core.cuda_zeros(lengths_of(shape), name_of(dtype), order, device))


def from_numpy(x: Any, device: int = 0) -> Array:
    """Create a copy of a numpy array. Fortran order is kept; every other order of axes becomes C.

    An `ndshm.Array` is copied under its read lock. Nothing may write to another array meanwhile. The parameters and errors are those of `zeros`.
    """
    if _array.is_array(x):
        with x.read() as view:
            return from_numpy(view, device)
    x, order, source = contiguous(x)
    return Array(_core.cuda_upload(source, list(x.shape), name_of(x.dtype), order, device))


def _reduce(array: Array) -> tuple[Any, ...]:
    array._say_torch()
    if get_spawning_popen() is not None:
        # A process that is being started gets descriptors by their numbers after everything was pickled. The array keeps its own open
        # until then: a Process has its arguments until it has started.
        number, note = array.descriptor(True)
        descriptor: Any = reduction.DupFd(number)
    else:
        number, note = array.descriptor(False)
        try:
            descriptor = resource_sharer.DupFd(number)
        finally:
            os.close(number)
    return _receive, (descriptor, note, array.shape, array._dtype_code, array.order)


def _receive(descriptor: Any, note: str, shape: tuple[int, ...], dtype: str, order: str) -> Array:
    try:
        number: int = descriptor.detach()
    except (OSError, EOFError) as error:
        raise HandleExpired(
            "the pickled array is gone: its sender has ended, or the pickle was loaded before. The sender must live until the array is "
            "received, and each pickle can be loaded once"
        ) from error
    return Array(_core.cuda_attach(number, note, list(shape), dtype, order))


reduction.ForkingPickler.register(Array, _reduce)
