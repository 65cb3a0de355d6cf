"""Threads, forks and exits in the middle of work: an exception with advice at most, never a crash."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm import in_flight

#: 10,000 operations in each thread with `scripts/test-python --all`.
OPERATIONS = 10_000 if os.environ.get("NDSHM_TEST_ALL") else 1_000


def work(arrays: list[ndshm.Array], seed: int, failures: list[str]) -> None:
    """Do random things with arrays that other threads use, close and freeze at the same time."""
    rng = random.Random(seed)
    views: list[Any] = []
    allowed = (ndshm.NdshmError, ValueError, BufferError)
    for _ in range(OPERATIONS):
        place = rng.randrange(len(arrays))
        array = arrays[place]
        try:
            match rng.randrange(9):
                case 0:
                    arrays[place] = ndshm.share(np.full(100, 7, "i4"))
                case 1:
                    arrays[place] = pickle.loads(pickle.dumps(array))
                case 2:
                    with array.write(timeout=0.01) as x:
                        x[...] = 7
                case 3:
                    assert (array[...] == 7).all()
                case 4:
                    views.append(np.asarray(array))
                case 5:
                    views.append(memoryview(array))
                case 6:
                    array.close()
                case 7:
                    array.freeze()
                case 8:
                    views.append(np.from_dlpack(array))
        except allowed:
            pass
        except BaseException as error:
            failures.append(repr(error))
            return
        if len(views) > 20:
            assert all(int(np.asarray(view)[5]) == 7 for view in views)
            views.clear()


@pytest.mark.filterwarnings("ignore::ndshm.ViewOutlivesGuard")
def test_eight_threads_use_close_and_freeze_the_same_arrays() -> None:
    arrays = [ndshm.share(np.full(100, 7, "i4")) for _ in range(4)]
    failures: list[str] = []
    threads = [threading.Thread(target=work, args=(arrays, seed, failures)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    arrays.clear()
    in_flight.clear()


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_views_outlive_their_array_in_every_order_of_dropping(order: tuple[int, ...]) -> None:
    array = ndshm.share(np.arange(10, dtype="i4"))
    name = array.name
    things: list[Any] = [array, np.asarray(array), memoryview(array), np.from_dlpack(array)]
    things[2] = things[2][3:]
    del array
    for number, index in enumerate(order):
        assert ndshm.attached(name)
        things[index] = None
        alive = [thing for thing in things[1:] if thing is not None]
        assert all(int(np.asarray(view)[-1]) == 9 for view in alive), number
    assert not os.path.exists(f"/dev/shm/{name}")


def test_child_that_is_forked_while_threads_pickle_can_pickle_too() -> None:
    array = ndshm.share(np.ones(3))
    stop = threading.Event()

    def pickle_again_and_again() -> None:
        while not stop.is_set():
            pickle.dumps(array)

    threads = [threading.Thread(target=pickle_again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    signal.alarm(30)  # ends a child that waits for a lock that no thread of it holds
                    assert pickle.loads(pickle.dumps(array))[0] == 1
                    in_flight.clear()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_interpreter_may_exit_while_threads_work() -> None:
    program = """
import threading, time, numpy, pickle, ndshm
array = ndshm.share(numpy.ones(1000))
def work():
    while True:
        with array.write() as x:
            x[...] = 1
        pickle.loads(pickle.dumps(array))
        numpy.asarray(array)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    ndshm.gc(in_flight=True)
