"""Exceptions of the package.

Each one derives from :class:`NdshmError` and, where Python has a class for the same event, from that one too. So
``except FileNotFoundError`` catches :class:`NotFound`.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "Cancelled",
    "ChunkError",
    "Closed",
    "CudaError",
    "Elsewhere",
    "FramesHeld",
    "HandleExpired",
    "HasReader",
    "HasWriter",
    "InUse",
    "Incomplete",
    "InvalidArgument",
    "Mismatch",
    "MissingChunk",
    "NdshmError",
    "NoSpace",
    "NoWriter",
    "NotAVolume",
    "NotAnArray",
    "NotDescribed",
    "NotFound",
    "PaintError",
    "PermissionDenied",
    "SlotsHeld",
    "StoreError",
    "TimedOut",
    "TooManyHandles",
    "TooManyOpenFiles",
    "TransferWarning",
    "Unlinked",
    "Unsupported",
    "ViewCopied",
    "ViewOutlivesGuard",
    "WouldBlock",
    "WouldDeadlock",
]


class NdshmError(Exception):
    """Base class of all exceptions of this package."""


class NotFound(NdshmError, FileNotFoundError):
    """No file has the name."""


class Elsewhere(NotFound):
    """No file has the name in the directory that was searched, but one in the other of the two usual directories has. The text names both."""


class AlreadyExists(NdshmError, FileExistsError):
    """The name is taken."""


class HandleExpired(NdshmError, FileNotFoundError):
    """The pickle of an array came too late: it expired, was loaded before, was given up when memory ran out, or the array has gone."""


class InvalidArgument(NdshmError, ValueError):
    """A name, dtype, shape or setting is not valid. One of another type than is needed is a ``TypeError`` too."""


class InvalidType(InvalidArgument, TypeError):
    """An argument has another type than is needed."""


class Incomplete(NdshmError, RuntimeError):
    """Chunks of the renderbuffer are not painted yet."""


class InUse(NdshmError, RuntimeError):
    """A claim of the renderbuffer has not ended in this process, or an array on a GPU is shared, so that `write` could race."""


class PaintError(NdshmError, RuntimeError):
    """The function of `paint` raised an exception in a worker, or all workers died. The text has the worker's traceback."""


class Cancelled(NdshmError, RuntimeError):
    """The download or upload was cancelled."""


class NotAVolume(NdshmError, ValueError):
    """The path or URL does not lead to a volume, or the volume's description is damaged."""


class ChunkError(NdshmError, OSError):
    """A stored chunk cannot be read or decoded."""


class MissingChunk(ChunkError):
    """A chunk is not stored, and neither the volume nor the caller gives a value for its elements."""


class StoreError(NdshmError, OSError):
    """The directory or server that has a volume does not answer, or refuses the request."""


class NotAnArray(NdshmError, ValueError):
    """The name does not belong to a plain array."""


class NoSpace(NdshmError, MemoryError):
    """There is not enough memory for the elements. Nothing was created. The text says how much pickles keep, and what frees it."""


class Mismatch(NdshmError, ValueError):
    """The array has another dtype, shape, order or size than the one requested."""


class NotDescribed(NdshmError, ValueError):
    """The array does not describe itself: give its dtype and shape to ``open``."""


class Unlinked(NdshmError, FileNotFoundError):
    """The name was removed, or belongs to another array by now."""


class WouldBlock(NdshmError, BlockingIOError):
    """Another process or thread has the lock, and the call does not wait."""


class WouldDeadlock(NdshmError, RuntimeError):
    """This thread itself has a lock that the call would wait for."""


class TimedOut(NdshmError, TimeoutError):
    """The lock was not free within the timeout."""


class PermissionDenied(NdshmError, PermissionError):
    """This user may not access the array in this way, or it was opened read-only."""


class TooManyHandles(NdshmError, RuntimeError):
    """128 handles of a counted array are in flight."""


class TooManyOpenFiles(NdshmError, OSError):
    """A guard needs a file descriptor, and the process or the system has none left."""


class Unsupported(NdshmError, NotImplementedError):
    """The platform or file system cannot do it."""


class CudaError(NdshmError, RuntimeError):
    """CUDA cannot be used in a forked child of a process that used it, the GPU cannot be reached, or the driver refused a call."""


class HasWriter(NdshmError, BlockingIOError):
    """Another process writes to the stream. There is one writer at a time."""


class NoWriter(NdshmError, BrokenPipeError):
    """The writer of the stream was killed, and the reader has seen all frames that are left. Another call waits for a successor."""


class HasReader(NdshmError, BlockingIOError):
    """Another process reads with the cursor."""

    #: The name of the cursor.
    cursor: str = ""


class SlotsHeld(NdshmError, BlockingIOError):
    """Readers hold all slots of the stream but that of the newest frame, or cursors do. Nothing is lost: try again, or drop the frame."""

    #: How many slots the stream has.
    slots: int = 0
    #: The numbers of processes that hold some, as far as they are known. In another pid namespace they are those of other processes.
    holders: list[int] = []
    #: The names of the cursors that have not acknowledged frames.
    cursors: list[str] = []


class Closed(NdshmError, EOFError):
    """The stream has ended: its writer adds no more frames. Loops over a reader end then."""


class FramesHeld(RuntimeWarning):
    """A reader holds more than half of the slots of its stream, so that the writer may soon have none: copy what is kept."""


class TransferWarning(RuntimeWarning):
    """Something went wrong in a download or upload that did not stop it, such as the loss of one of several workers; or a new volume does
    not keep something of the array or volume that it is like."""


class ViewCopied(UserWarning):
    """A numpy view of an array was pickled as a copy: what its receiver writes is not in the array."""


class ViewOutlivesGuard(RuntimeWarning):
    """A view of the elements is still alive after its guard has ended, and is no longer protected by a lock."""
