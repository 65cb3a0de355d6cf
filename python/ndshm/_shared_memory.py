"""`SharedMemory`: a block of bytes with a name, as in the standard library."""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from typing import Any

from . import _core
from ._array import Array
from ._errors import AlreadyExists, InvalidArgument, NotAnArray, NotFound


class SharedMemory:
    """A block of bytes with a name, like ``multiprocessing.shared_memory.SharedMemory``, but without a resource tracker.

    Blocks of both classes have the same names and files: each class can attach to a block that the other one has created. The differences:

    - Nothing removes the name but `unlink`. No process does it at exit, and none prints warnings of leaked memory. (The standard class may:
      before Python 3.13 its tracker removes every block that its process has attached to.)
    - The memory is reserved when a block is created or attached: `NoSpace` is raised at once, and no later write ends the process by
      SIGBUS.
    - `close` does not raise ``BufferError`` while views of the memory are alive. They stay valid, and the last of them frees the memory.

    Parameters
    ----------
    name
        The name. None, allowed only with `create`, chooses a free one.
    create
        Create a block of zeros, instead of attaching to one that exists.
    size
        The bytes of a new block. Ignored when attaching.
    track
        Accepted for compatibility, and ignored.

    Raises
    ------
    AlreadyExists
        The name of the new block is taken. It is a ``FileExistsError``.
    NotFound
        There is no block of this name. It is a ``FileNotFoundError``.
    NoSpace
        There is not enough memory. Nothing was created.
    InvalidArgument, NotAnArray
        The name or size is not valid, or the name belongs to something else. They are ``ValueError``.

    Examples
    --------
    >>> import ndshm
    >>> block = ndshm.SharedMemory(create=True, size=10)
    >>> same = ndshm.SharedMemory(block.name)
    >>> same.buf[0] = 7
    >>> block.buf[0]
    7
    >>> same.close()
    >>> block.close()
    >>> block.unlink()
    """

    def __init__(self, name: str | None = None, create: bool = False, size: int = 0, *, track: bool = True) -> None:
        size = operator.index(size)
        if not 0 <= size <= sys.maxsize:
            raise InvalidArgument(f"size={size}: give a number of bytes, at least 1 and at most {sys.maxsize}")
        made = _core.Made()
        try:
            if create:
                if size == 0:
                    raise InvalidArgument("size=0: give the size of the new block in bytes, at least 1")
                chosen, attachment = _create(name, size, made)
            elif name is None:
                raise InvalidArgument("name=None: give the name of the block, or create=True to create one")
            else:
                chosen, attachment = name, _core.open_bytes(name)
            # With a slash in front, as in the standard class, because programs read it there.
            self._name = f"/{chosen}"
            array = Array(attachment)
            self._size = array.nbytes
            if self._size == 0:
                raise NotAnArray(f"`{name}` has no bytes: another process has not set its size yet. Try again later")
            self._buf: memoryview | None = memoryview(array)
        except BaseException:
            made.undo()  # Ctrl-C came after the block was created
            raise

    @property
    def name(self) -> str:
        """The name, as it was given."""
        return self._name.removeprefix("/")

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self._size

    @property
    def buf(self) -> memoryview | None:
        """The bytes. None after `close`."""
        return self._buf

    def close(self) -> None:
        """Detach, but do not remove the name. Sets `buf` to None.

        What was made of `buf` stays valid: arrays, tensors, slices, and the buffer itself in a variable. The memory stays mapped until the
        last of them has gone. Without `close`, the object detaches when it is collected.
        """
        # The buffer is not released, and the array not closed: numpy and torch may keep one of these objects alone, and use its memory
        # without having a buffer of it.
        self._buf = None

    def unlink(self) -> None:
        """Remove the name, so that the memory is freed when the last process has detached. Call it once for each block.

        Raises
        ------
        NotFound
            The name does not exist any more. It is a ``FileNotFoundError``.
        """
        if not _core.unlink(self.name):
            raise NotFound(f"`{self.name}` does not exist: it was unlinked before")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, False, self._size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, size={self._size})"


def _create(name: str | None, size: int, made: _core.Made) -> tuple[str, _core.Attachment]:
    if name is not None:
        return name, _core.create(name, [size], "|u1", "C", made=made)
    # If the standard module is loaded, its function chooses the name, because programs replace that function. Loading it would load the
    # resource tracker.
    standard: Any = sys.modules.get("multiprocessing.shared_memory")
    while True:
        # The names of the standard class: short enough for every system.
        free: str = standard._make_filename().removeprefix("/") if standard else "psm_" + os.urandom(4).hex()
        with contextlib.suppress(AlreadyExists):
            return free, _core.create(free, [size], "|u1", "C", made=made)
