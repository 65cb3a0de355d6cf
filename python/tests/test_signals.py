"""Ctrl-C during calls that take long, and calls that let other threads run."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ndshm

PROGRAM = """
import random, signal, sys, threading, time
import numpy as np
import ndshm

name, kind = sys.argv[1:]
length = 200 << 20
array = np.zeros(length, "u1") if kind in ("from_array", "share") else None
calls = {
    "create": lambda: ndshm.create(name, length, "u1"),
    "replace": lambda: ndshm.create(name, length, "u1", replace=True),
    "from_array": lambda: ndshm.from_array(name, array),
    "share": lambda: ndshm.share(array),
    "share_zeros": lambda: ndshm.share_zeros(length, "u1"),
    "render": lambda: ndshm.RenderBuffer(name, length, length, "u1"),
    "small": lambda: ndshm.create(name, 8, "u1"),
    "SharedMemory": lambda: ndshm.SharedMemory(create=True, size=8),
}

outside = False

def interrupt(number, frame):
    global outside
    outside = frame.f_code.co_filename == "<string>"
    raise KeyboardInterrupt

begin = time.monotonic()
first = calls[kind]()
took = time.monotonic() - begin
if kind == "render":
    first.discard()
elif kind == "SharedMemory":
    first.unlink()
elif kind not in ("share", "share_zeros"):
    ndshm.unlink(name)
del first

signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(1)
interrupted = 0
for _ in range(400 if kind in ("small", "SharedMemory") else 20):
    made = None
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + 1.2 * took * rng.random())
        made = calls[kind]()
        while True:  # until the signal comes
            pass
    except KeyboardInterrupt:
        interrupted += made is None
    if isinstance(made, ndshm.RenderBuffer):
        made.discard()
    elif isinstance(made, ndshm.SharedMemory):
        made.unlink()
    elif made is not None and not made.is_counted:
        ndshm.unlink(name)
    made = None
    if kind == "replace":
        ndshm.unlink(name)  # what was replaced cannot come back, so a new array that is complete stays
    if kind == "render":
        try:
            ndshm.RenderBuffer.join(name, "u1").discard()  # a buffer that was begun stays, for other painters
        except ndshm.NotFound:
            pass
    if kind == "SharedMemory" and outside:
        for row in ndshm.ls():
            ndshm.unlink(row.name)  # the call had ended, and its block had not got its variable
    assert not ndshm.ls()
assert interrupted, "no call was interrupted"
print("ok", interrupted)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a program with a directory of its own for arrays, which must be empty in the end."""
    directory = Path("/dev/shm") / f"py-{os.getpid()}-signals"
    directory.mkdir(mode=0o700)
    yield {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(directory)}
    left = list(directory.iterdir())
    for file in left:
        file.unlink()
    directory.rmdir()
    assert not left


@pytest.mark.parametrize(
    "kind", ["create", "replace", "from_array", "share", "share_zeros", "render", "small", "SharedMemory"]
)
def test_interrupted_creation_leaves_no_name_and_no_memory(name: str, kind: str, directory: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, name, kind], capture_output=True, text=True, env=directory)
    assert done.stdout.startswith("ok"), done.stderr


@contextmanager
def interrupted_soon() -> Iterator[None]:
    """Expect that a signal, which comes soon and again and again, ends the block."""

    def interrupt(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_interrupt_ends_the_wait_of_freeze() -> None:
    array = ndshm.share(np.zeros(4))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with array.read():
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        with interrupted_soon():
            array.freeze()
        assert not array.readonly
    finally:
        done.set()
        thread.join()
    with array.write() as x:
        x[0] = 1
    array.freeze()
    assert array.readonly


# Where the name of a file is locked, of the layout's lock space.
NAME = (1 << 62) + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda array: array.unlink(),
        lambda array: ndshm.unlink(array.name),
        lambda array: ndshm.create(array.name, 4, "u1", replace=True),
    ],
)
def test_interrupt_ends_the_wait_for_a_name(name: str, call: Callable[[ndshm.Array], object]) -> None:
    array = ndshm.create(name, 4, "u1")
    with open(f"/dev/shm/{name}", "r+b") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, NAME, 1, 0)
        fcntl.fcntl(file, 37, lock)  # F_OFD_SETLK
        with interrupted_soon():
            call(array)
        assert ndshm.open(name)._file_id == array._file_id
    assert array.unlink()


@pytest.mark.parametrize("strategy", ["share", "from_array", "SharedList"])
def test_other_threads_run_while_elements_are_copied(name: str, strategy: str) -> None:
    x = np.ones((100, 1 << 20, 2), "u1").transpose(1, 0, 2)  # in another order than the copy
    items = [bytes(100 << 20)]
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            time.sleep(0.001)
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks
        if strategy == "SharedList":
            shared: object = ndshm.SharedList(items)
        elif strategy == "share":
            shared = ndshm.share(x)
        else:
            shared = ndshm.from_array(name, x)
        ticked = ticks - before
    finally:
        done.set()
        thread.join()
    assert ticked > 3
    if isinstance(shared, ndshm.Array):
        assert (np.asarray(shared) == 1).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (5, 3, 2), (1, 11, 1, 4)])
@pytest.mark.parametrize("dtype", ["u1", "bool", "f8", "c16"])
def test_copies_are_equal_in_any_pieces(
    name: str, shape: tuple[int, ...], order: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), dtype, order)
    for piece in (1, 7, 16, 100):
        monkeypatch.setattr("ndshm._attach._PIECE", piece)
        for source in (x, x[..., ::-1] if shape else x, x.T):
            array = ndshm.from_array(name, source, replace=True)
            np.testing.assert_array_equal(array[...], source)
            np.testing.assert_array_equal(ndshm.share(source)[...], source)


PICKLING = """
import pickle, random, signal, sys
from multiprocessing.reduction import ForkingPickler
import numpy as np
import ndshm

def interrupt(number, frame):
    raise KeyboardInterrupt

pickle.loads(pickle.dumps(ndshm.share(np.zeros(2))))
signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(1)
left = 0
for number in range(400):
    array = ndshm.share(np.zeros(2))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + rng.random() * 2e-4)
        while True:
            (pickle.dumps if number % 2 else ForkingPickler.dumps)(array)
    except KeyboardInterrupt:
        pass
    ndshm.in_flight.clear()
    left += array.in_flight
print(left)
"""


def test_interrupted_pickles_are_cleared() -> None:
    done = subprocess.run([sys.executable, "-c", PICKLING], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stdout + done.stderr


EXITING = """
import pickle, sys, threading
import numpy as np
import ndshm

kept = [ndshm.share(np.zeros(2)) for _ in range(300)]
pickles = [pickle.dumps(array) for array in kept]

def pickle_for_ever():
    while True:
        for _ in range(50):
            pickle.dumps(ndshm.share(np.zeros(2)))

for _ in range(4):
    threading.Thread(target=pickle_for_ever, daemon=True).start()
ndshm.in_flight.clear() if sys.argv[1:] else None
"""


@pytest.mark.parametrize("arguments", [[], ["clear"]])
def test_exit_while_other_threads_pickle(arguments: list[str], directory: dict[str, str]) -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", EXITING, *arguments], capture_output=True, text=True, env=directory)
        assert (done.returncode, done.stderr) == (0, "")
    # What the threads had just made stays in flight for half a minute.
    subprocess.run([sys.executable, "-c", "import ndshm; ndshm.gc(in_flight=True)"], check=True, env=directory)
