"""Streams: what readers see, what they hold, and what ends them. Where sharing is the point, the other process is a real one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import multiprocessing
import os
import pickle
import re
import select
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from conftest import shared_files
from ndshm import Stream

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(autouse=True)
def no_stream_is_left() -> Iterator[None]:
    """Fail if a test leaves a file of a stream, and remove it."""
    before = shared_files()
    yield
    left = shared_files() - before
    for file in left:
        Path("/dev/shm", file).unlink(missing_ok=True)
    assert not left


def fill(out: ndshm.StreamWriter, *values: int) -> None:
    for value in values:
        with out.frame() as frame:
            frame.x[...] = value


def values(frames: Any) -> list[int]:
    return [int(frame.x.flat[0]) for frame in frames]


def wait_until(met: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end
        time.sleep(0.005)


# A writer in a process of its own, which writes when it is told to.
WRITER = """
    import sys, ndshm
    name, options = sys.argv[1], eval(sys.argv[2])
    out = ndshm.Stream.create(name, (4, 6), "uint16", 4, **options)
    print(out.epoch, flush=True)
    for line in sys.stdin:
        with out.frame() as frame:
            frame.x[:] = int(line)
        print(out.head, flush=True)
    {end}
"""


class Other:
    """A writer in another process."""

    def __init__(self, name: str, end: str = "out.end()", **options: Any) -> None:
        program = textwrap.dedent(WRITER).replace("{end}", end)
        command = [sys.executable, "-c", program, name, repr(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.epoch = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def write(self, *values: int) -> None:
        assert self.process.stdin is not None
        for value in values:
            self.process.stdin.write(f"{value}\n")
            self.process.stdin.flush()
            assert int(self.line()) > 0

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()

    def kill(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait(60)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


@contextlib.contextmanager
def other(name: str, end: str = "out.end()", **options: Any) -> Iterator[Other]:
    writer = Other(name, end, **options)
    try:
        yield writer
    finally:
        if writer.process.poll() is None:
            writer.kill()
        Stream.unlink(name)


# Writing


def test_frames_arrive_in_another_process(name: str) -> None:
    program = """
        import sys, ndshm
        cam = ndshm.Stream.open(sys.argv[1])
        print("open", flush=True)
        for frame in cam:
            print(frame.number, frame.x.sum(), frame.meta, frame.epoch)
    """
    with Stream.create(name, (4, 6), "uint16", 8, meta={"exposure": "float64", "stage": ("int32", 3)}) as out:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program), name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == "open\n"
            with out.frame() as frame:
                frame.x[:] = 1
                frame.meta["exposure"] = 0.02
            assert out.send(np.full((4, 6), 2, "u2"), stage=(1, -2, 3)) == 2
            out.end()
            printed = reader.communicate(timeout=60)[0]
    assert printed.splitlines() == ["1 24 {'exposure': 0.02, 'stage': (0, 0, 0)} 1", "2 48 {'exposure': 0.0, 'stage': (1, -2, 3)} 1"]
    assert reader.returncode == 0


def test_writer_says_what_it_is(name: str) -> None:
    with Stream.create(name, (4, 6), "uint16", 5, order="F") as out:
        assert (out.name, out.shape, out.dtype, out.dtype_name, out.order, out.slots) == (name, (4, 6), np.dtype("u2"), "uint16", "F", 5)
        assert (out.head, out.epoch) == (0, 1)
        assert name in repr(out)
        with out.frame() as frame:
            assert frame.number == 1 and frame.x.flags.f_contiguous and out.head == 0
            frame.x[:] = np.arange(24).reshape(4, 6)
        assert out.head == 1
        cam = Stream.open(name)
        assert (cam.name, cam.shape, cam.dtype, cam.order, cam.slots, cam.head) == (name, (4, 6), np.dtype("u2"), "F", 5, 1)
        assert (cam.next().x == np.arange(24).reshape(4, 6)).all()


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "bfloat16"])
def test_every_dtype_arrives(name: str, dtype: str) -> None:
    with Stream.create(name, (2, 3), dtype, 3) as out:
        fill(out, 3)
        x = Stream.open(name).next().x
        assert x.dtype == out.dtype and (x == np.full((2, 3), 3).astype(out.dtype)).all()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4, 5), 7])
def test_every_shape_arrives(name: str, shape: Any) -> None:
    with Stream.create(name, shape, "u1", 3) as out:
        fill(out, 3)
        x = Stream.open(name).next().x
        assert x.shape == out.shape and (x == 3).all()


def test_frame_with_an_exception_never_was(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out:
        fill(out, 1)
        with pytest.raises(KeyError), out.frame() as frame:
            frame.x[:] = 2
            raise KeyError
        assert out.head == 1
        fill(out, 3)
        assert values(Stream.open(name).get(number) for number in (1, 2)) == [1, 3]


def test_new_frame_ends_with_its_block(name: str) -> None:
    with Stream.create(name, 4, "u1", 3, meta={"a": "u1"}) as out:
        new = out.frame()
        with pytest.raises(ValueError, match="only inside of its block"):
            _ = new.x
        with new as frame:
            x = frame.x
            x[:] = 1
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 2
        for use in (lambda: frame.x, lambda: frame.number, lambda: frame.meta["a"], lambda: frame.meta.update(a=1)):
            with pytest.raises(ValueError, match="has ended"):
                use()
        with pytest.raises(RuntimeError, match="was used"):
            frame.__enter__()


def test_view_that_outlives_the_block_is_named_and_keeps_the_memory(name: str) -> None:
    out = Stream.create(name, 4, "u1", 3)
    with pytest.warns(ndshm.ViewOutlivesGuard, match=name):
        with out.frame() as frame:
            part = frame.x[1:]
    cam = Stream.open(name)
    assert cam.next().number == 1
    del out, frame  # the stream ends although the view lives
    gc.collect()
    with pytest.raises(ndshm.Closed):
        cam.next()
    part[:] = 7  # the memory is there


def test_frame_keeps_its_writer(name: str) -> None:
    with Stream.create(name, 4, "u1", 3).frame() as frame:
        frame.x[:] = 1
        cam = Stream.open(name)
    del frame
    gc.collect()
    assert values(cam) == [1]


def test_one_frame_is_written_at_a_time(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out:
        with out.frame() as frame:
            frame.x[:] = 1
            with pytest.raises(RuntimeError, match="is being written"):
                out.frame().__enter__()
            with pytest.raises(RuntimeError, match="is being written"):
                out.end()
        assert out.head == 1


def test_send_refuses_other_arrays(name: str) -> None:
    with Stream.create(name, (2, 3), "u2", 3, meta={"a": "u1"}) as out:
        x = np.ones((2, 3), "u2")
        for wrong in (x.T, x[0], x.astype("u1"), x.astype("f4"), 1):
            with pytest.raises(ndshm.Mismatch, match=name):
                out.send(wrong)
        with pytest.raises(ndshm.InvalidArgument, match="mask"):
            out.send(np.ma.masked_array(x, x > 0))
        for meta, error in (({"b": 1}, KeyError), ({"a": 256}, ndshm.InvalidArgument), ({"a": (1, 2)}, ndshm.InvalidArgument)):
            with pytest.raises(error):
                out.send(x, **meta)
        assert out.head == 0
        with ndshm.share(x) as array:
            assert out.send(array, a=255) == 1
        assert Stream.open(name).next().meta == {"a": 255}


def test_send_refuses_an_array_with_other_axes(name: str, tmp_path: Path) -> None:
    volume = ndshm.create_volume(f"precomputed://{tmp_path}/v", (2, 2, 2), (2, 2, 2), "uint8", kind="image")
    volume[...] = np.arange(8, dtype="u1").reshape(2, 2, 2, 1)
    array = ndshm.download(volume).result()
    assert array.axes == ("x", "y", "z", "channel")
    for axes, fits in ((None, True), ("x y z channel", True), ("z y x channel", False)):
        with Stream.create(name, array.shape, "u1", notes=axes and {"axes": axes}) as out:
            if not fits:
                with pytest.raises(ndshm.Mismatch, match="z, y, x, channel"):
                    out.send(array)
            assert out.send(array if fits else np.asarray(array).T.reshape(array.shape)) == 1


def test_values_beside_the_elements_are_zeros_until_they_are_set(name: str) -> None:
    with Stream.create(name, 4, "u1", 3, meta={"a": "f8", "b": ("c8", 2), "c": "f2", "d": ("i8", 1)}) as out:
        zeros = {"a": 0, "b": (0, 0), "c": 0, "d": 0}
        for _ in range(5):  # slots are used again
            with out.frame() as frame:
                assert dict(frame.meta) == zeros and len(frame.meta) == 4
                frame.meta.update({"a": np.float64(1.5), "b": np.array([1j, 2])}, c=0.5, d=-(2**63))
                assert frame.meta["b"] == (1j, 2)
        assert Stream.open(name).next().meta == {"a": 1.5, "b": (1j, 2), "c": 0.5, "d": -(2**63)}
        with pytest.raises(KeyError, match="it has 'a'"), out.frame() as frame:
            frame.meta["e"] = 1


def test_arguments_are_checked(name: str) -> None:
    refused: list[dict[str, Any]] = [
        {"slots": 2},
        {"slots": -1},
        {"dtype": "bool"},
        {"dtype": "U3"},
        {"notes": {"axes": "y x"}},
        {"notes": {"axes": ("x",)}},
        {"notes": {"dtype": "u1"}},
        {"meta": {"a": "bool"}},
        {"meta": {"a": ("f8", 31)}},
        {"meta": {"": "f8"}},
        {"meta": {"a": ("f8", 0)}},
        {"permissions": 0o7777},
        {"name": "a/b"},
    ]
    for wrong in refused:
        with pytest.raises(ndshm.InvalidArgument):
            Stream.create(**{"name": name, "shape": 4, "dtype": "u1", **wrong})
    with pytest.raises(ValueError, match="order"):
        Stream.create(name, 4, "u1", order="K")
    with Stream.create(name, 4, "u1") as out:
        assert out.slots == 8
        mixed: list[dict[str, Any]] = [{"latest": True, "every": True}, {"latest": True, "cursor": "a"}]
        for options in mixed:
            with pytest.raises(ndshm.InvalidArgument, match="latest"):
                Stream.open(name, **options)
        with pytest.raises(ValueError, match="wait_while_alive"):
            Stream.open(name, cursor="a", backpressure="never")  # type: ignore[arg-type]
        for cursor in ("", "a" * 49, "a\0b"):
            with pytest.raises(ndshm.InvalidArgument, match="cursor"):
                Stream.open(name, cursor=cursor)
        for use in (lambda: out.frame(-1), lambda: Stream.open(name).next(float("nan")), lambda: Stream.open(name, timeout=-1)):
            with pytest.raises(ValueError, match="seconds"):
                use()
    with pytest.raises(TypeError, match="Stream.create"):
        Stream()


# Names


def test_errors_about_names_speak_of_streams(name: str) -> None:
    for use in (Stream.open, Stream.inspect):
        with pytest.raises(ndshm.NotFound, match="no stream"):
            use(name)
    with ndshm.create(name, 4, "u1"), pytest.raises(ndshm.NotFound, match="no stream"):
        Stream.open(name)  # an array is none
    with Stream.create(name, 4, "u1"):
        with pytest.raises(ndshm.AlreadyExists, match="resume=True.*Stream.unlink"):
            Stream.create(name, 4, "u1")
        for resume in (True, False):
            with pytest.raises(ndshm.HasWriter):
                Stream.create(name, 4, "u1", resume=resume, replace=not resume)


def test_name_goes_with_the_writer(name: str) -> None:
    out = Stream.create(name, 4, "u1")
    fill(out, 1)
    cam = Stream.open(name)
    del out
    gc.collect()
    assert not Stream.unlink(name)
    assert values(cam) == [1], "the frames that are left, and then a quiet end"


def test_writer_that_ended_writes_no_more(name: str) -> None:
    out = Stream.create(name, 4, "u1")
    out.end()
    out.end()
    with pytest.raises(ndshm.Closed), out.frame():
        pass


def test_kept_stream_is_taken_over(name: str) -> None:
    try:
        with Stream.create(name, 4, "u1", keep=True) as out:
            fill(out, 1, 2)
        assert values(Stream.open(name)) == [1, 2]
        assert Stream.inspect(name).has_ended
        with Stream.create(name, 4, "u1", resume=True, keep=True) as out:
            assert (out.epoch, out.head) == (2, 2)
            fill(out, 3)
            assert [frame.epoch for frame in map(Stream.open(name).get, (2, 3)) if frame] == [1, 2]
        with pytest.raises(ndshm.Mismatch):
            Stream.create(name, 4, "u2", resume=True)
        with pytest.raises(ndshm.InvalidArgument, match="slots"):
            Stream.create(name, 4, "u1", 9, resume=True)
    finally:
        assert Stream.unlink(name)


def test_readers_of_a_replaced_stream_are_told(name: str) -> None:
    with Stream.create(name, 4, "u1", keep=True) as out:
        fill(out, 1)
    cam = Stream.open(name)
    with Stream.create(name, 5, "f4", replace=True) as out:
        fill(out, 2)
        assert cam.next().x.tolist() == [1] * 4
        with pytest.raises(ndshm.Unlinked, match="replaced"):
            cam.next()
        assert Stream.open(name).next().x.tolist() == [2] * 5


def test_stream_of_a_process_that_exits_ends(name: str) -> None:
    """Although the interpreter does not free what a module keeps."""
    with other(name, end="sys.modules['keep'] = out; import gc; gc.disable()") as writer:
        cam = Stream.open(name)
        writer.write(1)
        writer.end()
        assert values(cam) == [1]
        assert not Stream.unlink(name)


# Reading


def test_reader_chooses_its_frames(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        every, latest = Stream.open(name), Stream.open(name, latest=True)
        fill(out, 1, 2, 3)
        assert values([next(every), next(latest)]) == [1, 3]
        fill(out, *range(4, 10))
        assert values([next(every), next(latest), every.latest()]) == [6, 9, 9]
        assert (every.lost, latest.lost, every.head) == (4, 0, 9)
        found = every.get(8)
        assert found is not None and found.x[0] == 8 and every.get(3) is None and every.get(0) is None and every.get(10) is None


def test_reader_goes_on_behind_a_number(name: str) -> None:
    with other(name) as writer:
        writer.write(*range(10))
        cam = Stream.open(name)
        cam.since(5)
        assert (cam.next().number, cam.lost) == (7, 1)
        cam.since(10)
        with pytest.raises(ndshm.WouldBlock):
            cam.next(timeout=0)
        for wrong in (11, -1):
            with pytest.raises(ndshm.InvalidArgument):
                cam.since(wrong)
        with pytest.raises(ndshm.Unsupported, match="cursor"):
            Stream.open(name, cursor="disk").since(1)


def test_timeouts_of_a_reader(name: str) -> None:
    with Stream.create(name, 4, "u1"):
        cam = Stream.open(name, timeout=0.2)
        for take in (cam.next, cam.latest):
            with pytest.raises(ndshm.WouldBlock, match="no new frame"):
                take(timeout=0)
            begin = time.monotonic()
            with pytest.raises(ndshm.TimedOut, match=name):
                take(timeout=0.3)
            assert time.monotonic() - begin > 0.25
        with pytest.raises(ndshm.TimedOut, match="200ms"):
            next(cam)


def test_frame_says_when_it_was_committed(name: str) -> None:
    with Stream.create(name, 4, "u1") as out:
        before, since_boot = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        fill(out, 1)
        frame = Stream.open(name).next()
        assert frame.time is not None and since_boot <= frame.time <= time.clock_gettime(time.CLOCK_BOOTTIME)
        assert before - 0.001 <= frame.wall_time <= time.time() + 0.001


def test_frame_is_read_only_and_ends_when_it_is_released(name: str) -> None:
    with Stream.create(name, 4, "u1") as out:
        fill(out, 1)
        cam = Stream.open(name)
        with cam.next() as frame:
            with pytest.raises(ValueError, match="read-only"):
                frame.x[0] = 2
            with pytest.raises(ValueError, match="WRITEABLE"):
                frame.x.flags.writeable = True
            copy = frame.copy()
            assert copy.flags.writeable and copy.flags.owndata and cam.held == 1
        assert cam.held == 0 and frame.released and "released" in repr(frame)
        with pytest.raises(ValueError, match="released"):
            _ = frame.x
        with pytest.raises(BufferError, match="released"):
            memoryview(frame)
        assert frame.number == 1 and copy.tolist() == [1] * 4
        frame.release()


EXPORTS: dict[str, Callable[[Any], Any]] = {
    "x": lambda frame: frame.x,
    "part": lambda frame: frame.x[::2],
    "memoryview": memoryview,
    "asarray": np.asarray,
    "dlpack": np.from_dlpack,
    "dlpack of x": lambda frame: frame.x.__dlpack__(max_version=(1, 0)),
    "capsule": lambda frame: frame.__dlpack__(max_version=(1, 0)),
    "buffer": lambda frame: np.ndarray(4, "u1", buffer=frame),
    "buffer of x": lambda frame: memoryview(memoryview(frame.x)),
}


@pytest.mark.parametrize("export", sorted(EXPORTS))
def test_slot_is_held_as_long_as_an_export_lives(name: str, export: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        cam = Stream.open(name)
        fill(out, 1)
        with cam.next() as frame:
            kept = EXPORTS[export](frame)
        del frame
        fill(out, *range(2, 20))
        assert cam.held == 1
        if type(kept).__name__ != "PyCapsule":
            assert set(np.asarray(kept).flat) == {1}
        del kept
        gc.collect()
        assert cam.held == 0


def test_buffer_of_a_frame_holds_as_long_as_the_frame(name: str) -> None:
    """Libraries release the buffer at once, and keep the object and the address."""
    with Stream.create(name, 4, "u1", 4) as out:
        cam = Stream.open(name)
        fill(out, 1)
        frame = cam.next()
        memoryview(frame).release()
        frame.release()
        assert cam.held == 1
        del frame
        assert cam.held == 0


def test_kept_arrays_never_change(name: str) -> None:
    with Stream.create(name, (100, 100), "u1", 16) as out:
        cam, kept = Stream.open(name), []
        for value in range(1, 8):
            fill(out, value)
            kept.append(next(cam).x)
        fill(out, *range(100, 140))
        assert [set(x.flat) for x in kept] == [{value} for value in range(1, 8)]
        del cam, out
        gc.collect()
        assert [x[0, 0] for x in kept] == list(range(1, 8)), "the memory outlives the stream and its reader"


def test_unversioned_dlpack_is_refused(name: str) -> None:
    with Stream.create(name, 4, "u1") as out:
        fill(out, 1)
        frame = Stream.open(name).next()
        assert frame.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError, match="read-only"):
            frame.__dlpack__()
        with pytest.raises(BufferError, match="CPU"):
            frame.__dlpack__(stream=1)  # type: ignore[arg-type]


def test_writer_without_slots_names_the_holders(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out:
        fill(out, 1, 2, 3)
        cam = Stream.open(name)
        held = [cam.next(), cam.next()]
        with pytest.raises(ndshm.SlotsHeld, match=str(os.getpid())) as refused:
            out.frame().__enter__()
        assert (refused.value.slots, refused.value.holders, refused.value.cursors) == (3, [os.getpid()], [])
        same = pickle.loads(pickle.dumps(refused.value))
        assert (same.slots, same.holders) == (3, [os.getpid()])
        begin = time.monotonic()
        with pytest.raises(ndshm.SlotsHeld):
            out.frame(timeout=0.2).__enter__()
        assert time.monotonic() - begin > 0.15
        assert out.head == 3
        threading.Timer(0.1, held.clear).start()
        with out.frame(timeout=60) as frame:
            frame.x[:] = 4


def test_reader_that_holds_much_is_warned_once(name: str) -> None:
    with Stream.create(name, 4, "u1", 6) as out:
        cam, kept = Stream.open(name), []
        for value in range(3):
            fill(out, value)
            kept.append(next(cam).x)
        fill(out, 3)
        with pytest.warns(ndshm.FramesHeld, match="4 of the 6 slots.*copy") as warned:
            for frame in cam:
                kept.append(frame.x)
                break
        assert warned[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fill(out, 4)
            kept.append(cam.next().x)
        del frame


def test_loop_over_few_slots_does_not_warn(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out:
        cam = Stream.open(name)
        fill(out, 1)
        for frame in cam:
            if frame.number == 9:
                break
            fill(out, frame.number + 1)


def test_closed_reader_gives_nothing_and_its_frames_stay(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out:
        fill(out, 1)
        with Stream.open(name) as cam:
            frame = cam.next()
        assert cam.closed and "closed" in repr(cam) and frame.x[0] == 1
        for use in (lambda: next(cam), lambda: cam.head, lambda: cam.get(1)):
            with pytest.raises(ValueError, match="closed"):
                use()


def test_frames_and_writers_are_not_pickled(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out:
        fill(out, 1)
        new = out.frame()
        for thing in (out, new, Stream.open(name).next()):
            with pytest.raises(TypeError):
                pickle.dumps(thing)


def test_threads_share_a_reader(name: str) -> None:
    with Stream.create(name, 4, "u4", 64) as out:
        cam, seen = Stream.open(name), list[int]()

        def read() -> None:
            seen.extend(frame.number for frame in cam)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for value in range(200):
            with out.frame(timeout=60) as frame:
                frame.x[:] = value
            wait_until(lambda: len(seen) > value - 30)
        assert cam.head == 200 and cam.lost == 0
        out.end()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(1, 201))


# Waiting


def test_wait_leaves_the_interpreter_to_other_threads(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out:
        cam = Stream.open(name)
        threading.Timer(0.3, fill, (out, 5)).start()
        assert cam.next(timeout=60).x[0] == 5


@pytest.mark.parametrize("wait", ["cam.next()", "next(cam)", "cam.latest(50)", "list(cam)", "out.frame(None).__enter__()"])
def test_ctrl_c_ends_a_wait(name: str, wait: str) -> None:
    program = f"""
        import sys, ndshm
        out = ndshm.Stream.create(sys.argv[1], 4, "uint8", 3)
        cam = ndshm.Stream.open(sys.argv[1])
        if "frame" in {wait!r}:
            for _ in range(3):
                out.frame().__enter__().__exit__(None, None, None)
            held = cam.next(), cam.next()
        print("waiting", flush=True)
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        held = None
        with out.frame() as frame:
            frame.x[:] = 1
        print(cam.latest().x[0])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0].split() == ["interrupted", "1"]


def test_killed_writer_is_told_and_a_successor_is_waited_for(name: str) -> None:
    with other(name, resume=True) as writer:
        cam = Stream.open(name)
        writer.write(1, 2)
        assert cam.has_writer is True and values([next(cam)]) == [1]
        writer.kill()
        assert cam.has_writer is False
        assert values([next(cam)]) == [2], "what was committed is there"
        for take in (cam.next, cam.latest, cam.__next__):
            begin = time.monotonic()
            with pytest.raises(ndshm.NoWriter, match=name):
                take()
            assert time.monotonic() - begin < 30
        with other(name, resume=True) as successor:
            assert successor.epoch == 2 and cam.has_writer
            successor.write(3)
            frame = cam.next(timeout=60)
            assert (frame.number, frame.epoch, frame.x[0, 0]) == (3, 2, 3)
            successor.end()
            assert list(cam) == []


def test_frame_of_a_writer_that_is_killed_in_its_block_never_was(name: str) -> None:
    with other(name, end="with out.frame() as f: f.x[:] = 99; print(f.number, flush=True); import time; time.sleep(600)") as writer:
        cam = Stream.open(name)
        writer.write(*range(1, 7))
        assert writer.process.stdin is not None
        writer.process.stdin.close()
        assert writer.line() == "7\n", "it is in the block"
        assert Stream.inspect(name).held == 1
        writer.kill()
        assert Stream.inspect(name).held == 0
        with Stream.create(name, (4, 6), "uint16", 4, resume=True) as out:
            assert (out.epoch, out.head) == (2, 6)
            with out.frame() as frame:
                frame.x[:] = 7
            out.end()
            assert values(cam) == [4, 5, 6, 7]


def test_killed_reader_holds_nothing(name: str) -> None:
    program = """
        import sys, ndshm
        cam = ndshm.Stream.open(sys.argv[1])
        held = cam.next(), cam.next()
        print("holds", flush=True)
        sys.stdin.read()
    """
    with Stream.create(name, 4, "u1", 3) as out:
        fill(out, 1, 2, 3)
        command = [sys.executable, "-c", textwrap.dedent(program), name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == b"holds\n"
            with pytest.raises(ndshm.SlotsHeld) as refused, out.frame():
                pass
            assert refused.value.holders == [reader.pid] and Stream.inspect(name).holders == (reader.pid,)
            reader.kill()
            reader.wait(60)
            with out.frame(timeout=60) as frame:
                frame.x[:] = 4


def test_event_loop_runs_while_a_reader_waits(name: str) -> None:
    async def main() -> None:
        seen, ticks = list[int](), 0

        async def read() -> None:
            async for frame in Stream.open(name):
                seen.append(int(frame.x[0]))

        with Stream.create(name, 4, "u1", 8) as out:
            task = asyncio.create_task(read())
            for value in (1, 2, 3):
                fill(out, value)
                while len(seen) < value:
                    ticks += 1
                    await asyncio.sleep(0.001)
        await task
        assert seen == [1, 2, 3] and ticks

    asyncio.run(asyncio.wait_for(main(), 60))


def test_async_loop_is_told_of_a_killed_writer_and_of_a_timeout(name: str) -> None:
    async def first(cam: ndshm.StreamReader) -> int:
        async for frame in cam:
            return frame.number
        return 0

    with other(name) as writer:
        with pytest.raises(ndshm.TimedOut, match="0.1"):
            asyncio.run(first(Stream.open(name, timeout=0.1)))
        cam = Stream.open(name)
        writer.write(1)
        assert asyncio.run(first(cam)) == 1
        writer.kill()
        with pytest.raises(ndshm.NoWriter):
            asyncio.run(asyncio.wait_for(first(cam), 60))


# Descriptors and event loops


def is_readable(cam: ndshm.StreamReader, timeout: float = 60) -> bool:
    return bool(select.select([cam], [], [], timeout)[0])


def is_silent(cam: ndshm.StreamReader) -> bool:
    """Whether the descriptor stays as it is when there is nothing to take, for longer than the thread sleeps."""
    return not is_readable(cam, 0.25)


def threads() -> set[int]:
    """The threads of this process that watch streams."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if (task / "comm").read_text() == "ndshm-stream\n":
                found.add(int(task.name))
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def alone() -> None:
    """Wait for the end of the threads of earlier tests."""
    gc.collect()
    wait_until(lambda: not threads())


def test_descriptor_is_readable_until_all_frames_are_taken(name: str) -> None:
    with other(name) as writer, Stream.open(name) as cam:
        assert cam.fileno() == cam.fileno() and is_silent(cam)
        writer.write(1)
        assert is_readable(cam)
        assert cam.next(timeout=0).number == 1 and not is_readable(cam, 0)
        with pytest.raises(ndshm.WouldBlock):
            cam.next(timeout=0)
        assert is_silent(cam)
        writer.write(2, 3, 4)
        for number in (2, 3, 4):
            assert is_readable(cam) and cam.next(timeout=0).number == number
        assert is_silent(cam)
        writer.write(5, 6)
        assert is_readable(cam) and cam.latest(timeout=0).number == 6 and is_silent(cam)
        poller = select.poll()
        poller.register(cam, select.POLLIN)
        assert poller.poll(0) == []
        writer.write(7)
        assert poller.poll(60_000) == [(cam.fileno(), select.POLLIN)] and next(cam).number == 7 and poller.poll(0) == []


def test_descriptor_tells_what_came_before_its_first_use(name: str) -> None:
    with Stream.create(name, 4, "u1", 4, keep=True) as out:
        fill(out, 1)
        assert is_readable(Stream.open(name))
    cam = Stream.open(name)
    assert is_readable(cam) and cam.next(timeout=0).number == 1 and is_readable(cam)
    with pytest.raises(ndshm.Closed):
        cam.next(timeout=0)
    assert Stream.unlink(name)


def test_descriptor_stays_readable_after_the_end(name: str) -> None:
    with other(name) as writer:
        cam = Stream.open(name)
        assert is_silent(cam)
        writer.end()
        for _ in range(2):
            assert is_readable(cam)
            with pytest.raises(ndshm.Closed):
                cam.next(timeout=0)


def test_descriptor_tells_of_a_replacement_and_of_a_stream_that_goes_on(name: str) -> None:
    with Stream.create(name, 4, "u1", 4, keep=True):
        cam = Stream.open(name)
        assert is_silent(cam)
    assert is_readable(cam)
    with Stream.create(name, 4, "u1", 4, keep=True, resume=True) as out:
        with pytest.raises(ndshm.WouldBlock):
            cam.next(timeout=0)
        assert is_silent(cam)
        fill(out, 1)
        assert is_readable(cam) and cam.next(timeout=0).number == 1 and is_silent(cam)
    with Stream.create(name, 4, "u1", 4, replace=True):
        assert is_readable(cam)
        with pytest.raises(ndshm.Unlinked):
            cam.next(timeout=0)


def refuse_without_writer(cam: ndshm.StreamReader) -> None:
    """Check that the death of the writer is told, once."""
    assert is_readable(cam)
    with pytest.raises(ndshm.NoWriter, match=cam.name):
        cam.next(timeout=0)
    with pytest.raises(ndshm.WouldBlock):
        cam.next(timeout=0)
    assert is_silent(cam)


def test_descriptor_tells_of_each_death_once(name: str) -> None:
    with other(name, resume=True) as writer:
        cam = Stream.open(name)
        assert is_silent(cam)
        writer.write(1)
        writer.kill()
        assert is_readable(cam) and cam.next(timeout=0).number == 1
        refuse_without_writer(cam)
        successor = Other(name, resume=True)
        successor.write(2)
        assert is_readable(cam)
        frame = cam.next(timeout=0)
        assert (frame.number, frame.epoch) == (2, 2) and is_silent(cam)
        successor.kill()
        refuse_without_writer(cam)


# A writer that writes many frames, each as soon as it has a slot.
FAST = """
    import sys, ndshm
    with ndshm.Stream.create(sys.argv[1], 4, "uint32", 16, copied=sys.argv[3] == "copied") as out:
        print(flush=True)
        sys.stdin.readline()
        for number in range(int(sys.argv[2])):
            with out.frame(timeout=60) as frame:
                frame.x[:] = number
"""


@contextlib.contextmanager
def fast(name: str, count: int, kind: str = "held") -> Iterator[Callable[[], None]]:
    """Start such a writer. It begins when the function is called."""
    command = [sys.executable, "-c", textwrap.dedent(FAST), name, str(count), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None and writer.stdout is not None and writer.stdout.readline() == "\n"

        def begin() -> None:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()

        try:
            yield begin
        except BaseException:
            writer.kill()
            raise
    assert writer.returncode == 0


@pytest.mark.parametrize("kind", ["held", "copied"])
def test_no_frame_of_a_fast_writer_is_missed_by_select(name: str, kind: str) -> None:
    with fast(name, 10_000, kind) as begin, Stream.open(name, cursor="disk", backpressure="wait") as cam:
        seen, in_vain = list[int](), 0
        cam.fileno()
        begin()
        with contextlib.suppress(ndshm.Closed):
            while is_readable(cam):
                try:
                    frame = cam.next(timeout=0)
                except ndshm.WouldBlock:
                    in_vain += 1
                    continue
                seen.append(int(frame.x[0]))
                cam.ack(frame.number)
        assert seen == list(range(10_000))
        assert in_vain < 100, "it is readable for frames only"


def test_thread_that_watches_ends_with_its_reader(name: str, alone: None) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        before = descriptors()
        cam, other_one = Stream.open(name), Stream.open(name)
        # Threads and descriptors of earlier tests may still end.
        others = threads()
        fill(out, 1)
        for reader in (cam, other_one):
            assert is_readable(reader)
        assert len(threads() - others) == 2
        descriptor = cam.fileno()
        cam.close()
        with pytest.raises(OSError):
            os.fstat(descriptor)
        with pytest.raises(ValueError, match="closed"):
            cam.fileno()
        assert other_one.next(timeout=0).number == 1 and is_silent(other_one)
        wait_until(lambda: len(threads() - others) == 1)
        del cam, other_one, reader
        gc.collect()
        wait_until(lambda: not threads() - others and descriptors() <= before)


def test_watching_thread_sleeps(name: str, alone: None) -> None:
    def switches(thread: int) -> int:
        status = Path(f"/proc/self/task/{thread}/status").read_text()
        return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))

    with Stream.create(name, 4, "u1", 4) as out, Stream.open(name) as cam:
        assert is_silent(cam)
        (thread,) = threads()
        for most in (12, 1):
            begin, before = time.monotonic(), switches(thread)
            time.sleep(2)
            per_second = (switches(thread) - before) / (time.monotonic() - begin)
            assert per_second <= most
            fill(out, 1)  # until this is taken, the thread does not wake
            assert is_readable(cam)


def test_thread_that_watches_holds_no_frame(name: str) -> None:
    with Stream.create(name, 4, "u1", 3) as out, Stream.open(name) as cam:
        for _ in range(50):
            fill(out, 1)
            assert is_readable(cam) and cam.held == 0 and Stream.inspect(name).held == 0
            if cam.head % 5 == 0:
                cam.latest(timeout=0)


def test_descriptor_follows_a_reader_that_changes_its_position(name: str) -> None:
    with Stream.create(name, 4, "u1", 8) as out, Stream.open(name) as cam:
        fill(out, 1, 2, 3)
        assert is_readable(cam)
        cam.since(3)
        assert is_silent(cam)
        cam.since(1)
        for number in (2, 3):
            assert is_readable(cam) and cam.next(timeout=0).number == number
        assert is_silent(cam)
        cam.since(2)
        fill(out, 4)  # for which the thread waits already
        for number in (3, 4):
            assert is_readable(cam) and cam.next(timeout=0).number == number
        assert is_silent(cam)
        out.end()
        assert is_readable(cam)
        cam.since(4)
        assert is_readable(cam)
        with pytest.raises(ndshm.Closed):
            cam.next(timeout=0)


def test_frame_that_is_locked_makes_no_busy_loop(name: str) -> None:
    """A writer that looks whether it may overwrite a frame has its lock, and may be stopped then."""
    with Stream.create(name, 4, "u1", 4) as out, Stream.open(name, cursor="disk", backpressure="wait") as disk:
        disk.fileno()
        fill(out, 1)
        with open(f"/dev/shm/.ndshm-frames-{name}", "r+b") as file:
            fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 2**62 + 4096, 4 * 2**22, 0))  # F_OFD_SETLK, all slots
            turns, begin = 0, time.monotonic()
            while time.monotonic() < begin + 1:
                turns += 1
                assert is_readable(disk)
                with pytest.raises(ndshm.WouldBlock):
                    disk.next(timeout=0)
            assert turns <= 2 + 60 * (time.monotonic() - begin)
        assert is_readable(disk) and disk.next(timeout=0).number == 1 and is_silent(disk)


def test_forked_child_has_a_descriptor_of_its_own(name: str, alone: None) -> None:
    with Stream.create(name, 4, "u1", 16) as out:
        cam = Stream.open(name)
        fill(out, 1)
        assert is_readable(cam)
        parents = os.fstat(cam.fileno()).st_ino

        def read() -> Any:
            before = descriptors()
            assert threads() == set()
            seen = [is_readable(cam), os.fstat(cam.fileno()).st_ino != parents, len(threads()), cam.next(timeout=0).number, is_silent(cam)]
            fill_from_here.send(None)
            seen += [is_readable(cam), cam.next(timeout=0).number, is_silent(cam)]
            cam.close()
            wait_until(lambda: not threads() and descriptors() < before)
            return seen

        for _ in range(5):
            fill_here, fill_from_here = multiprocessing.Pipe(duplex=False)
            number = cam.head

            def answer() -> None:
                assert fill_here.poll(60)
                fill_here.recv()
                fill(out, 1)

            thread = threading.Thread(target=answer)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread
                thread.start()
                assert in_child(read) == [True, True, 1, number, True, True, number + 1, True]
            thread.join()
            # Nothing that the child took or closed is missing here.
            assert is_readable(cam) and cam.next(timeout=0).number == number and is_readable(cam)
        child = os.fork()
        if child == 0:
            del cam
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert is_readable(cam) and cam.latest(timeout=0).number == 6 and is_silent(cam)


@pytest.mark.parametrize("last", ["cam.latest(timeout=0)", "pass", "asyncio.run(read())"])
def test_thread_that_watches_does_not_keep_the_interpreter(name: str, last: str) -> None:
    program = f"""
        import asyncio, select, sys, ndshm
        cam = ndshm.Stream.open(sys.argv[1])
        async def read():
            async for frame in cam:
                if frame.number > 20:
                    sys.exit()
        assert select.select([cam], [], [], 60)[0]
        keep = [cam]
        keep.append(keep)
        print("watching", flush=True)
        {last}
    """
    with Stream.create(name, 4, "u1", 4) as out:
        is_done = threading.Event()

        def write() -> None:
            while not is_done.wait(0.0005):
                fill(out, 1)

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(3):
            done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), name], capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout, done.stderr) == (0, "watching\n", "")
        is_done.set()
        thread.join()


def test_ctrl_c_reaches_a_thread_that_selects(name: str) -> None:
    program = """
        import select, sys, ndshm
        cam = ndshm.Stream.open(sys.argv[1])
        cam.fileno()
        print("waiting", flush=True)
        try:
            select.select([cam], [], [])
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    with Stream.create(name, 4, "u1", 4):
        command = [sys.executable, "-c", textwrap.dedent(program), name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "waiting\n"
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[0] == "interrupted\n"


def test_descriptors_where_shared_memory_is_emulated(name: str, tmp_path: Path) -> None:
    program = """
        import asyncio, select, sys, ndshm
        async def read(cam):
            return [frame.number async for frame in cam]
        with ndshm.Stream.create(sys.argv[1], 4, "uint8", 4) as out:
            cam = ndshm.Stream.open(sys.argv[1])
            assert not select.select([cam], [], [], 0.2)[0]
            with out.frame() as frame:
                frame.x[:] = 1
            assert select.select([cam], [], [], 60)[0]
        print(asyncio.run(read(cam)))
    """
    env = {**os.environ, "EMULATE_SHM": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), name], capture_output=True, text=True, env=env, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1]\n", "")


class Blind(asyncio.SelectorEventLoop):
    """A loop that can wait for no descriptor, as that of Windows."""

    def add_reader(self, *_: Any) -> None:
        raise NotImplementedError

    def remove_reader(self, *_: Any) -> bool:
        raise NotImplementedError


def new_uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": new_uvloop, "blind": Blind}


def run(kind: str, work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        return runner.run(asyncio.wait_for(work, 120))


async def numbers(cam: ndshm.StreamReader) -> list[int]:
    return [frame.number async for frame in cam]


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_many_readers_wait_in_one_loop(name: str, loop: str, alone: None) -> None:
    async def main() -> None:
        readers = [Stream.open(name) for _ in range(20)]
        seen: list[list[int]] = [[] for _ in readers]

        async def read(cam: ndshm.StreamReader, numbers: list[int]) -> None:
            async for frame in cam:
                numbers.append(frame.number)

        tasks = [asyncio.create_task(read(*pair)) for pair in zip(readers, seen, strict=True)]
        for number in range(1, 51):
            writer.write(number)
            while not all(len(numbers) == number for numbers in seen):
                await asyncio.sleep(0.001)
        writer.end()
        await asyncio.gather(*tasks)
        assert seen == [list(range(1, 51))] * 20

    with other(name) as writer:
        before = descriptors()
        run(loop, main())
        gc.collect()
        wait_until(lambda: not threads() and descriptors() <= before)


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_loop_gets_every_frame_of_a_fast_writer(name: str, loop: str) -> None:
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        begin()
        seen = list[int]()
        async for frame in cam:
            seen.append(int(frame.x[0]))
            cam.ack(frame.number)
        ticking.cancel()
        assert seen == list(range(2000)) and ticks > 1000

    with fast(name, 2000) as begin, Stream.open(name, cursor="disk", backpressure="wait") as cam:
        run(loop, main())


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_cancelled_task_loses_no_frame(name: str, loop: str, alone: None) -> None:
    async def main() -> None:
        seen = list[int]()

        async def read() -> None:
            async for frame in cam:
                seen.append(int(frame.x[0]))
                cam.ack(frame.number)

        begin()
        task, cancelled, turn = asyncio.create_task(read()), 0, 0
        while not task.done():
            turn += 1
            await asyncio.sleep(0.0001 * (turn % 7))
            if task.cancel():
                cancelled += 1
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                    break
                task = asyncio.create_task(read())
        await task
        assert seen == list(range(500)) and cancelled > 10

    with fast(name, 500) as begin, Stream.open(name, cursor="disk", backpressure="wait") as cam:
        before = descriptors()
        run(loop, main())
        assert descriptors() <= before + 2, "those of the reader"


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_tasks_share_a_reader(name: str, loop: str) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(numbers(cam)) for _ in range(3)]
        for value in range(1, 31):
            fill(out, value)
            await asyncio.sleep(0.001)
        out.end()
        assert sorted(sum(await asyncio.gather(*tasks), [])) == list(range(1, 31))

    with Stream.create(name, 4, "u1", 64) as out:
        cam = Stream.open(name)
        run(loop, main())


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_every_task_is_told_of_a_death(name: str, loop: str) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(numbers(cam)) for _ in range(3)]
        await asyncio.sleep(0.2)
        writer.kill()
        assert all(isinstance(error, ndshm.NoWriter) for error in await asyncio.gather(*tasks, return_exceptions=True))
        with pytest.raises(ndshm.NoWriter):  # as each call of `next`
            await anext(cam)

    with other(name) as writer:
        cam = Stream.open(name)
        run(loop, main())


def test_program_watches_a_reader_that_a_task_reads_too(name: str) -> None:
    async def main() -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(cam.fileno(), told.set)
        task = asyncio.create_task(numbers(cam))
        await asyncio.sleep(0.05)
        assert not told.is_set()
        writer.write(1)
        await told.wait()
        writer.end()
        assert await task == [1]
        assert loop.remove_reader(cam.fileno())

    with other(name) as writer:
        cam = Stream.open(name)
        run("asyncio", main())


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_reader_that_is_closed_ends_the_wait_of_its_tasks(name: str, loop: str) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(numbers(cam)) for _ in range(3)]
        await asyncio.sleep(0.05)
        cam.close()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, ValueError) and "closed" in str(error)

    with Stream.create(name, 4, "u1", 4):
        cam = Stream.open(name)
        run(loop, main())


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_loop_may_be_closed_while_a_task_waits(name: str, loop: str, alone: None) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        cam = Stream.open(name)
        before = descriptors()
        for _ in range(3):
            events = LOOPS[loop]()
            task = events.create_task(numbers(cam))
            events.run_until_complete(asyncio.sleep(0.05))
            events.close()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            del task, events
            gc.collect()
        fill(out, 1)
        assert cam.next(timeout=0).number == 1
        assert descriptors() <= before + 2


def test_time_limit_of_an_async_loop(name: str) -> None:
    async def main() -> None:
        begin = time.monotonic()
        with pytest.raises(ndshm.TimedOut, match="0.2"):
            await anext(cam)
        assert time.monotonic() - begin >= 0.2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(unlimited), 0.2)
        fill(out, 1)
        assert (await anext(cam)).number == (await anext(unlimited)).number == 1

    with Stream.create(name, 4, "u1", 4) as out:
        cam, unlimited = Stream.open(name, timeout=0.2), Stream.open(name)
        run("asyncio", main())


# Cursors


def test_cursor_misses_no_frame(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        disk = Stream.open(name, cursor="disk", backpressure="wait")
        assert disk.cursor == "disk" and disk.acknowledged == 0
        fill(out, 1, 2, 3, 4)
        with pytest.raises(ndshm.SlotsHeld, match="disk") as refused, out.frame():
            pass
        assert refused.value.cursors == ["disk"]
        with pytest.raises(ndshm.InvalidArgument):
            disk.ack(1)
        assert values([next(disk), next(disk)]) == [1, 2]
        with pytest.raises(ndshm.SlotsHeld), out.frame():
            pass
        disk.ack(2)
        fill(out, 5, 6)
        assert disk.acknowledged == 2
        assert Stream.inspect(name).cursors == [("disk", 2, "wait", True)]
        disk.close()
        again = Stream.open(name, cursor="disk", backpressure="wait")
        out.end()
        assert values(again) == [3, 4, 5, 6] and again.lost == 0


def test_cursor_has_one_reader(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        disk = Stream.open(name, cursor="disk")
        with pytest.raises(ndshm.HasReader, match="disk") as refused:
            Stream.open(name, cursor="disk")
        assert refused.value.cursor == "disk"
        with pytest.raises(ndshm.HasReader):
            Stream.unlink(name, cursor="disk")
        with pytest.raises(ndshm.Unsupported, match="misses none"):
            disk.latest(timeout=0)
        with pytest.raises(ndshm.Unsupported, match="cursor="):
            Stream.open(name).ack(1)
        disk.close()
        fill(out, *range(20))
        assert Stream.unlink(name, cursor="disk") and not Stream.unlink(name, cursor="disk")


def test_cursor_of_a_killed_reader_goes_on_where_it_was(name: str) -> None:
    program = """
        import sys, ndshm
        cam = ndshm.Stream.open(sys.argv[1], cursor="disk", backpressure=sys.argv[2])
        print("open", flush=True)
        cam.ack(next(cam).number)
        cam.next()
        print("read", flush=True)
        sys.stdin.read()
    """
    for policy in ("wait", "wait_while_alive"):
        with Stream.create(name, 4, "u1", 4) as out:
            command = [sys.executable, "-c", textwrap.dedent(program), name, policy]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
                assert reader.stdout is not None and reader.stdout.readline() == b"open\n"
                fill(out, 1, 2)
                assert reader.stdout.readline() == b"read\n"
                fill(out, 3, 4)
                fill(out, 5)
                with pytest.raises(ndshm.HasReader):
                    Stream.open(name, cursor="disk", backpressure="overwrite")
                with pytest.raises(ndshm.SlotsHeld), out.frame():
                    pass
                reader.kill()
                reader.wait(60)
            if policy == "wait":
                with pytest.raises(ndshm.SlotsHeld), out.frame():
                    pass
            disk = Stream.open(name, cursor="disk")
            assert disk.acknowledged == 1
            out.end()
            assert values(disk) == [2, 3, 4, 5]
            disk.close()


def test_acknowledgement_does_not_wait_for_the_thread_that_reads(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        disk = Stream.open(name, cursor="disk")
        fill(out, 1)
        assert next(disk).number == 1
        thread = threading.Thread(target=lambda: list(disk))
        thread.start()
        time.sleep(0.1)
        begin = time.monotonic()
        disk.ack(1)
        assert time.monotonic() - begin < 5 and disk.acknowledged == 1
        out.end()
        thread.join()


# Other processes


def read_all(cam: ndshm.StreamReader, channel: Connection) -> None:
    """The work of a child that got a reader."""
    channel.send(cam.held)  # a forked child opens the stream at the first use, by name
    channel.send([(frame.number, int(frame.x[0])) for frame in cam])
    channel.close()


@pytest.mark.parametrize("method", METHODS)
def test_reader_travels_to_a_child(name: str, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with Stream.create(name, 4, "u1", 8) as out:
        fill(out, 1, 2)
        cam = Stream.open(name)
        first = cam.next()
        ours, theirs = context.Pipe()
        child = context.Process(target=read_all, args=(cam, theirs))
        child.start()
        theirs.close()
        assert ours.poll(60) and ours.recv() == (1 if method == "fork" else 0)  # a forked child holds what it inherits
        fill(out, 3)
        assert values([cam.next(), cam.next()]) == [2, 3]
        out.end()
        assert ours.poll(60)
        seen = ours.recv()
        child.join(60)
        assert child.exitcode == 0
        # A forked child goes on where its parent was. Another one opens the stream for itself.
        assert seen == [(2, 2), (3, 3)] if method == "fork" else seen == [(1, 1), (2, 2), (3, 3)]
        assert first.x[0] == 1


class Frames:
    """A data set such as a DataLoader has: its workers ask it for items."""

    def __init__(self, name: str) -> None:
        self.cam = Stream.open(name)

    def __getitem__(self, number: int) -> Any:
        frame = self.cam.get(number)
        assert frame is not None
        return frame.copy(), os.getpid()


def load(frames: Frames, channel: Connection) -> None:
    """The work of a worker."""
    for number in iter(channel.recv, None):
        channel.send(frames[number])


@pytest.mark.parametrize("method", METHODS)
def test_workers_ask_a_data_set_for_frames(name: str, method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    with Stream.create(name, 1000, "u2", 16) as out:
        fill(out, *range(1, 11))
        frames = Frames(name)
        assert frames[3][0][0] == 3
        workers = []
        for _ in range(2):
            ours, theirs = context.Pipe()
            worker = context.Process(target=load, args=(frames, theirs))
            worker.start()
            theirs.close()
            workers.append((worker, ours))
        for number in range(1, 11):
            for _, channel in workers:
                channel.send(number)
            for worker, channel in workers:
                assert channel.poll(60)
                x, pid = channel.recv()
                assert (x == number).all() and pid == worker.pid
        for worker, channel in workers:
            channel.send(None)
            worker.join(60)
            assert worker.exitcode == 0
        assert frames.cam.held == 0


def in_child(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a forked child, or the exception that it raises."""
    ours, theirs = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        try:
            theirs.send(work())
        except BaseException as error:
            theirs.send(error)
        finally:
            os._exit(0)
    assert ours.poll(60)
    answer = ours.recv()
    assert os.waitpid(child, 0)[1] == 0
    return answer


def test_forked_child_holds_what_it_inherits(name: str) -> None:
    with Stream.create(name, 4, "u1", 5) as out:
        fill(out, 1)
        cam = Stream.open(name)
        frame = cam.next()
        x = frame.x

        def look() -> Any:
            assert cam.held == 1
            frame.release()
            assert cam.held == 1, "x holds it"
            return frame.number, int(x[0])

        assert in_child(look) == (1, 1)
        assert in_child(lambda: (int(frame.x[1]), bytes(memoryview(frame)))) == (1, bytes([1] * 4))
        assert cam.held == 1 and frame.x[0] == 1
        fill(out, *range(2, 12))
        assert frame.x[0] == 1, "no child has given up what its parent holds"


def analyse(x: np.ndarray, channel: Connection) -> None:
    while channel.recv():
        channel.send(int(x.sum()))


def test_array_of_a_frame_never_changes_in_a_forked_child(name: str) -> None:
    context = multiprocessing.get_context("fork")
    with Stream.create(name, 1000, "u1", 4) as out:
        cam = Stream.open(name)
        for number in range(1, 41):
            fill(out, number)
            ours, theirs = context.Pipe()
            worker = context.Process(target=analyse, args=(cam.next().x, theirs))  # inherited, not pickled
            worker.start()
            theirs.close()
            # Only the child has the frame now.
            for step in range(8):
                fill(out, 200 + step)
                ours.send(True)
                assert ours.poll(60) and ours.recv() == 1000 * number
            assert cam.held == 0 and Stream.inspect(name).holders == (worker.pid,)
            ours.send(False)
            worker.join(60)
            assert worker.exitcode == 0
            cam.latest(timeout=0)
        assert Stream.inspect(name).held == 0


def test_frame_of_a_stream_that_has_ended_stays_in_a_forked_child(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        fill(out, 1)
        frame = Stream.open(name).next()
        x = frame.x
    assert in_child(lambda: (int(x[0]), int(frame.x[3]))) == (1, 1)


def test_forked_child_that_cannot_hold_a_frame_says_so(name: str) -> None:
    program = """
        import os, sys, ndshm
        out = ndshm.Stream.create(sys.argv[1], 4, "uint8", 4)
        out.send(__import__("numpy").zeros(4, "uint8"))
        frame = ndshm.Stream.open(sys.argv[1]).next()
        ndshm.Stream.unlink(sys.argv[1])
        if os.fork() == 0:
            try:
                frame.x
            except ndshm.Unlinked as error:
                os.write(1, str(error).encode())
            os._exit(0)
        assert os.wait()[1] == 0
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"frame 1 of `{name}` is not there any more: the parent gave it up")
    assert re.search("RuntimeWarning: arrays of a stream's frames may change in this forked child", done.stderr)


def test_stopped_child_delays_its_parent_for_a_moment_only(name: str) -> None:
    program = """
        import os, signal, sys
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSTOP))  # before the package's
        import numpy, ndshm
        with ndshm.Stream.create(sys.argv[1], 4, "uint8", 4) as out:
            out.send(numpy.ones(4, "uint8"))
            frame = ndshm.Stream.open(sys.argv[1]).next()
            child = os.fork()
            if child == 0:
                os._exit(int(frame.x[0]))
            os.waitpid(child, os.WUNTRACED)
            os.kill(child, signal.SIGCONT)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), name], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_child_reads_although_a_thread_of_its_parent_waits(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        cam, seen = Stream.open(name), list[int]()
        thread = threading.Thread(target=lambda: seen.extend(frame.number for frame in cam))
        thread.start()
        fill(out, 1)
        wait_until(lambda: seen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread
            for _ in range(20):
                assert in_child(lambda: values([cam.get(1)])) == [1]
        out.end()
        thread.join()


def test_forked_child_cannot_write(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:

        def write() -> None:
            with out.frame() as frame:
                frame.x[:] = 9

        assert isinstance(in_child(write), ndshm.Unsupported)
        assert isinstance(in_child(out.end), ndshm.Unsupported)
        with out.frame() as new:
            new.x[:] = 1
            assert isinstance(in_child(lambda: new.x), ndshm.Unsupported)
            assert isinstance(in_child(lambda: new.__exit__(None, None, None)), ndshm.Unsupported)
            assert isinstance(in_child(write), ndshm.Unsupported)
        assert values([Stream.open(name).next()]) == [1]
        assert Stream.inspect(name).has_writer


def test_forked_child_that_exits_does_not_end_the_stream(name: str) -> None:
    program = """
        import os, sys, ndshm
        out = ndshm.Stream.create(sys.argv[1], 4, "uint8", 3)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        print(ndshm.Stream.inspect(sys.argv[1]).has_ended, ndshm.Stream.inspect(sys.argv[1]).has_writer)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), name], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True\n", "")


def test_forked_child_cannot_use_a_cursor(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        disk = Stream.open(name, cursor="disk")
        fill(out, 1)
        for use in (disk.next, lambda: disk.ack(0), lambda: next(disk)):
            assert isinstance(in_child(use), ndshm.Unsupported)
        assert next(disk).number == 1


def test_pickled_reader_keeps_its_options(name: str) -> None:
    with Stream.create(name, 4, "u1", 4) as out:
        fill(out, 1, 2)
        same = pickle.loads(pickle.dumps(Stream.open(name, latest=True, timeout=0.1)))
        assert next(same).number == 2
        with pytest.raises(ndshm.TimedOut):
            next(same)
        disk = Stream.open(name, cursor="disk", backpressure="overwrite")
        sent = pickle.dumps(disk)
        with pytest.raises(ndshm.HasReader):
            pickle.loads(sent)
        disk.close()
        assert pickle.loads(sent).cursor == "disk"
        cursors = Stream.inspect(name).cursors
        assert cursors is not None and cursors[0].backpressure == "overwrite"


# Inspecting


def test_copied_frames_hold_nothing(name: str) -> None:
    with Stream.create(name, (3, 5), "f4", 3, copied=True, order="F", meta={"gain": ("f8", 2)}) as out:
        cam = Stream.open(name, latest=False)
        frames, arrays = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(1, 21):
                assert out.send(np.full((3, 5), number, "f4"), gain=(number, 0.5)) == number
                frames.append(cam.next(timeout=0))
                arrays.append(frames[-1].x)
        assert cam.held == 0 and Stream.inspect(name).copied and Stream.inspect(name).held == 0
    for number, (frame, x) in enumerate(zip(frames, arrays, strict=True), 1):
        assert (x == number).all() and not x.flags.writeable and x.flags.f_contiguous and frame.meta == {"gain": (number, 0.5)}
    assert in_child(lambda: [int(x[0, 0]) for x in arrays[:3]]) == [1, 2, 3]
    with Stream.create(name, 4, "u1", 3) as out:
        assert not Stream.inspect(name).copied


def test_copied_frames_arrive_whole_from_another_process(name: str) -> None:
    program = """
        import sys, ndshm
        with ndshm.Stream.create(sys.argv[1], 500, "uint64", 3, copied=True) as out:
            print(flush=True)
            while out.head < 20_000:
                with out.frame() as frame:
                    frame.x[:] = frame.number
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), name], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "\n"
        count = 0
        for frame in Stream.open(name, timeout=60):
            assert (frame.x == frame.number).all()
            count += 1
    assert writer.returncode == 0 and count > 1


def test_notes_name_the_axes_of_frames(name: str) -> None:
    notes = {"axes": "y x", "resolution": "0.65 0.65", "unit": "um"}
    with Stream.create(name, (4, 6), "uint16", notes=notes) as out:
        cam = Stream.open(name)
        assert out.axes == cam.axes == ("y", "x")
        assert out.notes == cam.notes == Stream.inspect(name).notes == notes
        assert pickle.loads(pickle.dumps(cam)).axes == ("y", "x")
    with Stream.create(name, (4, 6), "uint16") as out:
        assert (out.axes, out.notes) == ((), {})


def test_inspection_says_what_a_stream_is(name: str) -> None:
    with other(name, meta={"exposure": "float64", "stage": ("int32", 3)}) as writer:
        writer.write(*range(6))
        cam = Stream.open(name)
        frame = cam.next()
        found = Stream.inspect(name)
        assert (found.dtype, found.shape, found.order, found.slots) == ("uint16", (4, 6), "C", 4)
        assert found.meta == {"exposure": ("float64", 1), "stage": ("int32", 3)}
        assert (found.head, found.frames, found.epoch, found.has_writer, found.has_ended) == (6, 4, 1, True, False)
        assert found.rate is not None and found.rate > 0
        assert (found.held, found.holders, found.cursors) == (1, (os.getpid(),), [])
        frame.release()
        assert Stream.inspect(name).held == 0


def test_frames_without_numpy_are_memoryviews(name: str) -> None:
    program = """
        import sys
        sys.modules["numpy"] = None
        import ndshm
        out = ndshm.Stream.create(sys.argv[1], (2, 3), "uint16", 3, meta={"a": "float32"})
        with out.frame() as frame:
            assert type(frame.x) is memoryview
            frame.x[1, 2] = 7
            frame.meta["a"] = 0.5
        frame = ndshm.Stream.open(sys.argv[1]).next()
        assert type(frame.x) is memoryview and frame.x.readonly and frame.x.shape == (2, 3)
        print(frame.x[1, 2], frame.meta, out.dtype_name)
    """
    done = subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program), name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "7 {'a': 0.5} uint16\n"), done.stderr
