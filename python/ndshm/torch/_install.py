"""What `install` changes in torch and multiprocessing.

The changes are made once and stay. While nothing is installed, each of them does what was there before, except for storages that are the
memory of arrays already: torch would move those to files of its own, away from the other processes that have them.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from .. import _libraries, in_flight
from .._array import register_with_multiprocessing
from .._errors import InvalidArgument, InvalidType, Unsupported
from . import _loader, _queues, _storages, _tensors

if TYPE_CHECKING:
    from collections.abc import Callable

#: The name among those of torch's sharing strategies.
_STRATEGY = "ndshm"

# Whether private storages are moved to arrays.
_is_installed = False
# Whether this process has called `install`. If so, arriving tensors do not install.
_is_decided = False
_is_patched = False
# How many bytes a worker keeps to use them again, as the caller said it.
_recycle: int | str = 0


def install(enabled: bool, recycle: int | str) -> None:
    global _is_decided
    _libraries.refuse_all_but_bool(enabled)
    if not enabled:
        _switch(None)
    else:
        torch = _supported()
        bytes_of(recycle)
        in_flight.grace()  # a wrong setting is reported here, and not in the thread of a Queue
        _patch(torch)
        _switch(recycle)
    _is_decided = True


def is_installed() -> bool:
    return _is_installed


def installed_by_message() -> Any:
    """Install in a process that receives a tensor and has not decided: so it sends tensors back in the same way. Return torch."""
    torch = _tensors._torch()
    if not _is_patched:
        _patch(torch)
    if not _is_decided and not _is_installed:
        _switch("1GiB")
    return torch


def install_in_child(recycle: int | str) -> None:
    """Install in a spawned child as in its parent, before it runs the function that it was started for."""
    if not _is_decided:
        _patch(_tensors._torch())
        _switch(recycle)


def _supported() -> Any:
    if sys.platform != "linux":
        raise Unsupported("torch's tensors travel as arrays on Linux only: elsewhere leave torch's own strategy, or send ndshm.share(x)")
    torch = _tensors._torch()
    if not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
        raise Unsupported(f"torch {torch.__version__} cannot move a storage to other memory, which torch 2.12 and later can")
    return torch


def _switch(recycle: int | str | None) -> None:
    global _is_installed, _recycle
    _is_installed, _recycle = recycle is not None, recycle or 0
    if not _is_installed:
        _storages.end()
    elif bytes_of(_recycle) and not _loader.is_worker():
        _storages.recycle_little()
    torch = sys.modules.get("torch.multiprocessing")
    if torch is not None:
        # torch returns this very set.
        known: set[str] = torch.get_all_sharing_strategies()
        if _is_installed:
            known.add(_STRATEGY)
        else:
            known.discard(_STRATEGY)
            if torch.get_sharing_strategy() == _STRATEGY:
                torch.set_sharing_strategy("file_descriptor")


def most_recycled() -> int:
    """Return how many bytes a worker keeps: at most a quarter of the shared memory."""
    if not _is_installed:
        return 0
    facts = os.statvfs(_storages.shared_memory())
    return min(bytes_of(_recycle), facts.f_frsize * facts.f_blocks // 4)


_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def bytes_of(size: int | str) -> int:
    """Return a number of bytes, which may be given with a unit."""
    if isinstance(size, str):
        match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", size.strip())
        if match is None or match[2] not in _UNITS:
            raise InvalidArgument(f"recycle={size!r}: give a number of bytes, such as 268435456 or '256MiB'")
        return int(match[1]) * _UNITS[match[2]]
    if isinstance(size, bool) or not hasattr(size, "__index__"):
        raise InvalidType(f"recycle={size!r}: give a number of bytes, such as 268435456 or '256MiB'")
    if (number := size.__index__()) < 0:
        raise InvalidArgument(f"recycle={size!r}: give a number of bytes, 0 or more")
    return number


def _patch(torch: Any) -> None:
    """Make all changes, once."""
    global _is_patched
    if _is_patched:
        return
    # torch imports the second when it first pickles a tensor. Two threads that do so at once fail, and so does a child that is forked meanwhile.
    for name in ("torch.multiprocessing", "torch.nested._internal.nested_tensor", "torch.utils.data"):
        _tensors._torch(name)
    register_with_multiprocessing()
    _patch_storages(torch)
    _queues.patch(_settings)
    _loader.patch()
    _is_patched = True


def _settings() -> int | str | None:
    return _recycle if _is_installed else None


def _patch_storages(torch: Any) -> None:
    storage_class = torch.UntypedStorage
    is_shared, share_memory_, resize_ = storage_class.is_shared, storage_class.share_memory_, storage_class.resize_
    new_shared = storage_class._new_shared.__func__

    def is_private(storage: Any) -> bool:
        # Storages of no bytes have no memory, and meta tensors none either.
        return storage.device.type == "cpu" and storage.nbytes() > 0 and not is_shared(storage)

    def to_send(storage: Any) -> _storages.Place | None:
        place = _storages.place_of(storage)
        return _storages.move(torch, storage) if place is None and _is_installed and is_private(storage) else place

    def reduce_storage(storage: Any) -> Any:
        place = to_send(storage)
        return previous(storage) if place is None else _storages.reduce(place)

    def new_is_shared(self: Any) -> Any:
        """See torch.UntypedStorage.is_shared."""
        return is_shared(self) or _storages.place_of(self) is not None

    def new_share_memory_(self: Any, *args: Any, **kwargs: Any) -> Any:
        """See torch.UntypedStorage.share_memory_."""
        return share_memory_(self, *args, **kwargs) if to_send(self) is None else self

    def new_resize_(self: Any, size: int) -> Any:
        """See torch.UntypedStorage.resize_."""
        if size == 0 and self.nbytes() > 0 and _storages.place_of(self) is not None:
            _storages.leave(self)
            self._swap_data_ptr_(torch.UntypedStorage(0))  # our memory goes with that object
            return self
        return resize_(self, size)

    def new_new_shared(cls: Any, size: int, *args: Any, **kwargs: Any) -> Any:
        """See torch.UntypedStorage._new_shared."""
        device = str(kwargs.get("device", "cpu"))
        if not _is_installed or not size or device != "cpu" or not _loader.is_worker():
            return new_shared(cls, size, *args, **kwargs)
        return _storages.new(torch, size, is_overwritten=_loader.is_collating(2))

    previous: Callable[[Any], Any] = _queues.reducers()[storage_class]
    _queues.reducers()[storage_class] = reduce_storage
    storage_class.is_shared, storage_class.share_memory_, storage_class.resize_ = new_is_shared, new_share_memory_, new_resize_
    storage_class._new_shared = classmethod(new_new_shared)
