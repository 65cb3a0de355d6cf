"""Streams: frames from one writer to any number of readers."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, Self, TypeAlias, cast, overload

from . import _core
from ._array import _machine, _refuse_other_machine, is_array
from ._attach import ShapeLike, lengths_of, number_of, permissions_of
from ._dtypes import name_of, numpy_dtype, refuse_all_but_bits, refuse_mask, shown
from ._errors import Closed, FramesHeld, InvalidArgument, Mismatch, TimedOut, WouldBlock
from ._guard import checked, require_numpy
from ._imports import importing
from ._types import Scalar

if TYPE_CHECKING:
    import numpy.typing

#: What the writer does when only frames are left that a cursor has not acknowledged.
Backpressure: TypeAlias = Literal["wait_while_alive", "wait", "overwrite"]

#: A dtype, or a dtype and a number of values.
MetaLike: TypeAlias = Any

#: Name, dtype, number of values, and where they begin.
_Field: TypeAlias = tuple[str, str, int, int]

#: How values of each dtype are packed, and how many numbers each value has.
_FORMATS = {
    "|u1": ("B", 1),
    "<u2": ("H", 1),
    "<u4": ("I", 1),
    "<u8": ("Q", 1),
    "|i1": ("b", 1),
    "<i2": ("h", 1),
    "<i4": ("i", 1),
    "<i8": ("q", 1),
    "<f2": ("e", 1),
    "bfloat16": ("H", 1),
    "<f4": ("f", 1),
    "<f8": ("d", 1),
    "<c8": ("f", 2),
    "<c16": ("d", 2),
}


def _decode(field: _Field, data: bytes) -> Any:
    """Return the values of a field: a number, or a tuple of several."""
    _, code, count, offset = field
    letter, parts = _FORMATS[code]
    numbers: Any = struct.unpack_from(f"<{count * parts}{letter}", data, offset)
    if code == "bfloat16":
        numbers = struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(bits << 16 for bits in numbers)))
    if parts == 2:
        numbers = tuple(complex(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True))
    return numbers[0] if count == 1 else numbers


def _encode(field: _Field, value: Any) -> bytes:
    name, code, count, _ = field
    letter, parts = _FORMATS[code]
    numbers: list[Any]
    try:
        numbers = list(value)
    except TypeError:  # one number
        numbers = [value]
    if len(numbers) != count:
        raise InvalidArgument(f"{name!r} has {count} value(s) of {shown(code)}, not {len(numbers)}")
    if parts == 2:
        numbers = [part for number in map(complex, numbers) for part in (number.real, number.imag)]
    try:
        return struct.pack(f"<{count * parts}{letter}", *numbers)
    except (struct.error, OverflowError) as error:
        raise InvalidArgument(f"{name}={value!r} is no value of {shown(code)}: {error}") from None


def _fields_of(meta: Mapping[str, MetaLike]) -> list[tuple[str, str, int]]:
    """Return name, dtype and number of the values that each frame is to have."""
    fields = list[tuple[str, str, int]]()
    for name, given in meta.items():
        kind, count = cast("tuple[Any, Any]", given) if isinstance(given, tuple) else (given, 1)
        code = name_of(kind)
        if code in ("|b1", "bfloat16"):
            raise InvalidArgument(f"{name!r} cannot be of {shown(code)}: use {'uint8' if code == '|b1' else 'float32'}")
        fields.append((name, code, number_of(count, f"meta[{name!r}], count")))
    return fields


def _notes_of(notes: Mapping[str, str]) -> list[tuple[str, str]]:
    for key, text in notes.items():
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument(f"notes[{key!r}]={text!r}: give a text, with a space between words: {{'axes': 'y x', 'resolution': '0.65 0.65'}}")
    return list(notes.items())


class NewMeta(Mapping[str, Any]):
    """The values that a new frame has beside its elements: ``frame.meta["exposure"] = 0.02``. They are zeros until they are set.

    One value is a number, several are a tuple.
    """

    __slots__ = ("_frame",)

    def __init__(self, frame: NewFrame[Any]) -> None:
        self._frame = frame

    def _field(self, name: str) -> _Field:
        found = next((field for field in self._frame._fields if field[0] == name), None)
        if found is None:
            known = ", ".join(repr(field[0]) for field in self._frame._fields) or "none"
            raise KeyError(f"{name!r} is no value of this stream: it has {known} (Stream.create, meta=)")
        return found

    def __getitem__(self, name: str) -> Any:
        return _decode(self._field(name), bytes(self._frame._meta_bytes))

    def __setitem__(self, name: str, value: Any) -> None:
        field = self._field(name)
        self._frame._set_meta_bytes(field[3], _encode(field, value))

    def update(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Set several values."""
        for name, value in {**(values or {}), **more}.items():
            self[name] = value

    def __iter__(self) -> Iterator[str]:
        return (field[0] for field in self._frame._fields)

    def __len__(self) -> int:
        return len(self._frame._fields)

    def __repr__(self) -> str:
        return repr(dict(self))


class NewFrame(_core.RawNewFrame, Generic[Scalar]):
    """A frame that is being written, for a ``with`` block. `StreamWriter.frame` returns one.

    When the block ends without an exception the frame is committed: readers see it. After an exception the frame never was.
    """

    # The writer ends the stream when it is gone.
    __slots__ = ("_writer",)

    _writer: StreamWriter[Scalar]

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

    @property
    def x(self) -> numpy.ndarray[Any, numpy.dtype[Scalar]]:
        """The elements, as a numpy array to write to; without numpy a memoryview. They are those of an older frame, or zeros.

        When the block ends the array becomes read-only. If another view of it is still alive, `ViewOutlivesGuard` is issued as a warning: what
        is written through such a view later is in a frame that readers see.
        """
        x: numpy.ndarray[Any, numpy.dtype[Scalar]] = super().x
        return x

    @property
    def number(self) -> int:
        """The number that the frame will have."""
        return super().number

    @property
    def meta(self) -> NewMeta:
        """The values beside the elements. They are zeros until they are set."""
        return NewMeta(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a frame that is being written belongs to its process: commit it, and read it in the other one")


class StreamWriter(Generic[Scalar]):
    """The writer of a stream. `Stream.create` returns one.

    Use it in a ``with`` block, which ends the stream. The stream also ends when this object is gone, or the process exits. A killed process
    leaves the name for a successor (``resume=True``), and readers get `NoWriter`.

    A forked child cannot use its parent's writer.
    """

    __slots__ = ("__weakref__", "_raw")

    def __init__(self, raw: _core.RawWriter) -> None:
        self._raw = raw
        weakref.finalize(self, raw.end_quietly)

    def frame(self, timeout: float | None = 0) -> NewFrame[Scalar]:
        """Return the next frame, for a ``with`` block that writes it.

        ::

            with out.frame() as frame:
                frame.x[:] = 7
                frame.meta["exposure"] = 0.02

        Parameters
        ----------
        timeout
            Seconds to wait for a slot. 0 does not wait, None waits without limit.

        Raises
        ------
        SlotsHeld
            When the block is entered: readers hold all slots but that of the newest frame, or cursors do. Nothing is lost: try again, or drop
            the frame that was to be written.
        Closed
            The stream was ended here.
        Unlinked
            Another process has replaced the stream.
        RuntimeError
            A frame is being written already.
        Unsupported
            This process was forked from the writer's.
        """
        checked(timeout)
        frame = NewFrame[Scalar](self._raw, timeout)
        frame._writer = self
        return frame

    def send(self, x: Any, /, *, timeout: float | None = 0, **meta: Any) -> int:
        """Copy an array into a new frame, commit it, and return its number. An `Array` is copied under its read lock.

        ``**meta`` are the values beside the elements. One with the name ``timeout`` can be set in `frame` only.

        Raises
        ------
        Mismatch
            The array has another shape or dtype than the frames, or is an `Array` with other names of axes.
        InvalidArgument, KeyError
            A value is not one of its dtype, or the stream has no such value.

        The other errors are those of `frame`. Nothing was committed.
        """
        if is_array(x):
            if x.axes and self.axes and x.axes != self.axes:
                theirs, ours = ", ".join(x.axes), ", ".join(self.axes)
                raise Mismatch(f"`{self.name}` has frames of {ours}, and the array is of {theirs}: send numpy.asarray(array), turned if need be")
            with x.read() as view:
                return self._send(view, timeout, meta)
        refuse_mask(x)
        return self._send(require_numpy("sending an array").asarray(x), timeout, meta)

    def _send(self, x: Any, timeout: float | None, meta: dict[str, Any]) -> int:
        if x.shape != self.shape:
            raise Mismatch(f"`{self.name}` has frames of shape {self.shape}, not {x.shape}")
        if self._raw._dtype_code == "bfloat16":
            refuse_all_but_bits(self.dtype, x)
        if x.dtype != self.dtype:
            raise Mismatch(f"`{self.name}` has frames of {self.dtype_name}, not {x.dtype} (convert with x.astype({self.dtype_name!r}))")
        with self.frame(timeout) as frame:
            frame.meta.update(meta)
            frame.x[...] = x
            number = frame.number
        return number

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._raw.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of a frame's axes."""
        return self._raw.shape

    @property
    def dtype(self) -> numpy.dtype[Scalar]:
        """The element type, as a numpy dtype. `dtype_name` is its name, and needs no numpy."""
        return numpy_dtype(self._raw._dtype_code)

    @property
    def dtype_name(self) -> str:
        """numpy's name of the element type, such as ``"uint16"``."""
        return shown(self._raw._dtype_code)

    @property
    def order(self) -> str:
        """``"C"`` or ``"F"``."""
        return self._raw.order

    @property
    def axes(self) -> tuple[str, ...]:
        """A word for each axis of a frame: its name, or its number if it has no name. Empty if the stream names no axis."""
        return self._raw.axes

    @property
    def notes(self) -> dict[str, str]:
        """What the stream says about its frames, by the keys that `Stream.create` was given."""
        return self._raw.notes

    @property
    def slots(self) -> int:
        """The number of slots: the most frames that are there at once."""
        return self._raw.slots

    @property
    def head(self) -> int:
        """The number of the newest frame; 0 before the first."""
        return self._raw.head

    @property
    def epoch(self) -> int:
        """How many writers the stream has had, this one included."""
        return self._raw.epoch

    def end(self) -> None:
        """End the stream. Readers get the frames that are left, then their loops end. Frames that they hold stay.

        The name is removed, unless the stream was created with ``keep=True``. A second call does nothing.

        Raises
        ------
        RuntimeError
            A frame is being written.
        TimedOut
            Another process was changing the names for 10 seconds; they stay.
        Unsupported
            This process was forked from the writer's.
        """
        self._raw.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None:
        self.end()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stream has one writer, which belongs to its process: send the name, and ndshm.Stream.open there")

    def __repr__(self) -> str:
        return f"<ndshm.StreamWriter {self.name!r}: {self.dtype_name} {self.shape} order {self.order}, {self.slots} slots, head {self.head}>"


class Frame(_core.RawFrame, Generic[Scalar]):
    """A frame of a stream. It is not overwritten as long as this object lives, or anything that was made of it without a copy.

    That is the array ``frame.x`` and its views, ``memoryview(frame)``, and tensors of ``from_dlpack(frame)``. So
    ``frames.append(frame.x)`` keeps frames that never change, and each of them takes a slot from the writer: `copy` what is kept for long.

    The memory is mapped for reading. A library that ignores that an array is read-only, and writes, ends the process.

    A forked child holds the frames that it inherits too, and the arrays that were made of them. If the stream has lost its name under a living writer,
    it cannot: a `RuntimeWarning` says so.
    """

    __slots__ = ()

    @property
    def x(self) -> numpy.ndarray[Any, numpy.dtype[Scalar]]:
        """The elements, as a read-only numpy array; without numpy a memoryview."""
        x: numpy.ndarray[Any, numpy.dtype[Scalar]] = super().x
        return x

    @property
    def number(self) -> int:
        """The frame's number. The first frame of a stream has number 1, and each one has the number after the one before."""
        return super().number

    @property
    def epoch(self) -> int:
        """Which writer of the stream has written it: 1 is the first, and each takeover (``resume=True``) counts one more."""
        return super().epoch

    @property
    def time(self) -> float | None:
        """When it was committed, in seconds since the machine was started: a clock that all processes share and that never goes back.

        On Linux it is ``time.clock_gettime(time.CLOCK_BOOTTIME)``. None if the writer could not read the clock.
        """
        return super().time

    @property
    def wall_time(self) -> float:
        """When it was committed, as ``time.time()`` has it. That clock may be set."""
        return super().wall_time

    @property
    def meta(self) -> dict[str, Any]:
        """The values beside the elements, by their names. One value is a number, several are a tuple."""
        data = bytes(self._meta_bytes)
        return {field[0]: _decode(field, data) for field in self._fields}

    def copy(self) -> numpy.ndarray[Any, numpy.dtype[Scalar]]:
        """Return a copy of the elements, which holds nothing."""
        copied: numpy.ndarray[Any, numpy.dtype[Scalar]] = require_numpy("copying a frame").array(self.x)
        return copied

    def release(self) -> None:
        """Give the frame up, which the end of a ``with`` block does too. Arrays and other views of it that are alive still hold it."""
        super().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a frame is held by its process: send frame.copy(), or the reader and frame.number, and get(number) there")

    def __repr__(self) -> str:
        return f"<ndshm.Frame {self.number} of {self._stream!r}{', released' if self.released else ''}>"


class StreamReader(Generic[Scalar]):
    """A reader of a stream. `Stream.open` returns one.

    ::

        for frame in cam:
            show(frame.x)

    A reader never delays the writer, and holds frames without copying them. A loop over it ends when the writer ends the stream.

    Several threads may use a reader: each frame goes to one of them. In a forked child it goes on by itself. A pickle of a reader is the name and the options of `Stream.open`: its receiver opens the stream for itself.
    """

    __slots__ = ("_backpressure", "_cursor", "_is_warned", "_latest", "_raw", "_timeout")

    def __init__(
        self, raw: _core.RawReader, latest: bool, cursor: str | None, backpressure: Backpressure, timeout: float | None
    ) -> None:
        self._raw = raw
        self._latest = latest
        self._cursor = cursor
        self._backpressure: Backpressure = backpressure
        self._timeout = timeout
        self._is_warned = False

    def next(self, timeout: float | None = None) -> Frame[Scalar]:
        """Return the oldest frame that is newer than the last one that was returned. The first call returns the oldest one that is there.

        Parameters
        ----------
        timeout
            Seconds to wait for a frame. None waits without limit, 0 not at all.

        Raises
        ------
        TimedOut, WouldBlock
            There was no new frame in time. `WouldBlock` if the timeout is 0.
        Closed
            The writer has ended the stream, and all frames were returned.
        NoWriter
            The writer was killed, and all frames were returned. Another call waits for a successor. With the timeout 0 it is raised once, and only
            if the descriptor (`fileno`) became readable for it.
        Unlinked
            Another stream has the name.
        Unsupported
            This is a cursor, and this process was forked from the one that opened it.
        ValueError
            The reader is closed.
        """
        return self._take(False, timeout)

    def latest(self, timeout: float | None = None) -> Frame[Scalar]:
        """Return the newest frame, if it is newer than the last one that was returned. Frames that it skips do not count as `lost`.

        The parameters and errors are those of `next`, and `Unsupported` if this is a cursor, which misses no frame.
        """
        return self._take(True, timeout)

    def get(self, number: int) -> Frame[Scalar] | None:
        """Return the frame of this number, or None if it is not there. What `next` returns is not affected."""
        found = self._raw.get(number_of(number, "number"))
        return None if found is None else self._frame(found, 3)

    def since(self, number: int) -> None:
        """Go on behind frame `number`, as if `next` had returned it: `next` returns the oldest one behind it that is there, and `lost` counts those
        that are not. 0 begins anew.

        Raises
        ------
        InvalidArgument
            The stream has no frame of this number yet.
        Unsupported
            This is a cursor, which misses no frame.
        """
        self._raw.since(number_of(number, "number"))

    def _take(self, latest: bool, timeout: float | None) -> Frame[Scalar]:
        checked(timeout)
        found = self._raw.take(latest, timeout)
        if found is None:
            raise WouldBlock(f"`{self.name}` has no new frame")
        return self._frame(found, 4)

    def _frame(self, found: tuple[_core.FreshFrame, int], level: int) -> Frame[Scalar]:
        fresh, held = found
        # A loop holds two frames while it takes the next one.
        if held > max(2, self.slots // 2) and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"this reader holds {held} of the {self.slots} slots of `{self.name}`, and the writer will soon have none for a new frame: keep "
                "frame.copy() instead of frames and views of them, or create the stream with more slots",
                FramesHeld,
                stacklevel=level,
            )
        return Frame(fresh)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame[Scalar]:
        try:
            return self._take(self._latest, self._timeout)
        except Closed:
            raise StopIteration from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame[Scalar]:
        """Wait without blocking the event loop. A task that is cancelled meanwhile takes no frame."""
        with importing("asyncio"):
            import asyncio

        end = math.inf if self._timeout is None else time.monotonic() + self._timeout
        await asyncio.sleep(0)  # otherwise a fast writer would keep the loop's other tasks from running
        asks, turn = False, 0
        while True:
            try:
                found = self._raw.poll(self._latest, asks)
            except Closed:
                raise StopAsyncIteration from None
            if found is not None:
                return self._frame(found, 3)
            left = end - time.monotonic()
            if left <= 0:
                raise TimedOut(f"`{self.name}` had no new frame for {self._timeout} seconds")
            asks = await self._news(left, turn)
            turn += 1

    async def _news(self, limit: float, turn: int) -> bool:
        """Wait until there may be a frame, or for ``limit`` seconds. Return whether to ask whether the writer lives."""
        import asyncio

        loop = asyncio.get_running_loop()
        came = loop.create_future()

        def come() -> None:
            if not came.done():
                came.set_result(None)

        def leave(descriptor: int) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.remove_reader(descriptor)

        with contextlib.ExitStack() as after:
            try:
                # A duplicate: a loop has one callback for each descriptor, which may be the program's own.
                descriptor = os.dup(self._raw.fileno(True))
                after.callback(os.close, descriptor)
                loop.add_reader(descriptor, come)
            except NotImplementedError:  # on Windows, and in loops that wait for no descriptor
                await asyncio.sleep(min(0.0005 * 2 ** min(turn, 6), 0.02, limit))
                return turn % 8 == 7
            after.callback(leave, descriptor)
            if limit < math.inf:
                after.callback(loop.call_later(limit, come).cancel)
            await came
        return True

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to take, for ``select``, ``poll`` and event loops.

        ::

            while select.select([cam], [], [], 1)[0]:
                with contextlib.suppress(ndshm.WouldBlock):
                    show(cam.next(timeout=0).x)

        It becomes readable for a frame that was not returned yet, the end of the stream, its replacement, and once for the death of its writer.
        Take frames with ``timeout=0`` then: `WouldBlock` says that there is none. It is readable until none is left; after the end
        of the stream always, as a socket is. Only wait for it, and neither read nor close it: it belongs to this reader, until that is closed. In a forked child call this again.

        From the first call on a thread watches the stream, which wakes ten times a second while there is no frame. It needs no lock of the interpreter.

        Raises
        ------
        Unsupported
            On Windows. There ``async for`` looks for frames with pauses of at most 20 ms.
        OSError
            The process may have no more descriptors or threads.
        ValueError
            The reader is closed.
        """
        return self._raw.fileno(False)

    def ack(self, number: int) -> None:
        """Let the writer overwrite all frames up to this number, when what they were for is done: when they are on the disk, for example.

        Only a reader with a cursor can do so. Taking frames and dropping them acknowledges nothing.

        Raises
        ------
        InvalidArgument
            The cursor has not returned a frame of this number yet.
        Unsupported
            The reader has no cursor, or this process was forked from the one that opened it.
        """
        self._raw.acknowledge(number_of(number, "number"))

    @property
    def acknowledged(self) -> int | None:
        """The last number that was acknowledged, by this process or the one before. None without a cursor."""
        return self._raw.acknowledged

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._raw.name

    @property
    def cursor(self) -> str | None:
        """The name of the cursor, or None without one."""
        return self._cursor

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of a frame's axes."""
        return self._raw.shape

    @property
    def dtype(self) -> numpy.dtype[Scalar]:
        """The element type, as a numpy dtype. `dtype_name` is its name, and needs no numpy."""
        return numpy_dtype(self._raw._dtype_code)

    @property
    def dtype_name(self) -> str:
        """numpy's name of the element type, such as ``"uint16"``."""
        return shown(self._raw._dtype_code)

    @property
    def order(self) -> str:
        """``"C"`` or ``"F"``."""
        return self._raw.order

    @property
    def axes(self) -> tuple[str, ...]:
        """A word for each axis of a frame: its name, or its number if it has no name. Empty if the stream names no axis."""
        return self._raw.axes

    @property
    def notes(self) -> dict[str, str]:
        """What the stream says about its frames, by the keys that `Stream.create` was given."""
        return self._raw.notes

    @property
    def slots(self) -> int:
        """The number of slots: the most frames that are there at once."""
        return self._raw.slots

    @property
    def head(self) -> int:
        """The number of the newest frame; 0 before the first."""
        return self._raw.head

    @property
    def lost(self) -> int:
        """How many frames were committed between those that `next` returned, and missed."""
        return self._raw.lost

    @property
    def held(self) -> int:
        """How many slots the frames of this reader hold, and the arrays that were made of them."""
        return self._raw.held

    @property
    def has_writer(self) -> bool | None:
        """Whether the stream has a writer that lives. None if the kernel does not tell, because a process has locked what tells of it."""
        return self._raw.has_writer

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._raw.closed

    def close(self) -> None:
        """Close the reader. Another process can read with its cursor then. Frames that are held stay."""
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.name, _machine(), os.fspath(self._raw.directory))
        return _open_pickled, (*place, self._latest, self._cursor, self._backpressure, self._timeout)

    def __repr__(self) -> str:
        cursor = "" if self._cursor is None else f", cursor {self._cursor!r}"
        state = ", closed" if self.closed else ""
        return f"<ndshm.StreamReader {self.name!r}: {self.dtype_name} {self.shape} order {self.order}, {self.slots} slots{cursor}{state}>"


def _open_pickled(
    name: str, machine: str, directory: str, latest: bool, cursor: str | None, backpressure: Backpressure, timeout: float | None
) -> StreamReader:
    _refuse_other_machine(machine, f"the reader of `{name}`")
    raw = _core.open_stream(name, directory=directory, cursor=cursor, backpressure=backpressure)
    return StreamReader(raw, latest, cursor, backpressure, timeout)


class StreamCursorInspection(NamedTuple):
    """A cursor of a stream: its name, the last number that it has acknowledged, what the writer does for it, whether a process reads with it."""

    name: str
    acknowledged: int
    backpressure: str
    has_reader: bool


class StreamInspection(NamedTuple):
    """What a stream is, and which processes use it. `Stream.inspect` returns it.

    `copied` says whether readers copy frames instead of holding them. `meta` has dtype and number of the values beside the elements, by their names. `frames` is how many frames are there, `epoch` how many
    writers there were. `has_writer` says whether the writer lives, None if the kernel does not tell. `has_ended` says whether the last writer has
    ended the stream. `rate` is in frames per second, of those that are there; None if they are fewer than two. `held` is how many slots readers
    hold, or the writer is writing, and `holders` the numbers of those readers' processes, as far as they are known. `cursors` is None if this
    user may not look at them.
    """

    dtype: str
    shape: tuple[int, ...]
    order: str
    notes: dict[str, str]
    slots: int
    copied: bool
    meta: dict[str, tuple[str, int]]
    head: int
    frames: int
    epoch: int
    has_writer: bool | None
    has_ended: bool
    rate: float | None
    held: int
    holders: tuple[int, ...]
    cursors: list[StreamCursorInspection] | None


class Stream:
    """Frames of one shape from one writer to any number of readers: from a camera, a simulation, a decoder.

    A stream keeps the last frames in a ring of slots. Readers hold frames without copying them, and never delay the writer, which skips the slots
    that they hold::

        out = ndshm.Stream.create("cam0", (1080, 1920), "uint16", slots=8)  # in the camera's process
        with out.frame() as frame:
            frame.x[:] = 7

        for frame in ndshm.Stream.open("cam0"):  # in any other process
            print(frame.number, frame.x.mean())

    The name goes when the writer ends the stream, unless it was created with ``keep=True``. The memory is freed with the name and the last
    process that has the stream open.
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("ndshm.Stream.create(name, ..) begins a stream, and ndshm.Stream.open(name) reads one")

    @overload
    @staticmethod
    def create(
        name: str,
        shape: ShapeLike,
        dtype: type[Scalar] | numpy.dtype[Scalar],
        slots: int = 8,
        *,
        order: str = "C",
        meta: Mapping[str, MetaLike] | None = None,
        notes: Mapping[str, str] | None = None,
        resume: bool = False,
        replace: bool = False,
        keep: bool = False,
        copied: bool = False,
        sparse: bool = False,
        permissions: int = 0o600,
    ) -> StreamWriter[Scalar]: ...
    @overload
    @staticmethod
    def create(
        name: str,
        shape: ShapeLike,
        dtype: numpy.typing.DTypeLike,
        slots: int = 8,
        *,
        order: str = "C",
        meta: Mapping[str, MetaLike] | None = None,
        notes: Mapping[str, str] | None = None,
        resume: bool = False,
        replace: bool = False,
        keep: bool = False,
        copied: bool = False,
        sparse: bool = False,
        permissions: int = 0o600,
    ) -> StreamWriter: ...
    @staticmethod
    def create(
        name: str,
        shape: ShapeLike,
        dtype: numpy.typing.DTypeLike,
        slots: int = 8,
        *,
        order: str = "C",
        meta: Mapping[str, MetaLike] | None = None,
        notes: Mapping[str, str] | None = None,
        resume: bool = False,
        replace: bool = False,
        keep: bool = False,
        copied: bool = False,
        sparse: bool = False,
        permissions: int = 0o600,
    ) -> StreamWriter:
        """Create a stream under a name that must be free, and become its writer.

        Parameters
        ----------
        name
            A file name: no ``/``, and not too long.
        shape, dtype, order
            Of each frame, as for `create`. There is no ``bool``: use ``uint8``, and ``frame.x.view(bool)``.
        slots
            The number of slots, at least 3. Each has the memory of one frame. Readers can hold ``slots - 2`` frames at once, all of them together,
            and a reader that holds none can be ``slots - 1`` frames late.
        meta
            The values that each frame has beside its elements, by their names: a dtype, or a dtype and how many of them, such as
            ``{"exposure": "float64", "stage": ("int32", 3)}``. They have at most 240 bytes together.
        notes
            What the frames are, for readers, recordings and ``ndshm view --live``: texts by their keys, such as
            ``{"axes": "y x", "resolution": "0.65 0.65", "unit": "um"}``. ``axes`` has a different word for each axis, in the order of `shape`.
        resume
            Take over a stream of this name that has no writer: it was killed, or has ended a stream that is kept. Numbers go on. If there is
            none, it is created.
        replace
            Replace a stream of this name that has no writer. Its readers get `Unlinked`.
        keep
            Keep name and frames when the writer ends the stream, for readers that come later. `unlink` removes them.
        copied
            Readers copy frames instead of holding them. It is for small frames, up to about 4 KiB: neither side takes a lock, and no frame that is kept
            takes a slot from the writer.
        sparse
            Reserve no memory: a process that writes when none is left is killed.
        permissions
            The permission bits of the file: with 0o644 other users can read the stream.

        Raises
        ------
        AlreadyExists
            There is a stream of this name.
        HasWriter
            With ``resume`` or ``replace``: its writer lives.
        Mismatch, InvalidArgument
            With ``resume``: the stream has other frames, another number of slots, other values or other notes. Or an argument is not valid.
        NoSpace
            There is not enough memory. Nothing was created.
        """
        lengths, element, count, bits = lengths_of(shape), name_of(dtype), number_of(slots, "slots"), permissions_of(permissions)
        if element == "|b1":
            raise InvalidArgument("frames cannot have elements of bool: use uint8, and frame.x.view(bool)")
        return StreamWriter(
            _core.create_stream(
                name,
                lengths,
                element,
                order,
                count,
                _fields_of(meta or {}),
                _notes_of(notes or {}),
                resume=resume,
                replace=replace,
                keep=keep,
                copied=copied,
                sparse=sparse,
                permissions=bits,
            )
        )

    @staticmethod
    def open(
        name: str,
        *,
        latest: bool = False,
        every: bool = False,
        cursor: str | None = None,
        backpressure: Backpressure = "wait_while_alive",
        timeout: float | None = None,
    ) -> StreamReader:
        """Open a stream for reading.

        Parameters
        ----------
        name
            The name of the stream.
        latest
            A loop over the reader gets the newest frame in each turn, and skips those before it.
        every
            A loop gets every frame, beginning with the oldest one that is there. This is the default. A reader that is too slow misses frames,
            and `StreamReader.lost` counts them.
        cursor
            The name of a cursor: a reader that misses no frame. Frames that it has not acknowledged (`StreamReader.ack`) are not overwritten, and
            the next process that opens it goes on there. A new one begins with the first frame that is committed afterwards. It needs permission
            to write: it is for processes of the writer's user.
        backpressure
            What the writer does when only frames are left that the cursor has not acknowledged. ``"wait_while_alive"``: it has no slot
            (`SlotsHeld`) while a process reads with the cursor. ``"wait"``: it has none until the cursor is read on, or removed with `unlink`.
            ``"overwrite"``: it overwrites them.
        timeout
            Seconds that each turn of a loop waits for a frame, before it raises `TimedOut`. None waits without limit.

        Raises
        ------
        NotFound
            There is no stream of this name.
        HasReader
            Another process reads with the cursor.
        PermissionDenied
            This user may not read the stream, or not use cursors.
        """
        checked(timeout)
        if latest and (every or cursor is not None):
            raise InvalidArgument("latest=True skips frames: give it without every=True and without a cursor")
        return StreamReader(_core.open_stream(name, cursor=cursor, backpressure=backpressure), latest, cursor, backpressure, timeout)

    @staticmethod
    def unlink(name: str, cursor: str | None = None) -> bool:
        """Remove the name of a stream, or one of its cursors, and return whether it existed.

        Processes that have the stream open go on, the writer included; no process finds it any more. Without its cursor the writer no longer
        keeps frames for it.

        Raises
        ------
        HasReader
            A process reads with the cursor.
        NotFound
            There is no stream of which to remove a cursor.
        PermissionDenied
            This user may not remove it.
        """
        return _core.unlink_stream(name, cursor)

    @staticmethod
    def inspect(name: str) -> StreamInspection:
        """Return what a stream is, and which processes use it. No process is disturbed.

        Raises
        ------
        NotFound
            There is no stream of this name.
        PermissionDenied
            This user may not read it.
        """
        found = _core.inspect_stream(name)
        cursors = found.pop("cursors")
        return StreamInspection(
            dtype=shown(found.pop("dtype")),
            meta={field: (shown(code), count) for field, code, count, _ in found.pop("meta")},
            cursors=None if cursors is None else [StreamCursorInspection(*cursor) for cursor in cursors],
            **found,
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_core.keep_frames, after_in_parent=_core.free_frames, after_in_child=_core.hold_frames)
