"""Shared numpy arrays by name, with the names, signatures and return values of ``cloudvolume.sharedmemory`` (of CloudVolume 12.15).

A program that uses that module can import this one instead, and needs neither CloudVolume nor ``posix_ipc``. The arrays are the same
files, so that programs with either module share them. `ndshm.open` opens them too.

>>> from ndshm import sharedmemory
>>> handle, x = sharedmemory.ndarray((2, 3), "uint8", "docs-example", order="C")
>>> x[1, 2] = 7
>>> handle.close()
>>> sharedmemory.unlink("docs-example")
True

What differs:

- A file is never made shorter. If a name is opened with another size, it gets a new file, and processes that have the old one attached
  keep it. With CloudVolume's module, reading behind the new end ends such a process (SIGBUS).
- Memory is reserved when an array is created. If there is none, that is a `SharedMemoryAllocationError`, and not the end of the process
  that writes.
- After ``handle.close()`` the array can still be used. The memory stays attached until the handle and all arrays that use it are gone.
- Arrays without elements can be created.
- An array that was opened with ``readonly=True`` cannot change the file: writing in spite of numpy's flag changes a private copy.
- A name is one name: it cannot lead out of its directory by ``..`` or ``/``. What is not a regular file is refused, such as a link that another
  user put there, and so is a directory for emulated arrays into which other users can write.
"""

from __future__ import annotations

import errno
import math
import mmap
import operator
import os
import shutil
import stat
import sys
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from . import _core
from ._dtypes import name_of
from ._errors import AlreadyExists, InvalidArgument, NdshmError, NoSpace, NotAnArray, PermissionDenied, Unsupported
from ._guard import require_numpy

if TYPE_CHECKING:
    import numpy
    import numpy.typing

__all__ = [
    "EMULATED_SHM_DIRECTORY",
    "EMULATE_SHM",
    "PLATFORM_SHM_DIRECTORY",
    "SHM_DIRECTORY",
    "EmulatedMemoryWarning",
    "Mapping",
    "SharedMemoryAllocationError",
    "SharedMemoryReadError",
    "allocate_shm_file",
    "ndarray",
    "ndarray_fs",
    "ndarray_shm",
    "unlink",
    "unlink_fs",
    "unlink_shm",
]

_emulate, _emulated = _core.emulation()

#: The directory of shared memory.
SHM_DIRECTORY = "/dev/shm/"
#: The directory of emulated shared memory: ``NDSHM_EMULATED_DIR``, or one of this user in the temporary directory.
EMULATED_SHM_DIRECTORY = os.fspath(_emulated)
#: Whether `ndarray` and `unlink` use emulated shared memory: the choice of the environment variable ``EMULATE_SHM``, or what the system has. A
#: program may set it.
EMULATE_SHM = _emulate
#: The directory of the two that was chosen when this module was imported.
PLATFORM_SHM_DIRECTORY = EMULATED_SHM_DIRECTORY if EMULATE_SHM else SHM_DIRECTORY

# The module with the constants that count: see `adopt`.
_constants: Any = sys.modules[__name__]

# How often an array is looked for again while other processes create, replace and remove it.
_TRIES = 1000
# A warning is given if emulated arrays leave less of a disk: one part in so many.
_LITTLE = 10
# The number of links that may lead to a file, as in Linux.
_LINKS = 40
# How a file is opened: never through a link, and a pipe or device does not block. Windows has none of these flags.
_PLAIN = sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"))


class SharedMemoryReadError(NdshmError):
    """An array that was to be opened with ``readonly=True`` does not exist, or has another size."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedMemoryReadError, self.args


class SharedMemoryAllocationError(NoSpace):
    """There is not enough memory for the array. Nothing was created or changed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedMemoryAllocationError, self.args


class EmulatedMemoryWarning(RuntimeWarning):
    """Emulated shared memory has almost filled the disk."""


# The classes that are raised: see `adopt`.
_ReadError: type[SharedMemoryReadError] = SharedMemoryReadError
_AllocationError: type[SharedMemoryAllocationError] = SharedMemoryAllocationError


def adopt(module: Any) -> None:
    """Use the constants of CloudVolume's module, and raise exceptions that are also those of that module. None takes it back.

    `ndshm.cloudvolume.install` calls this. Then the functions and CloudVolume's worker processes, which have the original ones, use the same
    directories.
    """
    global _constants, _ReadError, _AllocationError
    if module is None:
        _constants, _ReadError, _AllocationError = sys.modules[__name__], SharedMemoryReadError, SharedMemoryAllocationError
        return
    _constants = module
    _ReadError = type("SharedMemoryReadError", (SharedMemoryReadError, module.SharedMemoryReadError), {})
    _AllocationError = type("SharedMemoryAllocationError", (SharedMemoryAllocationError, module.SharedMemoryAllocationError), {})


def allocation_error(error: NoSpace) -> SharedMemoryAllocationError:
    """Return the exception of this module for an array that did not fit."""
    return _AllocationError(str(error))


class Mapping(mmap.mmap):
    """The memory of an array: a ``mmap.mmap`` that can be closed while arrays use it. It is detached when the object is deallocated."""

    # `numpy.ndarray(buffer=handle)` uses the memory without an export that would be counted, and keeps this object. So the memory may go
    # only with the object.
    _is_closed = False

    @property
    def closed(self) -> bool:  # type: ignore[override]  # the stub of mmap has an attribute
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Mark the handle as closed. The memory is detached when this object and the arrays that use it are gone."""
        self._is_closed = True

    def resize(self, newsize: int) -> None:
        """Raise ``Unsupported``: arrays could use the memory, and other processes the file."""
        raise Unsupported("the memory of an array keeps its size: open the name with the other shape")

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ndarray(
    shape: Iterable[int],
    dtype: numpy.typing.DTypeLike,
    location: str,
    order: str = "F",
    readonly: bool = False,
    lock: Any = None,
    **kwargs: Any,
) -> tuple[Mapping, numpy.ndarray[Any, Any]]:
    """Open the array of this name, or create it, with zeros, if there is none.

    An array of as many bytes is opened as it is. If the name has an array of another size, the name gets a new one, which begins with the
    elements of the old one. Processes that have the old one attached keep it.

    Parameters
    ----------
    shape, dtype, order
        As for ``numpy.ndarray``.
    location
        The name. The file is in ``SHM_DIRECTORY``, or in ``EMULATED_SHM_DIRECTORY`` if ``EMULATE_SHM`` is set, and stays until it is
        removed with `unlink`.
    readonly
        Open an array that exists and has this size, for reading.
    lock
        Taken while an emulated array is created. It is not needed: creating an array takes one step.
    kwargs
        More arguments for ``numpy.ndarray``.

    Returns
    -------
    tuple
        The memory, which has ``close()``, and the array. See `Mapping`.

    Raises
    ------
    SharedMemoryReadError
        ``readonly``, and the array is missing or has another size.
    SharedMemoryAllocationError
        There is not enough memory.
    InvalidArgument
        The name is not valid.
    NotAnArray
        The name does not lead to a regular file, or is reserved.
    PermissionDenied
        Other users can write to ``EMULATED_SHM_DIRECTORY``.
    """
    if _constants.EMULATE_SHM:
        return ndarray_fs(shape, dtype, location, lock, readonly, order, emulate_shm=True, **kwargs)
    return ndarray_shm(shape, dtype, location, readonly, order, **kwargs)


def ndarray_fs(
    shape: Iterable[int],
    dtype: numpy.typing.DTypeLike,
    location: str,
    lock: Any,
    readonly: bool = False,
    order: str = "F",
    emulate_shm: bool = False,
    **kwargs: Any,
) -> tuple[Mapping, numpy.ndarray[Any, Any]]:
    """As `ndarray`, in a file.

    If the file has another size, it is replaced by one of zeros.

    Parameters
    ----------
    location
        The path of the file; with ``emulate_shm``, its name in ``EMULATED_SHM_DIRECTORY``. A path may be a link of this user, not of another.
    emulate_shm
        Use a file in ``EMULATED_SHM_DIRECTORY``. The disk is not freed until `unlink_fs` is called. An `EmulatedMemoryWarning` is
        given if there is little left of it.
    """
    wanted = _Wanted(shape, dtype, order)
    directory, name = _emulated_place(location) if emulate_shm else _file_place(location)
    with lock or nullcontext():
        memory = _attach(directory, name, wanted, readonly, keep=False)
    if emulate_shm and not readonly:
        _warn_of_full_disk(directory)
    return memory, _array(memory, wanted, readonly, kwargs)


def ndarray_shm(
    shape: Iterable[int],
    dtype: numpy.typing.DTypeLike,
    location: str,
    readonly: bool = False,
    order: str = "F",
    **kwargs: Any,
) -> tuple[Mapping, numpy.ndarray[Any, Any]]:
    """As `ndarray`, in real shared memory. The system must have ``/dev/shm``."""
    wanted = _Wanted(shape, dtype, order)
    memory = _attach(*_shared_place(location), wanted, readonly, keep=True)
    return memory, _array(memory, wanted, readonly, kwargs)


def allocate_shm_file(filename: str, nbytes: int, dbytes: int, readonly: bool) -> None:
    """Create a file of this size, unless there is one. A file of another size is replaced. `dbytes` is not used."""
    _attach(*_file_place(filename), _Wanted((nbytes,), "u1", "C"), readonly, keep=False).close()


def unlink(location: str) -> bool:
    """Remove the name of an array, and return whether there was one. The memory is freed when no process has it attached any more.

    Raises
    ------
    InvalidArgument, NotAnArray
        The name is not valid, or does not lead to a regular file.
    """
    return unlink_fs(location) if _constants.EMULATE_SHM else unlink_shm(location)


def unlink_shm(location: str) -> bool:
    """As `unlink`, in real shared memory."""
    return _unlink(*_shared_place(location))


def unlink_fs(location: str) -> bool:
    """As `unlink`, in emulated shared memory. False also if the name cannot be removed."""
    try:
        return _unlink(_constants.EMULATED_SHM_DIRECTORY, _core.checked_name(location))
    except NotAnArray:
        raise
    except OSError:
        return False


def _unlink(directory: str, name: str) -> bool:
    path = os.path.join(directory, name)
    try:
        _require_regular(path, os.lstat(path))
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


class _Wanted:
    """The layout of an array that is to be opened or created."""

    def __init__(self, shape: Iterable[int], dtype: Any, order: str) -> None:
        self.shape = tuple(operator.index(length) for length in shape)
        self.dtype: Any = require_numpy("ndshm.sharedmemory").dtype(dtype)
        self.order = order
        self.nbytes: int = math.prod(self.shape) * self.dtype.itemsize
        if any(length < 0 for length in self.shape):
            raise InvalidArgument(f"the shape {self.shape} has a negative length")

    def described(self) -> tuple[list[int], str, str]:
        """Return shape, dtype and order for a new file. A dtype that `ndshm` has no name for is described as bytes."""
        try:
            return list(self.shape), name_of(self.dtype), "F" if self.order in "fF" else "C"
        except InvalidArgument:
            return [self.nbytes], "|u1", "C"


def place(location: str) -> tuple[str, str]:
    """Return the directory and the name of the file of an array that `ndarray` opens."""
    return _emulated_place(location) if _constants.EMULATE_SHM else _shared_place(location)


def _shared_place(location: str) -> tuple[str, str]:
    return _constants.SHM_DIRECTORY, _core.checked_name(location)


def _emulated_place(location: str) -> tuple[str, str]:
    name, directory = _core.checked_name(location), _constants.EMULATED_SHM_DIRECTORY
    os.makedirs(directory, mode=0o700, exist_ok=True)
    found = os.lstat(directory)
    if hasattr(os, "geteuid") and (not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o002):
        raise PermissionDenied(
            f"`{directory}` is a link, another user's directory, or one into which other users can write: set EMULATED_SHM_DIRECTORY to a "
            "directory of yours, or take their right away (chmod o-w)"
        )
    return directory, name


def _file_place(path: str) -> tuple[str, str]:
    """Return directory and name of a file, behind links of this user. A link of another user may lead to any file of this user."""
    for _ in range(_LINKS):
        directory, name = os.path.split(path)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            break
        if not stat.S_ISLNK(found.st_mode):
            break
        if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
            raise PermissionDenied(f"`{path}` is a link of another user: give the path of the file that is meant")
        path = os.path.join(directory, os.readlink(path))
    else:
        raise InvalidArgument(f"`{path}` is reached through more than {_LINKS} links: give the path of the file")
    return os.path.realpath(directory), _core.checked_name(name)


def _require_regular(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAnArray(f"`{path}` is not a regular file: give another name, or remove it")


def _attach(directory: str, name: str, wanted: _Wanted, readonly: bool, keep: bool) -> Mapping:
    """Map the file of this name. Create or replace it if that is needed, with `keep` by one that begins with the same bytes."""
    path = os.path.join(directory, name)
    for _ in range(_TRIES):
        try:
            file = os.open(path, _PLAIN | (os.O_RDONLY if readonly else os.O_RDWR))
        except FileNotFoundError:
            if readonly:
                raise _ReadError(f"`{path}` does not exist: create an array of {wanted.nbytes} bytes first") from None
            _create(directory, name, wanted)
            continue
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a directory, a socket
                _require_regular(path, os.lstat(path))
            raise
        try:
            found = os.fstat(file)
            _require_regular(path, found)
            size = found.st_size
            if size == wanted.nbytes:
                return _map(file, size, readonly)
            if readonly:
                raise _ReadError(f"`{path}` has {size} bytes, and not {wanted.nbytes}: open it with the shape that it was created with")
            if size == 0 and hasattr(os, "posix_fallocate"):
                # Another process is just creating it, in the two steps of CloudVolume's module.
                _reserve(file, path, wanted.nbytes)
            else:
                _replace(file, directory, name, wanted, keep)
        finally:
            os.close(file)
    raise NdshmError(f"`{path}`: other processes keep replacing it, with other sizes")


def _create(directory: str, name: str, wanted: _Wanted, *, source: Any = None, replace: bool = False) -> None:
    try:
        shared = (_constants.SHM_DIRECTORY, _constants.EMULATED_SHM_DIRECTORY)
        is_shared = os.path.realpath(directory) in map(os.path.realpath, shared)
        permissions = 0o600 if is_shared else file_permissions()
        _core.create(
            name, *wanted.described(), beginning=source, directory=directory, replace=replace, permissions=permissions
        )
    except AlreadyExists:
        pass  # another process was faster
    except NoSpace as error:
        raise allocation_error(error) from error


def _reserve(file: int, path: str, nbytes: int) -> None:
    """Give an empty file its size. No process can have mapped anything of it."""
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise _AllocationError(f"`{path}` needs {nbytes} bytes: {error.strerror}") from error


def file_permissions() -> int:
    """Return the permissions of a new file: those that the umask leaves, or private where only changing the umask would tell it."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            masks = [int(line.split()[1], 8) for line in status if line.startswith("Umask:")]
    except OSError:
        masks = []
    return 0o666 & ~masks[0] if masks else 0o600


def _replace(file: int, directory: str, name: str, wanted: _Wanted, keep: bool) -> None:
    """Give the name a new file in place of this one, unless another process has done so."""
    # Processes that replace the same file do it one after the other, and only the first finds the name unchanged.
    _lock(file)
    found, old = os.fstat(file), None
    try:
        now = os.lstat(os.path.join(directory, name))
    except FileNotFoundError:
        return
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) or found.st_size == wanted.nbytes:
        return
    if keep and found.st_size and wanted.nbytes:
        old = mmap.mmap(file, min(found.st_size, wanted.nbytes), access=mmap.ACCESS_READ)
    try:
        _create(directory, name, wanted, source=old, replace=True)
    finally:
        if old is not None:
            old.close()


def _lock(file: int) -> None:
    """Lock the file for other processes with this module, until it is closed."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def _map(file: int, size: int, readonly: bool) -> Mapping:
    if size == 0:
        return Mapping(-1, 1)  # nothing can be mapped; the array has no elements
    if readonly and hasattr(mmap, "MAP_PRIVATE"):
        # Without MAP_NORESERVE, a file that is larger than the memory could not be mapped. Python 3.11 has no name for the flag.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
        return Mapping(file, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return Mapping(file, size, access=mmap.ACCESS_COPY if readonly else mmap.ACCESS_WRITE)


def _array(memory: Mapping, wanted: _Wanted, readonly: bool, kwargs: dict[str, Any]) -> numpy.ndarray[Any, Any]:
    # `numpy.ndarray` does not keep the memory from being detached, and `numpy.frombuffer` does.
    elements = require_numpy("ndshm.sharedmemory").frombuffer(memory, "u1")
    array: numpy.ndarray[Any, Any]
    array = require_numpy("ndshm.sharedmemory").ndarray(wanted.shape, wanted.dtype, elements, order=wanted.order, **kwargs)
    array.setflags(write=not readonly)
    return array


def _warn_of_full_disk(directory: str) -> None:
    usage = shutil.disk_usage(directory)
    if usage.free < usage.total // _LITTLE:
        warnings.warn(
            f"emulated shared memory in `{directory}` leaves {usage.free:,} of {usage.total:,} bytes of its disk: "
            "remove arrays with `unlink`; they stay after the program has ended",
            EmulatedMemoryWarning,
            stacklevel=4,
        )
