"""Tensors of arrays, and arrays of tensors."""

from __future__ import annotations

import atexit
import importlib
import math
import os
import sys
import warnings
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeGuard

from .. import _core
from .._array import Array
from .._errors import InvalidArgument, Mismatch, NdshmError, NotAnArray, NotFound, Unsupported
from .._imports import importing
from .._share import _shared, get_sharing_strategy

if TYPE_CHECKING:
    from torch import Tensor

    from .. import cuda

__all__ = ["PrivateTensor", "as_tensor", "from_tensor"]

_DTYPES = {
    "|u1": "uint8",
    "<u2": "uint16",
    "<u4": "uint32",
    "<u8": "uint64",
    "|i1": "int8",
    "<i2": "int16",
    "<i4": "int32",
    "<i8": "int64",
    "<f2": "float16",
    "<f4": "float32",
    "<f8": "float64",
    "bfloat16": "bfloat16",
    "<c8": "complex64",
    "<c16": "complex128",
    "|b1": "bool",
}


class PrivateTensor(UserWarning):
    """The array is read-only or frozen, so the tensor is not shared: what is written to it stays in this process."""


def as_tensor(array: Array | cuda.Array) -> Tensor:
    """Return a tensor that is the memory of an array, without a copy and without a lock.

    The tensor is shared as torch's own are: ``is_shared()`` is True, and queues of ``torch.multiprocessing`` send the memory itself while
    torch's strategy is ``"file_descriptor"``, the default on Linux. (Under ``"file_system"``, torch moves a tensor that is sent to a
    file of its own: neither the sender's tensor nor the receiver's is the array any more.)

    The tensor keeps the array attached, in each process that has it, also after `array` was closed: no pool uses the memory again, and
    a counted array keeps its name. It does not keep a plain array's name from being unlinked. torch cannot resize it.

    A process that writes to the tensor takes no lock: the callers must ensure that nothing else reads or writes meanwhile, or write
    inside ``with array.write()``.

    An array on a GPU gives a CUDA tensor, after what is known to write to the array. The tensor keeps the memory, but torch does not know
    that it is shared: send the array, not the tensor. `ndshm.cuda.Array.written_on` says what torch has written.

    Parameters
    ----------
    array
        An attached array, or one on a GPU. Order, dtype and shape are kept. A read-only or frozen one gives a tensor that is not shared: it is a
        copy-on-write view, since torch ignores that memory is read-only. A `PrivateTensor` warning tells of it.

    Raises
    ------
    Unlinked
        The name was removed, and the array keeps no descriptor (see `open`).
    Unsupported
        Not Linux, this torch lacks the dtype, or it cannot use the array's GPU.
    ValueError
        The array is closed.
    ImportError
        torch is not installed.
    """
    torch = _torch()
    if _is_on_gpu(array):
        return _cuda_tensor(torch, array)
    if not isinstance(array, Array):
        raise TypeError(f"as_tensor needs an ndshm.Array, not {type(array).__name__}: ndshm.share(x) makes one")
    if array.closed:
        raise ValueError("the array is closed: open, receive or share it again")
    _settle(8)
    dtype = getattr(torch, _DTYPES[array._dtype_code], None)
    if dtype is None:
        raise Unsupported(f"torch {torch.__version__} has no dtype {_DTYPES[array._dtype_code]}")
    strides = [stride // array.itemsize for stride in array.strides]
    if any(stride < 0 for stride in strides):
        raise Unsupported("torch has no negative strides: take the part with positive steps, or copy it")
    tensor: Tensor
    if array.readonly:
        text = f"`{array.name}` is read-only: the tensor is not shared, and what is written to it stays in this process"
        warnings.warn(text, PrivateTensor, stacklevel=2)
        tensor = torch.from_dlpack(array)
    elif array.size == 0:
        # There is nothing to keep, and torch would lose its duplicate of the descriptor.
        tensor = torch.empty_strided(array.shape, strides, dtype=dtype).share_memory_()
    else:
        tensor = torch.empty(0, dtype=dtype).set_(_storage(torch, array), array._offset // array.itemsize, array.shape, strides)
    return tensor


def _storage(torch: Any, array: Array) -> Any:
    """Let torch map an array, through a descriptor of its own with a lease of its own, which torch sends on and closes without a word.

    Where tensors travel as arrays, torch needs no descriptor.
    """
    with importing("ndshm.torch._storages"):
        from . import _storages

    if is_installed():
        return _storages.storage_of(torch, array)
    number, loan = array._leased_descriptor()
    try:
        # It is duplicated. Not more bytes than the elements: torch would lengthen the file.
        whole = math.prod(array._whole[0]) * array.itemsize
        storage = torch.UntypedStorage._new_shared_fd_cpu(number, whole)
    finally:
        os.close(number)  # without unlocking, which would end torch's lease too
    os.set_inheritable(storage._get_shared_fd(), False)  # a program that is run would keep the array
    if loan is not None:
        _watch(storage, loan)
    _storages.enter(storage, _storages.Place(Array(array._whole_again()), 0, whole, storage.data_ptr()))
    return storage


def is_installed() -> bool:
    """Return whether torch's own tensors travel as arrays."""
    module = sys.modules.get("ndshm.torch._install")
    return module is not None and module.is_installed()


def from_tensor(tensor: Tensor, *, copy: bool | None = None) -> Array:
    """Return an array of a tensor.

    A tensor from `as_tensor`, made in this process or received from another one, gives an array that is the same memory. Every other
    tensor is copied into a new counted array, as by `share`.

    Parameters
    ----------
    tensor
        A tensor of any device. One on a GPU is copied to the host; ``as_tensor(ndshm.cuda.zeros(...)).copy_(tensor)`` copies it on the
        GPU. C and Fortran order are kept; every other order of axes becomes C. Gradients are not.
    copy
        None: copy if the tensor is not the memory of an array, or is only a part of it, or if the name of that array is gone.
        False: raise an error then. True: always copy.

    Raises
    ------
    InvalidArgument
        The dtype or layout cannot be shared; or with ``copy=False``, the tensor would have to be copied.
    NoSpace
        There is not enough memory. Nothing was created.
    ImportError
        torch is not installed.
    """
    torch = _torch()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"from_tensor needs a torch.Tensor, not {type(tensor).__name__}")
    _settle(8)
    name = str(tensor.dtype).removeprefix("torch.")
    known = {torch_name: name for name, torch_name in _DTYPES.items()}
    if name not in known or tensor.layout != torch.strided:
        text = f"a tensor of dtype {name} and layout {tensor.layout} cannot be shared: use torch.strided and one of {', '.join(known)}"
        raise InvalidArgument(text)
    if not copy:
        array = _array_of(tensor, known[name])
        if array is not None:
            return array
    if copy is False:
        raise InvalidArgument("the tensor is not the memory of a whole array that can be opened: give copy=None to copy it")
    order = _order_of(tensor) or "C"
    array = _shared(_core.share(list(tensor.shape), known[name], order, get_sharing_strategy()))
    torch.from_dlpack(array).copy_(tensor.detach())  # no other process knows the array yet
    return array


def _torch(name: str = "torch") -> Any:
    """Return torch, or one of its modules."""
    try:
        with importing(name):
            return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("ndshm.torch needs torch: https://pytorch.org says how to install it") from error


def _is_on_gpu(array: object) -> TypeGuard[cuda.Array]:
    # The module is there if it could be imported, and if it could not, there is no such array.
    module = sys.modules.get("ndshm.cuda")
    return module is not None and isinstance(array, module.Array)


def _cuda_tensor(torch: Any, array: cuda.Array) -> Tensor:
    if not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} cannot use GPUs here: install torch with CUDA, or give it array.numpy()")
    tensor: Tensor = torch.from_dlpack(array)
    return tensor


def _order_of(tensor: Any) -> str | None:
    """Return the order in which the elements follow one another, or None."""
    if tensor.is_contiguous():
        return "C"
    return "F" if tensor.permute(*reversed(range(tensor.ndim))).is_contiguous() else None


def _array_of(tensor: Any, dtype: str) -> Array | None:
    """Attach to the array that has the tensor's memory, shape, dtype and order. Return None if there is none."""
    order = _order_of(tensor)
    if order is None or tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return None
    storage = tensor.untyped_storage()
    if tensor.storage_offset() != 0 or storage.nbytes() != tensor.numel() * tensor.element_size():
        return None
    found = _file_of(storage)
    if found is None:
        return None
    directory, name, identity = found
    try:
        try:
            opened = _core.open(name, lengths=tensor.shape, dtype=dtype, order=order, directory=directory, reinterpret=True)
        except NotAnArray:  # not a plain one
            opened = _core.open_counted(name, directory, dtype)
        array = Array(opened)
    except (InvalidArgument, Mismatch, NotAnArray, NotFound):
        return None  # the file is torch's own, or the name is gone, or it is an array of another dtype
    # A name can lead to another file by now.
    if array._file_id == identity and _is_laid_out_as(array, tensor):
        return array
    array.close()
    return None


def _file_of(storage: Any) -> tuple[str, str, tuple[int, int]] | None:
    """Return the directory, the name and the identity of the file that a storage maps as a whole. Return None if there is none."""
    try:
        number = storage._get_shared_fd()  # `_share_fd_cpu_` would move a private tensor to shared memory
    except RuntimeError:
        number = -1  # private to torch, or shared by name
    if number >= 0:
        directory, name = os.path.split(os.readlink(f"/proc/self/fd/{number}"))
        facts = os.fstat(number)
        return directory, name, (facts.st_dev, facts.st_ino)
    with importing("ndshm.torch._storages"):
        from . import _storages

    place = _storages.place_of(storage)
    if place is None or place.length != math.prod(place.array._whole[0]) * place.array.itemsize:
        return None
    return os.fspath(place.array.directory), place.array.name, place.array._file_id


def _is_laid_out_as(array: Array, tensor: Any) -> bool:
    """Return whether shape and strides are equal. A counted array has its own shape and order, and length 1 has any stride."""
    if array.shape != tensor.shape:
        return False
    steps = zip(array.shape, array.strides, tensor.stride(), strict=True)
    return all(length == 1 or step == array.itemsize * stride for length, step, stride in steps)


# Counted arrays that torch has freed in this process, but perhaps not in another one. Nothing tells when that one frees them, so this
# process looks again from time to time, and at its end. The manager looks too.
_unsettled: deque[_core.Loan] = deque()
_references: dict[int, weakref.ref[Any]] = {}


def _watch(storage: Any, loan: _core.Loan) -> None:
    """Look at a counted array as soon as torch has freed the storage."""

    def freed() -> None:
        del _references[id(loan)]
        _unsettled.appendleft(loan)
        _settle(8)

    # torch keeps the storage's object as long as the storage itself. When the reference dies, the descriptor is still open.
    _references[id(loan)] = weakref.ref(storage, _core.Soon(freed))


def _settle(most: int) -> None:
    """Remove some of the arrays that no process has any more."""
    for _ in range(min(most, len(_unsettled))):
        try:
            loan = _unsettled.popleft()
        except IndexError:  # another thread was quicker
            return
        try:
            is_settled = loan.settle()
        except NdshmError:
            is_settled = False
        if not is_settled:
            _unsettled.append(loan)


atexit.register(lambda: _settle(len(_unsettled)))
