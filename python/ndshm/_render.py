"""Renderbuffers: arrays that many processes paint at once, chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from ._array import Array
from ._attach import lengths_of
from ._dtypes import name_of
from ._errors import NdshmError, PaintError, TimedOut, WouldBlock
from ._guard import GuardedView

if TYPE_CHECKING:
    import numpy.typing


class Claim:
    """The exclusive right to paint one chunk, for a ``with`` block that gets a view of the chunk's elements.

    When the block ends without an exception the chunk is committed; after an exception it is released, unpainted. If the process is
    killed, another painter can claim the chunk.
    """

    __slots__ = ("_name", "_raw", "_view", "number", "region")

    def __init__(self, raw: _core.RawClaim, name: str) -> None:
        self._raw, self._name = raw, name
        self._view: GuardedView | None = None
        self.number: int = raw.number
        """The chunk's number."""
        self.region: tuple[slice, ...] = tuple(slice(start, end) for start, end in raw.region)
        """The elements of the array that the chunk covers, as one slice for each axis."""

    def __enter__(self) -> Any:
        if self._view is not None:
            raise RuntimeError("this claim is in use")
        self._view = GuardedView(self._raw.view(), self._name)
        return self._view.value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        view, self._view = self._view, None
        if view is None:
            return
        alive = view.end(error is None)
        if view.is_inherited():
            self._raw.release()
            raise NdshmError(f"the claim of `{self._name}` belongs to the parent of this process: claim after fork, in the child")
        if error is None:
            self._raw.commit()
        else:
            self._raw.release()
        view.report(alive, error is None, stacklevel=3)

    def release(self) -> None:
        """Release the chunk unpainted. Call it only for a claim that is not used in a ``with`` block."""
        self._raw.release()


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
        Let the finished array replace an array that has the name, if any.

    Raises
    ------
    Mismatch
        A buffer of this name exists for other work.
    AlreadyExists
        A finished array has the name.
    """

    __slots__ = ("_raw",)

    def __init__(
        self,
        name: str,
        shape: int | tuple[int, ...] | list[int],
        chunk: int | tuple[int, ...] | list[int],
        dtype: numpy.typing.DTypeLike,
        order: str = "C",
        *,
        fingerprint: str = "",
        replace: bool = False,
    ) -> None:
        self._raw = _core.render(
            name, lengths_of(shape), lengths_of(chunk), name_of(dtype), order, fingerprint, replace=replace
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

    def claim(self, timeout: float | None = None) -> Claim | None:
        """Claim any chunk that is neither finished nor claimed.

        While all unfinished chunks are claimed by other painters, waits until one is released, for at most `timeout` seconds.
        Returns None when every chunk is finished.

        Raises
        ------
        TimedOut, WouldBlock
            The time has passed. `WouldBlock` if the timeout is 0.
        Unlinked
            The buffer was discarded.
        """
        begin, pause = time.monotonic(), 0.0005
        while True:
            raw = self._raw.claim()
            if raw is not None:
                return Claim(raw, self.name)
            done, total = self.progress
            if done == total:
                return None
            if timeout is not None and time.monotonic() - begin >= timeout:
                text = f"all unfinished chunks of `{self.name}` are claimed by other painters"
                raise TimedOut(f"{text}, for {timeout} seconds") if timeout else WouldBlock(text)
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

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
        """Remove the unfinished buffer. The next claim fails, here and in other painters. A newer buffer of the same name stays."""
        self._raw.discard()

    def __repr__(self) -> str:
        return f"<ndshm.RenderBuffer {self.name!r}: {self._raw.dtype_name} {self.shape} order {self._raw.order}>"


def paint(
    name: str,
    shape: int | tuple[int, ...] | list[int],
    chunk: int | tuple[int, ...] | list[int],
    dtype: numpy.typing.DTypeLike,
    function: Callable[[Any, tuple[slice, ...]], object],
    *,
    workers: int | None = None,
    order: str = "C",
    fingerprint: str | None = None,
    replace: bool = False,
    progress: bool = False,
) -> Array:
    """Paint an array with several processes.

    Parameters
    ----------
    name, shape, chunk, dtype, order, replace
        As for `RenderBuffer`.
    function
        Called in a worker as ``function(x, region)`` for each chunk. ``x`` is a numpy array of the chunk's elements to fill,
        ``region`` the slices of the whole array that the chunk covers. Workers import the function, so it must be a function of a
        module, not a lambda.
    workers
        The number of processes. By default one for each processor.
    fingerprint
        By default the name of the function.
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
        paints the rest, and ``RenderBuffer.join(name, dtype).discard()`` frees them. If only one of the workers is killed, another
        one paints its chunk.
    pickle.PicklingError, AttributeError
        The function cannot be imported by the workers. Nothing was begun.
    """
    import multiprocessing
    import multiprocessing.connection
    import os
    from multiprocessing.reduction import ForkingPickler

    # If workers cannot import the function, fail here, before the buffer is begun.
    ForkingPickler.dumps(function)

    # Spawned, not forked: a fork would copy the locks of this process's threads.
    context = multiprocessing.get_context("spawn")
    identity = fingerprint
    if identity is None:
        identity = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"
    buffer = RenderBuffer(name, shape, chunk, dtype, order, fingerprint=identity, replace=replace)
    done, total = buffer.progress
    bar = _bar(done, total, name) if progress else None
    count = min(workers or os.cpu_count() or 1, max(total - done, 1))
    running: dict[Any, Any] = {}
    try:
        for _ in range(count if done < total else 0):
            near, far = context.Pipe(duplex=False)
            process = context.Process(target=_paint_chunks, args=(name, name_of(dtype), function, far), daemon=True)
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
    finally:
        for near, process in running.items():
            if done < total:
                process.terminate()
            process.join()
            near.close()
        if bar is not None:
            bar.close()
    return buffer.finish()


def _bar(done: int, total: int, name: str) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: `pip install tqdm`") from error
    return tqdm(total=total, initial=done, desc=name, unit="chunk")


def _paint_chunks(name: str, dtype: str, function: Callable[[Any, tuple[slice, ...]], object], parent: Any) -> None:
    """Paint chunks until none is left. Runs in a worker."""
    import traceback

    from ._errors import NotFound, Unlinked

    try:
        try:
            buffer = RenderBuffer.join(name, dtype)
            for claim in buffer.claims():
                with claim as x:
                    function(x, claim.region)
        except (NotFound, Unlinked):
            pass  # finished or discarded meanwhile: the parent knows which
    except BaseException:
        parent.send(traceback.format_exc())
    parent.close()
