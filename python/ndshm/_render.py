"""Renderbuffers: arrays that many processes paint at once, chunk by chunk."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from . import _core
from ._array import Array
from ._attach import ShapeLike, lengths_of, number_of
from ._dtypes import name_of, shown
from ._errors import NotFound, PaintError, TimedOut, Unlinked, WouldBlock
from ._guard import checked
from ._imports import importing

if TYPE_CHECKING:
    import numpy.typing


class Claim(_core.RawClaim):
    """The exclusive right to paint one chunk, for a ``with`` block that gets a view of the chunk's elements.

    When the block ends without an exception the chunk is committed; after an exception it is released, unpainted. If the process is
    killed, another painter can claim the chunk. `release` releases a claim that is not used in a ``with`` block.

    ``number`` is the chunk's number. ``region`` are the elements of the array that the chunk covers, as one slice for each axis.
    """

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a claim belongs to its process: send the buffer's name, and claim a chunk there")


class FinishedChunk(_core.RawClaim):
    """Read access to one finished chunk, for a ``with`` block that gets a view of the chunk's elements.

    Other chunks may be painted meanwhile. `release` ends a guard that is not used in a ``with`` block.

    ``number`` is the chunk's number. ``region`` are the elements of the array that the chunk covers, as one slice for each axis.
    """

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a guard belongs to its process: send the buffer's name, and read the chunk there")


class RenderBuffer:
    """An array that many processes paint at once. It gets its name when all chunks are painted.

    ``RenderBuffer(..)`` begins a buffer, joins one that another process began, or resumes an interrupted one. All painters must
    give the same arguments.

    Parameters
    ----------
    name
        The name that the finished array gets.
    shape, chunk
        The lengths of the axes, of the array and of a chunk.
    dtype, order
        As for `create`.
    fingerprint
        Text that identifies the work: its source, and everything else that distinguishes it from other work.
    replace
        Let the finished array replace an array that has the name, if any. Replaces an unfinished buffer of other work at once, if no
        process is attached to it, as after a kill.
    exist_ok
        Accept an array of this name that is finished already, if it is of the same work: then there is nothing to claim, and `finish`
        returns the array. So it does not matter which of several processes starts first or last. The array's description has a digest of
        the work for that. With ``replace`` too, an array of other work is replaced.

    Raises
    ------
    Mismatch
        A buffer of this name exists for other work. With ``replace``: and a process is attached to it. With ``exist_ok`` also: a finished
        array of other work has the name.
    AlreadyExists
        A finished array has the name. With ``exist_ok``: and it does not say of which work it is. Files have no descriptions on Windows, and
        in /dev/shm before Linux 6.6.
    """

    __slots__ = ("_raw",)

    def __init__(
        self,
        name: str,
        shape: ShapeLike,
        chunk: ShapeLike,
        dtype: numpy.typing.DTypeLike,
        order: str = "C",
        *,
        fingerprint: str = "",
        replace: bool = False,
        exist_ok: bool = False,
    ) -> None:
        self._raw = _core.render(
            name,
            lengths_of(shape),
            lengths_of(chunk),
            name_of(dtype),
            order,
            fingerprint,
            replace=replace,
            exist_ok=exist_ok,
        )

    @classmethod
    def join(cls, name: str, dtype: numpy.typing.DTypeLike) -> RenderBuffer:
        """Join a buffer that another process began. Shape, order and chunks are those of the buffer.

        Raises
        ------
        NotFound
            There is no such buffer, or it is finished.
        Mismatch
            It has another dtype.
        """
        buffer = cls.__new__(cls)
        buffer._raw = _core.join_render(name, name_of(dtype))
        return buffer

    def __reduce__(self) -> NoReturn:
        raise TypeError("a renderbuffer is joined by each painter: send its name, and RenderBuffer.join there")

    @property
    def name(self) -> str:
        """The name that the finished array gets."""
        return self._raw.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return self._raw.shape

    @property
    def progress(self) -> tuple[int, int]:
        """The number of finished chunks, and of all chunks."""
        return self._raw.progress

    def claim(self, timeout: float | None = None, *, index: int | None = None) -> Claim | None:
        """Claim any chunk that is neither finished nor claimed, or the one with the number `index`.

        While all unfinished chunks, or that one, are claimed by other painters, waits until one is released, for at most `timeout` seconds.
        Returns None when every chunk, or that one, is finished. Chunks are numbered from 0, along the last axis first.

        Raises
        ------
        TimedOut, WouldBlock
            The time has passed. `WouldBlock` if the timeout is 0.
        WouldDeadlock
            Only ``with`` blocks of this thread itself paint the unfinished chunks, or that one.
        Unlinked
            The buffer was discarded.
        InvalidArgument
            There is no chunk with the number.
        """
        checked(timeout)
        number = None if index is None else number_of(index, "index")
        begin, pause = time.monotonic(), 0.0005
        while True:
            fresh, is_done = self._raw.claim(number)
            if fresh is not None:
                return Claim(fresh)
            if is_done:
                return None
            if timeout is not None and time.monotonic() - begin >= timeout:
                text = f"all unfinished chunks of `{self.name}` are claimed by other painters"
                if number is not None:
                    text = f"chunk {number} of `{self.name}` is claimed by another painter"
                raise TimedOut(f"{text}, for {timeout} seconds") if timeout else WouldBlock(text)
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def chunk(self, index: int) -> FinishedChunk | None:
        """Take read access to a finished chunk, while other chunks may still be painted. Returns None if the chunk is not finished.

        >>> import ndshm
        >>> buffer = ndshm.RenderBuffer("docs-chunk", 8, 4, "uint8")
        >>> with buffer.claim(index=1) as x:
        ...     x[:] = 7
        >>> with buffer.chunk(1) as x:
        ...     print(x.sum())
        28
        >>> buffer.chunk(0) is None
        True
        >>> buffer.discard()

        Raises
        ------
        Unlinked
            The buffer was discarded, or another process has finished it: then open the array by its name.
        InvalidArgument
            There is no chunk with the number.
        """
        fresh = self._raw.chunk(number_of(index, "index"))
        return None if fresh is None else FinishedChunk(fresh)

    def claims(self) -> Iterator[Claim]:
        """Claim chunks until every chunk is finished, by this or other painters."""
        while (claim := self.claim()) is not None:
            yield claim

    def finish(self) -> Array:
        """Give the complete array its name, and return it. Every painter may call this.

        Raises
        ------
        Incomplete
            Chunks are missing. The buffer stays as it is.
        InUse
            A claim of this buffer has not ended.
        """
        return Array(self._raw.finish())

    def discard(self) -> None:
        """Remove the unfinished buffer. The next claim fails, here and in other painters. A newer buffer of the same name stays, and so does
        an array that was finished before (``exist_ok``).
        """
        self._raw.discard()

    def __repr__(self) -> str:
        return f"<ndshm.RenderBuffer {self.name!r}: {shown(self._raw._dtype_code)} {self.shape} order {self._raw.order}>"


def paint(
    name: str,
    shape: ShapeLike,
    chunk: ShapeLike,
    dtype: numpy.typing.DTypeLike,
    function: Callable[[Any, tuple[slice, ...]], object],
    *,
    workers: int | None = None,
    order: str = "C",
    fingerprint: str | None = None,
    replace: bool = False,
    exist_ok: bool = False,
    progress: bool = False,
) -> Array:
    """Paint an array with several processes.

    Parameters
    ----------
    name, shape, chunk, dtype, order, replace, exist_ok
        As for `RenderBuffer`.
    function
        Called in a worker as ``function(x, region)`` for each chunk. ``x`` is a numpy array of the chunk's elements to fill,
        ``region`` the slices of the whole array that the chunk covers. Workers import the function, so it must be a function of a
        module, not a lambda. A function of a notebook is sent as its code, if the package cloudpickle is installed.
    workers
        The number of processes. None and 0 are one for each processor.
    fingerprint
        By default the function's name, and a digest of its code and of the numbers and texts that it uses, but not of what it calls.
    progress
        Show a progress bar. Needs the package tqdm.

    Returns
    -------
    Array
        The finished array, attached under its name.

    Raises
    ------
    PaintError
        The function raised an exception, or all workers died. The finished chunks are kept: the next call with the same arguments
        paints the rest, and ``ndshm.unlink(name, partial=True)`` frees them. If only one of the workers is killed, another
        one paints its chunk.
    InvalidArgument
        The number of workers is not one, or an argument of `RenderBuffer` is not valid.
    PaintError, pickle.PicklingError, AttributeError
        The workers cannot get the function, because it is a lambda, for example, or one of a notebook without cloudpickle. Nothing was begun.
    """
    with importing("multiprocessing.connection"):
        import multiprocessing
        import multiprocessing.connection

    workers = number_of(workers or 0, "workers")
    # If workers cannot get the function, fail here, before the buffer is begun.
    sent = _sendable(function)

    # Spawned, not forked: a fork would copy the locks of this process's threads.
    context = multiprocessing.get_context("spawn")
    identity = _identity(function) if fingerprint is None else fingerprint
    buffer = RenderBuffer(name, shape, chunk, dtype, order, fingerprint=identity, replace=replace, exist_ok=exist_ok)
    done, total = buffer.progress
    found = done
    bar = _bar(done, total, name) if progress else None
    count = min(workers or os.cpu_count() or 1, max(total - done, 1))
    running: dict[Any, Any] = {}
    try:
        for _ in range(count if done < total else 0):
            near, far = context.Pipe(duplex=False)
            process = context.Process(target=_paint_chunks, args=(name, name_of(dtype), sent, far), daemon=True)
            process.start()
            far.close()
            running[near] = process
        while True:
            now, _ = buffer.progress
            if bar is not None:
                bar.update(now - done)
            done = now
            if done == total:
                break
            if not running:
                if done == found:
                    raise PaintError(
                        f"all workers ended before one of them had painted a chunk of `{name}`: what they print says why. "
                        f"If they were killed, call again; ndshm.unlink({name!r}, partial=True) removes the unfinished buffer"
                    )
                raise PaintError(f"all workers that painted `{name}` died before it was complete: call again to paint the rest")
            ended: list[Any] = multiprocessing.connection.wait(list(running), timeout=0.05)
            for near in ended:
                process = running.pop(near)
                try:
                    trace = near.recv()
                except (EOFError, ConnectionResetError):  # killed, or done
                    trace = None
                near.close()
                process.join()
                if trace is not None:
                    raise PaintError(f"a worker failed while it painted `{name}`:\n{trace}")
    except BaseException:
        del buffer  # what is raised leads to this frame, and a buffer in use cannot be begun anew
        raise
    finally:
        for near, process in running.items():
            if done < total:
                process.terminate()
            process.join()
            near.close()
        if bar is not None:
            bar.close()
    return buffer.finish()


def _sendable(function: Any) -> Any:
    """Return what each worker gets: the function, which it imports, or the bytes of one that it cannot import.

    Raise if the workers could not import the main program, or not the function from it.
    """
    with importing("multiprocessing.reduction"):
        import multiprocessing
        from multiprocessing.reduction import ForkingPickler

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise PaintError(
            "a worker imports this program, and would begin to paint again: put the call of `paint` under `if __name__ == \"__main__\":`"
        )
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and file is not None and not os.path.exists(file):
        raise PaintError(f"workers cannot import the main program {file}: put it into a file")
    inner = _unwrapped(function)
    if getattr(inner, "__module__", None) != "__main__" or file is not None:
        ForkingPickler.dumps(function)
        return function
    try:
        with importing("cloudpickle"):
            import cloudpickle
    except ImportError as error:
        raise PaintError(
            f"workers cannot import {getattr(inner, '__qualname__', inner)} from a notebook, or from what is typed: "
            "`pip install cloudpickle`, or write the function into a module, fill.py, and import it from there"
        ) from error
    return cloudpickle.dumps(function)


def _unwrapped(function: Any) -> Any:
    while function.__class__ is functools.partial:
        function = function.func
    return function


def _identity(function: Any) -> str:
    """Return a text that changes with the code of a function and the plain values that it uses, and not with its place in a file or notebook."""
    inner = _unwrapped(function)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', repr(inner.__class__))}"
    with importing("zlib"):
        import zlib

    return f"{name} {zlib.crc32(repr(_essence(function)).encode()):08x}"


def _essence(function: Any) -> Any:
    if function.__class__ is functools.partial:
        keywords = [(key, _plain(value)) for key, value in sorted(function.keywords.items())]
        return _essence(function.func), _plain(function.args), keywords
    if not isinstance(function, FunctionType):
        return ""
    variables = [_plain(function.__globals__.get(name)) for name in _names(function.__code__)]
    cells = [_plain(cell.cell_contents) for cell in function.__closure__ or () if cell != CellType()]
    keywords = [(key, _plain(value)) for key, value in sorted((function.__kwdefaults__ or {}).items())]
    return _plain(function.__code__), _plain(function.__defaults__), keywords, variables, cells


def _plain(value: Any) -> Any:
    """Return the value of code, numbers, texts and tuples of them; of everything else, such as a function that is called, only the class."""
    if isinstance(value, CodeType):
        return value.co_code, value.co_exceptiontable, value.co_names, value.co_varnames, _plain(value.co_consts)
    kind: Any = value.__class__
    if kind is tuple:
        return [*map(_plain, value)]
    if kind is frozenset:
        return sorted(repr(_plain(element)) for element in value)  # their order is another one in each process
    # The text of other objects may have their addresses.
    return repr(value) if kind in (int, float, complex, bool, str, bytes, type(None), type(...)) else kind.__qualname__


def _names(code: CodeType) -> list[str]:
    """Return the names of globals that the code uses, and the functions in it."""
    return [*code.co_names, *(name for inner in code.co_consts if isinstance(inner, CodeType) for name in _names(inner))]


def _bar(done: int, total: int, name: str) -> Any:
    try:
        with importing("tqdm.auto"):
            from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: `pip install tqdm`") from error
    return tqdm(total=total, initial=done, desc=name, unit="chunk")


def _claims(name: str, dtype: str) -> Iterator[Claim]:
    """Claim chunks of a buffer until none is left. Errors of the block that has a claim do not reach this generator."""
    try:
        yield from RenderBuffer.join(name, dtype).claims()
    except (NotFound, Unlinked):
        pass  # finished or discarded meanwhile: the parent knows which


def _paint_chunks(name: str, dtype: str, function: Any, parent: Any) -> None:
    """Paint chunks until none is left. Runs in a worker."""
    import pickle
    import traceback

    try:
        if isinstance(function, bytes):
            function = pickle.loads(function)
        for claim in _claims(name, dtype):
            with claim as x:
                function(x, claim.region)
    except BaseException:
        parent.send(traceback.format_exc())
    parent.close()
