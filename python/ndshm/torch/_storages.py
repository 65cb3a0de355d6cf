"""Storages of torch that are the memory of arrays: which ones, how they come to be, and how they are sent to other processes.

A storage is torch's word for the memory of tensors: tensors that are views of each other have one storage. Everything here is about bytes;
torch sends dtypes, shapes and strides beside them.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from contextlib import suppress
from functools import partial
from multiprocessing import util
from typing import Any

from .. import _array, _core, in_flight
from .._array import Array
from .._errors import HandleExpired, NdshmError, NotFound, Unlinked
from .._imports import importing
from ..multiprocessing import _has_its_name

#: Storages of at most so many bytes share an array: a mapping for each would cost more than its bytes, and a process has 65,530 of them.
SMALL = 32 << 10
#: The bytes of such an array.
SLAB = 1 << 20
#: Each storage in it begins at a multiple of a cache line.
_ALIGNMENT = 64

# Held while a storage is moved, sent or received, so that two threads do not move it twice, nor map an array twice. A fork waits for it: a
# child that is forked meanwhile would find half a move, and wait for ever.
_lock = threading.RLock()


class Place:
    """Where the bytes of a storage are: in which array, and at what address in this process."""

    __slots__ = ("__weakref__", "address", "array", "key", "length", "offset")

    def __init__(self, array: Array, offset: int, length: int, address: int) -> None:
        self.array, self.offset, self.length, self.address = array, offset, length, address
        self.key = (_identity(array), offset, length)

    def is_that_of(self, storage: Any) -> bool:
        """Return whether the storage is still here: torch can move one, and use an address again."""
        address: int = storage.data_ptr()
        length: int = storage.nbytes()
        return self.address == address and self.length == length


class _Entry(weakref.ref[Any]):
    """A storage, as long as it lives, and its place."""

    __slots__ = ("cdata", "place")

    cdata: int
    place: Place


# Every storage that is known to be the memory of an array, by torch's address of its storage object, and by its place.
_by_cdata: dict[int, _Entry] = {}
_by_place: dict[tuple[Any, int, int], _Entry] = {}
# The arrays that are attached here for one of them, by their identity: the array as it is sent, and its bytes.
_attached: weakref.WeakValueDictionary[Any, _Bytes]


class _Bytes(Array):
    """The bytes of an array. torch keeps this object as long as a storage of them lives."""

    __slots__ = ("whole",)

    whole: Array


_attached = weakref.WeakValueDictionary()


def _identity(array: Array) -> Any:
    """Return what no other array has while this one is attached."""
    return array.id if array.is_counted else array._file_id


def _forget(entry: _Entry) -> None:
    # It runs whenever torch frees a storage, in whatever thread. Each step is one of the interpreter's own.
    if _by_cdata.get(entry.cdata) is entry:
        _by_cdata.pop(entry.cdata, None)
    if _by_place.get(entry.place.key) is entry:
        _by_place.pop(entry.place.key, None)


def enter(storage: Any, place: Place, instead_of: Any = None) -> None:
    """Note where a storage is, or is about to be. A place has one storage that arrives again: the first, as long as it lives."""
    entry = _Entry(storage, _forget)
    entry.cdata, entry.place = storage._cdata, place
    _by_cdata[entry.cdata] = entry
    if _known(place.key) in (None, instead_of):
        _by_place[place.key] = entry


def leave(storage: Any) -> None:
    """Forget a storage that has given its memory back."""
    entry = _by_cdata.get(storage._cdata)
    if entry is not None and entry() is storage:
        _forget(entry)


def place_of(storage: Any) -> Place | None:
    """Return where a storage is, or None if it is not the memory of an array that other processes can change."""
    entry = _by_cdata.get(storage._cdata)
    if entry is not None and entry() is storage and entry.place.is_that_of(storage):
        return entry.place
    if storage.device.type != "cpu" or storage.nbytes() == 0:
        return None
    # `torch.from_dlpack(array)`, `torch.from_numpy(numpy.asarray(array))` and the like.
    found = _core.array_at(storage.data_ptr(), storage.nbytes())
    if found is None:
        return None
    attachment, offset = found
    place = Place(Array(attachment), offset, storage.nbytes(), storage.data_ptr())
    enter(storage, place)
    return place


def storage_of(torch: Any, array: Array) -> Any:
    """Return the storage of a whole array. There is one in a process."""
    length = math.prod(array._whole[0]) * array.itemsize
    with _lock:
        known = _known((_identity(array), 0, length))
        return _map(torch, _bytes_of(Array(array._whole_again())), 0, length) if known is None else known


def _known(key: tuple[Any, int, int]) -> Any:
    """Return the storage at a place, if this process has one."""
    entry = _by_place.get(key)
    storage = None if entry is None else entry()
    return storage if entry is not None and storage is not None and entry.place.is_that_of(storage) else None


def _bytes_of(array: Array) -> _Bytes:
    whole = _Bytes(array._as_bytes())
    whole.whole = array
    _attached[_identity(array)] = whole
    return whole


def _map(torch: Any, whole: _Bytes, offset: int, length: int) -> Any:
    """Return a new storage of some bytes of an array."""
    storage = torch.frombuffer(whole, dtype=torch.uint8, count=length, offset=offset).untyped_storage()
    enter(storage, Place(whole.whole, offset, length, storage.data_ptr()))
    return storage


class _Slab:
    """An array that small storages share. A place in it is used once."""

    def __init__(self) -> None:
        self.bytes = _bytes_of(Array(_core.share([SLAB], "|u1", "C", "file_system")))
        self.used = 0

    def take(self, length: int) -> int | None:
        offset = self.used
        if offset + length > SLAB:
            return None
        self.used = -(-(offset + length) // _ALIGNMENT) * _ALIGNMENT
        return offset


_slab: _Slab | None = None
# How many bytes this process keeps to use them again: in workers of a DataLoader what `install` says, in every other process at most so much.
_recycled = 0
_RECYCLED_ANYWHERE = 16 << 20


def recycle(most: int) -> None:
    """Keep so many bytes of arrays that were sent, to use them again."""
    global _recycled
    _recycled = most
    if not most:
        in_flight._notes.clear_recycled()


def recycle_little() -> None:
    """Keep as much as any process may."""
    recycle(_RECYCLED_ANYWHERE)


def _most_recycled() -> int:
    """Return how much may be kept now: nothing if other processes have taken half of the memory, so that all of them can use the rest."""
    if not _recycled:
        return 0
    facts = os.statvfs(shared_memory())
    return _recycled if facts.f_bavail > facts.f_blocks // 2 else 0


def shared_memory() -> str:
    """Return the directory in which arrays are created."""
    is_emulated, emulated = _core.emulation()
    return os.fspath(emulated) if is_emulated else "/dev/shm"


def new(torch: Any, length: int, *, is_overwritten: bool) -> Any:
    """Return a new storage in shared memory. Its bytes are zeros, unless the caller overwrites all of them."""
    global _slab
    with _lock:
        if length <= SMALL:
            if _slab is None or (offset := _slab.take(length)) is None:
                _slab = _Slab()
                offset = _slab.take(length) or 0
            return _map(torch, _slab.bytes, offset, length)
        attachment, is_zeroed = in_flight._notes.share_bytes(length, _most_recycled())
        storage = _map(torch, _bytes_of(Array(attachment)), 0, length)
    if not is_zeroed and not is_overwritten:
        storage.fill_(0)
    return storage


def move(torch: Any, storage: Any) -> Place:
    """Move a private storage to shared memory. Every tensor of it stays one of it."""
    with _lock:
        place = place_of(storage)
        if place is None:
            target = new(torch, storage.nbytes(), is_overwritten=True)
            target.copy_(storage)
            place = _by_cdata[target._cdata].place
            # Noted before it is moved: an exception in between, such as Ctrl-C, leaves an entry that does not count.
            enter(storage, place, instead_of=target)
            storage._swap_data_ptr_(target)
            del target  # and with it the private memory
            _freed(place.length)
        return place


# How many bytes of private memory were freed since the allocator has last given memory back.
_bytes_freed = 0
_MOST_FREED = 256 << 20


def _freed(length: int) -> None:
    """Let the allocator give memory back to the system from time to time.

    Blocks of up to 32 MiB lie between small ones, which note what is on its way, and glibc gives none back that has another above it: a sender
    of a thousand tensors would keep the private memory of all of them.
    """
    global _bytes_freed
    _bytes_freed += length
    if _bytes_freed >= _MOST_FREED:
        _bytes_freed = 0
        with importing("ctypes"):
            import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


class _Sent(threading.local):
    """The handles that this thread has issued for the message that it is pickling, each with its array."""

    handles: list[tuple[Array, str]] | None = None


_sent = _Sent()


def message() -> list[tuple[Array, str]] | None:
    """Return the handles of the message that this thread is pickling."""
    return _sent.handles


def begin_message() -> None:
    """Begin to note the handles of a message."""
    _sent.handles = []


def end_message(around: list[tuple[Array, str]] | None, is_complete: bool) -> None:
    """End the notes of a message. If it was not pickled to its end, no process will use its handles."""
    handles, _sent.handles = _sent.handles, around
    if is_complete:
        if around is not None and handles:
            around.extend(handles)
        return
    for array, handle in handles or ():
        array._redeem(handle)


# In a worker of a DataLoader: the handles that it issued last, some of which the trainer may not have used yet.
_unread: dict[str, None] | None = None
_MOST_UNREAD = 1024


def watch_unread() -> None:
    """Note the handles that are issued from now on."""
    global _unread
    _unread = {}


def keep_unread() -> None:
    """Give the handles that were not used yet their whole time again: their sender lives, and their receiver may come back."""
    for handle in list(_unread or ()):
        with suppress(NdshmError, OSError):
            if _core.prolong(handle, in_flight.grace()):
                continue
        with _lock:
            if _unread is not None:
                _unread.pop(handle, None)


def reduce(place: Place) -> tuple[Any, ...]:
    """Return how a storage of this place is pickled, for one receiver."""
    array = place.array
    with _lock:
        if not array.is_counted:
            if not _leads_to(array):
                raise Unlinked(f"the name `{array.name}` does not lead to this array any more: send a copy, tensor.clone()")
            _, arguments = array._sent(False)
            return receive_plain, (arguments, place.offset, place.length)
        handle = _array._handle(array, False)
        if _sent.handles is not None:
            _sent.handles.append((array, handle))
        if _unread is not None:
            _unread[handle] = None
            if len(_unread) > _MOST_UNREAD:
                _unread.pop(next(iter(_unread)))
        return receive, (handle, _array._machine(), array._dtype_code, place.offset, place.length)


def _leads_to(array: Array) -> bool:
    """Return whether a plain array still has its name."""
    try:
        return _has_its_name(array)
    except FileNotFoundError:
        return False


def receive(handle: str, machine: str, dtype: str, offset: int, length: int) -> Any:
    """Return the storage of a message. What this process has already is the same storage, and is not mapped again."""
    torch = _torch or _installed()
    if machine != _array._machine():
        _array._refuse_other_machine(machine, "the tensor")
    identity = handle.split(":", 3)[2]
    with _lock:
        storage = _known((identity, offset, length))
        whole = _attached.get(identity)
        array = whole.whole if storage is None and whole is not None else None
        if storage is not None:
            array = _by_cdata[storage._cdata].place.array
        if array is not None:
            if not array._redeem(handle):
                raise HandleExpired(_EXPIRED)
        else:
            whole = _bytes_of(_attach(handle, machine, dtype))
        if storage is None:
            assert whole is not None
            storage = _map(torch, whole, offset, length)
            if length <= SMALL:
                _latest.pop(identity, None)
                _latest[identity] = whole
                if len(_latest) > _MOST_LATEST:
                    _latest.pop(next(iter(_latest)))
        return storage


# The arrays of the small storages that arrived last. A receiver that drops each storage before the next would attach for each of them.
_latest: dict[str, _Bytes] = {}
_MOST_LATEST = 8

_EXPIRED = (
    "the tensor of this message is gone: the message was loaded before, or it was sent more than NDSHM_PICKLE_GRACE seconds ago (600 by default): set "
    "this variable to a longer time in the sender"
)


def _attach(handle: str, machine: str, dtype: str) -> Array:
    try:
        return _array._receive(handle, machine, dtype, {})
    except (HandleExpired, NotFound) as error:
        raise HandleExpired(_EXPIRED) from error


def receive_plain(arguments: tuple[Any, ...], offset: int, length: int) -> Any:
    """Return the storage of a plain array that was sent, or of bytes of it."""
    torch = _torch or _installed()
    array = _array._attach_pickled(*arguments)
    with _lock:
        key = (_identity(array), offset, length)
        storage = _known(key)
        if storage is None:
            whole = _attached.get(key[0])
            storage = _map(torch, _bytes_of(array) if whole is None else whole, offset, length)
        return storage


# torch, once this process has received a storage.
_torch: Any = None


def _installed() -> Any:
    """Return torch, with the changes of `_install`."""
    global _torch
    from . import _install

    _torch = _install.installed_by_message()
    return _torch


def rest() -> None:
    """In a worker that waits for work: keep what the trainer has not read, and no memory beside."""
    in_flight._notes.clear_recycled()
    keep_unread()


def end_process() -> None:
    """At the end of the process: let go of everything. The interpreter frees few tensors, and in a child of multiprocessing none."""
    end()
    for entry in list(_by_cdata.values()):
        with suppress(NdshmError, OSError):
            if entry.place.array.is_counted:
                entry.place.array._count_out()


def end() -> None:
    """Let go of memory that no tensor has."""
    global _slab
    _slab = None
    _latest.clear()
    recycle(0)


def _forked() -> None:
    """In a forked child: the parent goes on to fill its own slab, and to use its own memory again."""
    global _recycled, _slab, _unread
    _slab, _recycled, _unread = None, min(_recycled, _RECYCLED_ANYWHERE), None
    _latest.clear()
    _lock.release()


class _Ending:
    """Ends this module's memory with the process, whether that is a child of multiprocessing or not."""

    def begin(self) -> None:
        # Children forget what their parent has registered for its own end.
        util.Finalize(None, end_process, exitpriority=-200)


_ending = _Ending()
_ending.begin()
util.register_after_fork(_ending, _Ending.begin)

# As in `_imports`.
os.register_at_fork(before=partial(_core.acquire_for_fork, _lock), after_in_parent=_lock.release, after_in_child=_forked)
