"""torch tensors that are the memory of arrays, and torch's own tensors that travel between processes as arrays.

One line, and tensors that torch sends to other processes travel as counted arrays of this package, in a program that stays as it is::

    import ndshm

    ndshm.torch.install()

The other way round, `as_tensor` makes a tensor of an array:

>>> import ndshm.torch
>>> array = ndshm.share_zeros((2, 3), "float32")
>>> tensor = ndshm.torch.as_tensor(array)
>>> tensor[1, 2] = 7
>>> float(array[1, 2]), tensor.is_shared()
(7.0, True)

torch is imported by the first call. It is no dependency of this package.
"""

from __future__ import annotations

from .._imports import importing
from ._tensors import PrivateTensor, as_tensor, from_tensor

__all__ = ["PrivateTensor", "as_tensor", "from_tensor", "install"]


def install(enabled: bool = True, *, recycle: int | str = "1GiB") -> None:
    """Let torch's tensors travel between processes as counted arrays from now on.

    This applies to every CPU tensor that ``multiprocessing`` pickles in this process and its children of every start method: Queues, Pipes,
    Pools, the arguments of a Process, ``concurrent.futures``, and a DataLoader's batches. As with torch's own strategies, sender and
    receiver have the same memory. Different from those:

    - A process needs no file descriptor for a tensor that it keeps, so that it cannot run out of them, and there is no manager process.
    - A sender can end before its tensors are received. A message keeps them for ``NDSHM_PICKLE_GRACE`` seconds (600 by default), and those that
      a DataLoader has not read when it ends go at once.
    - What killed processes leave in /dev/shm is removed by the manager or by ``ndshm gc``.
    - Without room in /dev/shm there is a `NoSpace` error, in the process that waits for the message if the sender cannot raise it, and no bus
      error.
    - Workers of a DataLoader collate batches in memory that they use again.

    A tensor is moved to shared memory when it is first sent, as by torch: tensors that were views of it before still are, but a numpy array
    of the same memory is not, and must not be used any more. Its storage cannot be resized any more, except to 0.

    What torch shares already (``share_memory_()`` before this call, ``torch.from_file``) goes torch's way, and so do tensors on GPUs.
    `set_sharing_strategy` of ``torch.multiprocessing`` is for those alone. ``torch.save``, ``pickle.dumps`` and ``copy.deepcopy`` are as before.

    Calling it again sets another limit.

    Parameters
    ----------
    enabled
        False: from now on torch's own strategy moves tensors. Those that are arrays by now stay so.
    recycle
        How many bytes the workers of a DataLoader together keep at most to use them again, as a number or with a unit such as ``"512MiB"``. Never
        more than a quarter of the shared memory, and nothing new while less than half of it is free. Every other process keeps up to 16 MiB. 0 keeps
        nothing.

    Raises
    ------
    Unsupported
        Not Linux, or this torch cannot move a storage (``torch.UntypedStorage._swap_data_ptr_``, since torch 2.12).
    InvalidArgument
        `recycle` is no number of bytes, or ``NDSHM_PICKLE_GRACE`` has a wrong value.
    ImportError
        torch is not installed.
    """
    with importing("ndshm.torch._install"):
        from . import _install

    _install.install(enabled, recycle)
