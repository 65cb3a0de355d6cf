"""Guards: what they exclude, what outlives them, and what ends a wait."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import ndshm


def test_writers_exclude_and_readers_share(name: str) -> None:
    array, other = ndshm.create(name, 4, "u1"), ndshm.open(name)
    with array.read() as x, other.read(0) as y:
        assert not x.flags.writeable and not y.flags.writeable
        with pytest.raises(BlockingIOError):
            other.write(0).__enter__()
    with array.write():
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            other.read(0.3).__enter__()
        assert 0.2 < time.monotonic() - begin
        with pytest.raises(ndshm.WouldDeadlock):
            other.read().__enter__()
    with other.write(0):
        pass


def test_timeouts_are_checked(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    buffer = ndshm.RenderBuffer(f"{name}-painted", 4, 4, "u1")
    claim = buffer.claim()
    assert claim is not None

    async def lock(timeout: float) -> None:
        async with array.read(timeout):
            raise AssertionError("the lock is taken")

    with ndshm.open(name).write():
        for timeout in (-1, float("nan")):
            with pytest.raises(ValueError, match="seconds"):
                array.read(timeout).__enter__()
            with pytest.raises(ValueError, match="seconds"):
                asyncio.run(asyncio.wait_for(lock(timeout), 20))
            with pytest.raises(ValueError, match="seconds"):
                buffer.claim(timeout)
    buffer.discard()


def test_view_is_read_only_after_its_guard(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    with array.write() as x:
        x[:] = 1
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 2
    assert x[0] == 1


def test_guard_is_used_once_at_a_time(name: str) -> None:
    guard = ndshm.create(name, 4, "u1").read()
    with guard:
        with pytest.raises(RuntimeError, match="in use"):
            guard.__enter__()
    with guard:
        pass


@pytest.mark.parametrize("keep", [lambda x: x[1:], lambda x: x.reshape(2, 2).T, memoryview, lambda x: [x]])
def test_view_that_outlives_its_guard_is_named(name: str, keep) -> None:  # type: ignore[no-untyped-def]
    array = ndshm.create(name, 4, "u1")
    with pytest.warns(ndshm.ViewOutlivesGuard, match=name):
        with array.write() as x:
            kept = keep(x)
    assert kept is not None
    with array.write(0):
        pass  # the lock was released in spite of that
    ndshm.strict()
    try:
        with pytest.raises(ndshm.ViewOutlivesGuard):
            with array.write() as x:
                kept = keep(x)
        with pytest.raises(KeyError):  # the error of the block is raised
            with pytest.warns(ndshm.ViewOutlivesGuard):
                with array.write() as x:
                    kept = x[1:]
                    raise KeyError
    finally:
        ndshm.strict(False)


class Subclass(np.ndarray):  # type: ignore[type-arg]
    """An array of another class: numpy makes its views refer to what the block got."""


@pytest.mark.parametrize(
    "keep",
    [
        lambda x: x[1:],
        lambda x: x.reshape(2, 2).T,
        memoryview,
        lambda x: memoryview(x)[1:],
        lambda x: x.__dlpack__(),
        np.from_dlpack,
        lambda x: x.view(Subclass),
        lambda x: np.ma.array(x, copy=False),
        lambda x: [x],
    ],
)
def test_views_of_a_block_that_failed_are_named(name: str, keep) -> None:  # type: ignore[no-untyped-def]
    array = ndshm.create(name, 4, "u1")

    def fail(x: np.ndarray) -> None:  # type: ignore[type-arg]
        y = x  # the frames of the traceback have names of the view, which are no views
        raise KeyError(y.sum())

    for failing in (True, False):
        with pytest.warns(ndshm.ViewOutlivesGuard, match="^1 view"):
            try:
                with array.write() as x:
                    kept = keep(x)
                    if failing:
                        fail(x)
            except KeyError:
                pass
        assert kept is not None
        del kept


def test_views_are_counted(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    with pytest.warns(ndshm.ViewOutlivesGuard, match="^4 view"):
        with array.read() as x:
            kept = [x[1:], x[2:][1:], memoryview(x), x.view(Subclass)]
    with pytest.warns(ndshm.ViewOutlivesGuard, match="^2 view"):
        with array.read() as x:
            kept = [x[1:], x[2:]]
            del x
    assert len(kept) == 2


def test_exception_in_deep_calls_warns_about_nothing(name: str) -> None:
    array = ndshm.create(name, 4, "u1")

    def deep(x: np.ndarray, depth: int) -> None:  # type: ignore[type-arg]
        if depth:
            deep(x, depth - 1)
        try:
            raise KeyError(0)
        except KeyError:
            other = x
            raise ValueError(other.size) from None

    for guard in (array.read(), array.write()):
        with pytest.raises(ValueError):
            with guard as x:
                deep(x, 20)


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import warnings
import ndshm
array = ndshm.create(sys.argv[1], 4, "u1")
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    with array.write() as x:
        x[0] = 1
    with array.write() as x:
        x[0] = 1
        del x
    try:
        with array.write() as x:
            x[5]
    except IndexError:
        pass
    assert not warned
    for keep in (lambda x: x[1:], memoryview, lambda x: x.cast("B")):
        with array.write() as x:
            kept = keep(x)
        try:
            with array.write() as x:
                kept = keep(x)
                raise KeyError
        except KeyError:
            pass
        assert [warning.category for warning in warned] == 2 * [ndshm.ViewOutlivesGuard], (keep, warned)
        warned.clear()
print("ok")
"""


def test_memoryviews_are_counted_without_numpy(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY, name], capture_output=True, text=True)
    assert done.stdout == "ok\n", done.stderr


INTERRUPTED = """
import random, signal, sys
import numpy  # an interrupted import may lose the interrupt
import ndshm

name, kind = sys.argv[1:]
array, other = ndshm.create(name, 4, "u1"), ndshm.open(name)
buffer = ndshm.RenderBuffer(name + "-painted", 200000, 1, "u1")

def guards():
    while True:
        with array.write() as x:
            x[0] = 1

def items():
    while True:
        array[0] = array[1]

def claims():
    while True:
        with buffer.claim() as x:
            x[0] = 1

def is_held():
    if kind == "claims":
        try:
            buffer.finish()
        except (ndshm.InUse, ndshm.Incomplete) as error:
            return isinstance(error, ndshm.InUse)  # a claim has not ended
    try:
        with other.write(0):
            return False
    except ndshm.WouldBlock:
        return True

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
held = 0
rng = random.Random(1)
for _ in range(500):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + rng.random() * 3e-4)
        globals()[kind]()
    except KeyboardInterrupt:
        held += is_held()
    if kind == "claims":
        buffer.discard()
        buffer = ndshm.RenderBuffer(name + "-painted", 200000, 1, "u1")
buffer.discard()
print(held)
"""


@pytest.mark.parametrize("kind", ["guards", "items", "claims"])
def test_interrupt_at_any_time_leaves_no_lock(name: str, kind: str) -> None:
    """Not even in the handler, where the traceback still refers to the variables of the block."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, name, kind], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stdout + done.stderr


def test_ordinary_use_warns_about_nothing(name: str) -> None:
    array = ndshm.create(name, (4, 5), "f8")

    def fill(x: np.ndarray) -> None:  # type: ignore[type-arg]
        x[1:, :2] += 1
        raise KeyError

    with array.write():
        pass
    with array.write() as x:
        y = x[2:]
        y += 1
        total = x.sum()
        del y
    assert total == 10
    with pytest.raises(KeyError):
        with array.write() as x:
            fill(x)


def test_error_in_the_block_releases_the_lock(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    with pytest.raises(ZeroDivisionError):
        with array.write() as x:
            x[0] = 1 // 0
    with array.write(0):
        pass


def test_async_guards_do_not_block_the_loop(name: str) -> None:
    array, other = ndshm.create(name, 4, "u1"), ndshm.open(name)

    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticker = asyncio.create_task(tick())
        held = other.write()
        held.__enter__()
        with pytest.raises(TimeoutError):
            async with array.read(0.1):
                pass
        with pytest.raises(BlockingIOError):
            async with array.read(0):
                pass
        waiting = asyncio.create_task(write())
        await asyncio.sleep(0.1)
        held.__exit__(None, None, None)
        await waiting
        ticker.cancel()
        return ticks

    async def write() -> None:
        async with array.write() as x:
            x[:] = 3

    assert asyncio.run(main()) > 10
    assert other[0] == 3


def test_cancelled_wait_takes_no_lock(name: str) -> None:
    array, other = ndshm.create(name, 4, "u1"), ndshm.open(name)

    async def write() -> None:
        async with array.write():
            raise AssertionError("the lock is taken")

    async def main() -> None:
        with other.write():
            task = asyncio.create_task(write())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    with other.write(0):
        pass


def test_eight_threads_add_up(name: str) -> None:
    array = ndshm.create(name, 1, "i8")

    def add() -> None:
        mine = ndshm.open(name)
        for _ in range(250):
            with mine.write() as x:
                x[0] += 1

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert array[0] == 2000


HOLD = """
import ndshm, sys, time
with ndshm.open(sys.argv[1]).write() as x:
    x[0] = 1
    print("locked", flush=True)
    time.sleep(60)
"""


def test_killed_writer_releases_its_lock(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    with subprocess.Popen([sys.executable, "-c", HOLD, name], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError):
            array.write(0).__enter__()
        child.kill()
        child.wait()
    with array.write(5) as x:
        assert x[0] == 1


def test_interrupt_ends_a_wait_within_a_second(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    wait = f"""
import ndshm, time
array = ndshm.open({name!r})
print("waiting", flush=True)
try:
    with array.read():
        print("locked")
except KeyboardInterrupt:
    print("interrupted")
"""
    with array.write():
        with subprocess.Popen([sys.executable, "-c", wait], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "waiting\n"
            time.sleep(0.3)
            child.send_signal(signal.SIGINT)
            begin = time.monotonic()
            assert child.communicate(timeout=20)[0] == "interrupted\n"
            assert time.monotonic() - begin < 5  # well within a second on an idle machine


def test_inherited_guard_is_an_error_in_the_child(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    guard = array.write()
    with guard:
        child = os.fork()
        if child == 0:
            try:
                guard.__exit__(None, None, None)
            except ndshm.NdshmError as error:
                os._exit(7 if "parent" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(BlockingIOError):
            ndshm.open(name).read(0).__enter__()  # still locked


def test_forked_child_takes_guards_of_inherited_arrays(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    child = os.fork()
    if child == 0:
        with array.write() as x:
            x[0] = 5
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert array[0] == 5


def test_program_ends_while_threads_wait(name: str) -> None:
    program = f"""
import ndshm, threading, time
array = ndshm.open({name!r})
for write in (True, False) * 4:
    threading.Thread(target=lambda: (array.write() if write else array.read()).__enter__(), daemon=True).start()
time.sleep(0.3)
"""
    array = ndshm.create(name, 4, "u1")
    with array.write():
        for _ in range(5):
            subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
