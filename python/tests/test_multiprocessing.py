"""numpy arrays travel through shared memory in everything that multiprocessing pickles, after `ndshm.multiprocessing.install`."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.managers
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
import ndshm.multiprocessing as under_test
from ndshm import _array, in_flight
from test_share import every_array_is_freed

METHODS = ["fork", "spawn", "forkserver"]

#: The autouse fixture of test_share.py is one of this module too.
__all__ = ["every_array_is_freed"]

BIG = 64 << 10

#: The names of all arrays that this process has sent.
SENT: set[str] = set()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install with the default threshold, and leave the process as if nothing had ever been installed."""
    issue = _array._issue

    def issue_and_note(array: ndshm.Array, reusable: bool) -> str:
        handle = issue(array, reusable)
        SENT.add(array.name)
        return handle

    monkeypatch.setattr(_array, "_issue", issue_and_note)
    ndshm.multiprocessing.install()
    yield
    ndshm.multiprocessing.uninstall()
    under_test._is_decided = False
    assert np.ndarray not in getattr(ForkingPickler, "_extra_reducers")


def names() -> set[str]:
    """Return the names of the arrays that this process has sent and that exist. Other programs may have arrays too."""
    return {name for name in SENT if Path("/dev/shm", name).exists()}


def is_shared(x: Any) -> bool:
    """Whether the elements of a numpy array are in a mapping that can be seen by other processes, and belong to ndshm."""
    owner = x
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not (isinstance(owner, memoryview) and isinstance(owner.obj, ndshm.Array)):
        return False
    first = x.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= first < end:
            return line.split()[1] == "rw-s"
    return False


def send(x: Any) -> bytes:
    return bytes(ForkingPickler.dumps(x))


def big(value: int = 1) -> Any:
    return np.full(BIG // 8, value, "i8")


# What an array is, for the processes below: its sum, and whether it is shared and writable.
Seen = tuple[int, bool, bool]


def look(x: Any) -> Seen:
    """The receiver's work. It writes to its array, which the sender must not see."""
    seen = int(x.sum()), is_shared(x), bool(x.flags.writeable)
    x[...] = 99
    return seen


def add_one(x: Any) -> tuple[bool, Any]:
    x += 1
    return is_shared(x), x


def make(value: int) -> Any:
    return big(value)


def look_at_queue(inbox: Any, outbox: Any) -> None:
    outbox.put(look(inbox.get()))


def look_at_pipe(pipe: Any) -> None:
    pipe.send(look(pipe.recv()))


def look_at_argument(x: Any, outbox: Any) -> None:
    outbox.put(look(x))


# Strides and dtypes


@pytest.mark.parametrize("dtype", ["?", *"bBhHiIlLqQ", *"efdFD"])
def test_every_numeric_dtype_arrives_as_it_is(dtype: str) -> None:
    x = (np.arange(BIG) % 2).astype(dtype)
    data = send(x)
    assert len(data) < 600
    same = pickle.loads(data)
    assert type(same) is np.ndarray and same.dtype == x.dtype and is_shared(same)
    np.testing.assert_array_equal(same, x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: np.asfortranarray(x),
        lambda x: x.transpose(1, 0, 2),
        lambda x: x[::2, 1:, ::3],
        lambda x: x[::-1, :, ::-1],
        lambda x: x.T[::-1],
        lambda x: x[:, 0, :],
        lambda x: x.reshape(-1),
        lambda x: np.broadcast_to(x[0], (50, *x.shape[1:])),
        lambda x: np.broadcast_to(x[:, :1], x.shape),
        lambda x: np.lib.stride_tricks.sliding_window_view(x[0, 0], 10),
        lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    ],
)
def test_every_order_and_stride_arrives_with_equal_values(make: Callable[[Any], Any]) -> None:
    ndshm.multiprocessing.install(threshold=8)
    x = make(np.arange(40 * 30 * 20, dtype="f8").reshape(40, 30, 20))
    copy = x.copy()
    same = pickle.loads(send(x))
    assert is_shared(same) and same.shape == x.shape and same.flags.writeable
    np.testing.assert_array_equal(same, x)
    # As in an ordinary pickle.
    usual = pickle.loads(pickle.dumps(x))
    assert same.strides == usual.strides
    assert same.flags.c_contiguous == usual.flags.c_contiguous and same.flags.f_contiguous == usual.flags.f_contiguous
    same[...] = -1
    np.testing.assert_array_equal(x, copy)


def test_array_without_axes_arrives_if_the_threshold_is_zero() -> None:
    ndshm.multiprocessing.install(threshold=0)
    same = pickle.loads(send(np.array(7.5)))
    assert same.shape == () and same[()] == 7.5 and is_shared(same)


@pytest.mark.parametrize("axes", [32, 33, 64])
def test_array_with_many_axes_arrives(axes: int) -> None:
    x = np.arange(BIG, dtype="u1").reshape((1,) * 20 + (BIG,) + (1,) * (axes - 21))
    same = pickle.loads(send(x))
    assert is_shared(same) == (axes <= 32), "a shared array has at most 32 axes"
    np.testing.assert_array_equal(same, x)


def test_view_of_shared_memory_is_copied() -> None:
    array = ndshm.share(big())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ndshm.ViewCopied)
        same = pickle.loads(send(np.asarray(array)))
    assert is_shared(same)
    same[0] = 5
    assert array[0] == 1
    again = pickle.loads(send(same))
    again[0] = 6
    assert same[0] == 5


class Derived(np.ndarray[Any, Any]):
    """A subclass, which keeps its class."""


def structured() -> Any:
    return np.zeros(BIG, [("a", "i4"), ("b", "f4")])


def bfloat16() -> Any:
    import ml_dtypes

    return np.ones(BIG, ml_dtypes.bfloat16)


def memory_map(path: Path) -> Any:
    return np.memmap(path, "u1", "w+", shape=2 * BIG)


@pytest.mark.parametrize(
    "x",
    [
        big()[:-1],
        np.zeros(BIG - 1, "u1"),
        np.zeros((0, BIG)),
        np.array([None] * BIG),
        structured(),
        np.zeros(BIG, ">i4"),
        np.zeros(BIG, "M8[s]"),
        np.zeros(BIG, "m8[s]"),
        np.zeros(BIG, "S8"),
        np.zeros(BIG, "U8"),
        np.zeros(BIG, "V8"),
        np.zeros(BIG, np.longdouble),
        np.zeros(BIG, np.clongdouble),
        bfloat16(),
        structured().view(np.recarray),
        big().view(Derived),
        big().reshape(2, -1).view(np.matrix),
        np.ma.masked_array(big(), big() > 0),
    ],
    ids=lambda x: f"{type(x).__name__}-{x.dtype.str}",
)
def test_other_arrays_have_the_normal_pickle(x: Any) -> None:
    data = send(x)
    assert data == pickle.dumps(x)
    same = pickle.loads(data)
    assert type(same) is type(x) and same.dtype == x.dtype.newbyteorder("=") and not is_shared(same)


def test_memory_map_has_the_normal_pickle(tmp_path: Path) -> None:
    x = memory_map(tmp_path / "map")
    assert send(x) == pickle.dumps(x)


def test_dtype_with_metadata_keeps_it() -> None:
    x = np.zeros(BIG, np.dtype("f4", metadata={"unit": "nm"}))
    assert not is_shared(pickle.loads(send(x)))


def test_threshold_counts_bytes_of_the_elements() -> None:
    for threshold in (1, 100, 1 << 20):
        ndshm.multiprocessing.install(threshold=threshold)
        assert is_shared(pickle.loads(send(np.zeros(threshold, "u1"))))
        assert not is_shared(pickle.loads(send(np.zeros(threshold - 1, "u1"))))
        # Broadcast arrays are pickled in full, and so they are counted.
        assert is_shared(pickle.loads(send(np.broadcast_to(np.uint8(0), threshold))))


def test_message_with_one_array_twice_has_it_once() -> None:
    x = big()
    before = names()
    data = send({"a": x, "b": [x], "c": x[:]})
    assert len(names() - before) == 2
    same = pickle.loads(data)
    assert same["a"] is same["b"][0] and same["a"] is not same["c"]


def test_other_pickles_are_unchanged() -> None:
    x = big()
    assert len(pickle.dumps(x)) > BIG
    assert not is_shared(pickle.loads(pickle.dumps(x)))


# Transports


@pytest.mark.parametrize("method", METHODS)
def test_arrays_travel_there_and_back_through_everything(method: str) -> None:
    context = multiprocessing.get_context(method)
    x = big(2)
    seen = (2 * x.size, True, True)
    inbox, outbox = context.Queue(), context.Queue()
    for kind in (context.Queue, context.JoinableQueue, context.SimpleQueue):
        inbox = kind()
        process = context.Process(target=look_at_queue, args=(inbox, outbox))
        process.start()
        inbox.put(x)
        assert outbox.get(timeout=60) == seen
        process.join()
    near, far = context.Pipe()
    process = context.Process(target=look_at_pipe, args=(far,))
    process.start()
    near.send(x)
    assert near.recv() == seen
    process.join()
    process = context.Process(target=look_at_argument, args=(x.copy(), outbox))
    process.start()
    # A forked child has its arguments without a pickle.
    assert outbox.get(timeout=60) == (2 * x.size, method != "fork", True)
    process.join()
    with context.Pool(2) as pool:
        for was_shared, same in pool.map(add_one, [x, x, x]):
            assert was_shared and is_shared(same), "the result too, though a spawned child does not call install"
            assert same.flags.writeable and (same == 3).all()
        assert pool.apply(look, (x,)) == seen
        assert list(pool.imap_unordered(look, [x[::-1] for _ in range(3)], chunksize=2)) == [seen] * 3
        pool.close()
        pool.join()
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        was_shared, same = executor.submit(add_one, x).result()
        assert was_shared and is_shared(same) and (same == 3).all()
        assert list(executor.map(look, [x] * 3)) == [seen] * 3
    assert (x == 2).all(), "the sender's array is private"


def test_manager_keeps_and_returns_arrays() -> None:
    with multiprocessing.get_context("spawn").Manager() as manager:
        queue, box = manager.Queue(), manager.dict()
        queue.put(big(3))
        same = queue.get()
        assert is_shared(same) and (same == 3).all()
        box["x"] = big(4)
        for _ in range(3):  # the manager sends its array again and again
            same = box["x"]
            assert is_shared(same) and (same == 4).all()
            same[:] = 0
        del box["x"], same


def test_queue_in_one_process_gives_another_array() -> None:
    queue = multiprocessing.get_context("spawn").Queue()
    x = big()
    queue.put(x)
    same = queue.get(timeout=60)
    same[0] = 5
    assert is_shared(same) and x[0] == 1
    queue.close()
    queue.join_thread()


def test_sender_may_end_before_its_array_is_received() -> None:
    near, far = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=send_two, args=(far,))
    process.start()
    process.join()
    first, second = near.recv(), near.recv()
    assert is_shared(first) and (first == 8).all() and is_shared(second) and (second == 9).all()


def send_two(pipe: Any) -> None:
    ndshm.multiprocessing.install()
    pipe.send(big(8))
    pipe.send(big(9))


# What is left


def test_memory_is_freed_with_the_last_view() -> None:
    before = names()
    data = send(big())
    assert len(names() - before) == 1
    same = pickle.loads(data)
    part = same[10:20]
    del same
    gc.collect()
    assert len(names() - before) == 1 and part.sum() == 10
    del part
    gc.collect()
    assert names() == before


def test_message_that_is_not_received_keeps_its_memory_until_clear() -> None:
    before = names()
    queue = multiprocessing.get_context("spawn").Queue()
    queue.put(big())
    queue.close()
    queue.join_thread()
    ndshm.gc()
    assert len(names() - before) == 1
    assert in_flight.clear() == 1
    assert names() == before


def test_message_that_is_not_received_is_reclaimed_after_the_grace_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NDSHM_PICKLE_GRACE", "1")
    before = names()
    data = send(big())
    ndshm.gc()
    assert len(names() - before) == 1
    time.sleep(1.1)
    ndshm.gc()
    assert names() == before
    with pytest.raises(ndshm.HandleExpired, match="NDSHM_PICKLE_GRACE"):
        pickle.loads(data)


def test_message_that_could_not_be_pickled_keeps_its_memory_until_clear() -> None:
    before = names()
    with pytest.raises((AttributeError, pickle.PicklingError)):
        send((big(), lambda: None))
    assert len(names() - before) == 1
    assert in_flight.clear() == 1
    assert names() == before


def hold(pipe: Any) -> None:
    """Receive an array, say so, and keep it."""
    x = pipe.recv()
    pipe.send(is_shared(x))
    pipe.recv()


def never_receive(pipe: Any) -> None:
    pipe.send("here")
    time.sleep(600)


@pytest.mark.parametrize("method", METHODS)
def test_receiver_that_is_killed_with_the_array_leaves_an_orphan(method: str) -> None:
    before = names()
    context = multiprocessing.get_context(method)
    near, far = context.Pipe()
    process = context.Process(target=hold, args=(far,))
    process.start()
    near.send(big())
    assert near.recv() is True
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    ndshm.gc()
    assert names() == before, "nothing is in flight any more"


@pytest.mark.parametrize("method", METHODS)
def test_receiver_that_is_killed_before_it_loads_leaves_a_message(method: str) -> None:
    before = names()
    context = multiprocessing.get_context(method)
    near, far = context.Pipe()
    process = context.Process(target=never_receive, args=(far,))
    process.start()
    assert near.recv() == "here"
    near.send(big())
    process.kill()
    process.join()
    ndshm.gc()
    assert len(names() - before) == 1
    assert in_flight.clear() == 1
    assert names() == before


def test_array_of_a_killed_sender_arrives() -> None:
    program = """
import os, signal, sys
from multiprocessing.connection import Connection
import numpy as np, ndshm
ndshm.multiprocessing.install()
pipe = Connection(int(sys.argv[1]))
pipe.send(np.full(100_000, 3))
os.kill(os.getpid(), signal.SIGKILL)
"""
    near, far = multiprocessing.Pipe()
    done = subprocess.run([sys.executable, "-c", program, str(far.fileno())], pass_fds=[far.fileno()])
    assert done.returncode == -signal.SIGKILL
    same = near.recv()
    assert is_shared(same) and (same == 3).all()


def test_ten_thousand_messages_leave_nothing_with_64_descriptors() -> None:
    program = f"""
import multiprocessing, resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
import ndshm
from ndshm import in_flight
from test_multiprocessing import echo
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    ndshm.multiprocessing.install(threshold=1)
    context = multiprocessing.get_context("spawn")
    there, back = context.Queue(50), context.Queue(50)
    process = context.Process(target=echo, args=(there, back))
    process.start()
    total = 0
    for number in range(5_000):
        there.put(np.full(10, number % 10, "u1"))
        if number >= 40:
            total += int(back.get(timeout=60)[-1])
    there.put(None)
    for _ in range(40):
        total += int(back.get(timeout=60)[-1])
    process.join()
    assert total == 22_500
    assert len(in_flight._notes.handles()) <= 2048, "what was received is forgotten"
    assert in_flight.clear() == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def echo(inbox: Any, outbox: Any) -> None:
    while (x := inbox.get(timeout=60)) is not None:
        assert is_shared(x)
        outbox.put(x)


# Errors


def test_without_room_an_array_has_the_normal_pickle() -> None:
    program = f"""
import multiprocessing, resource, sys
import numpy as np, ndshm
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_multiprocessing import is_shared
ndshm.multiprocessing.install()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
queue = multiprocessing.get_context("spawn").Queue()
for length in (1 << 18, 1 << 22):
    queue.put(np.full(length, 7, "u1"))
    x = queue.get(timeout=60)
    assert x.shape == (length,) and (x == 7).all()
    print(is_shared(x))
queue.close()
queue.join_thread()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nFalse\n", "")


def test_without_descriptors_an_array_has_the_normal_pickle() -> None:
    program = f"""
import errno, multiprocessing, os, resource, sys
import numpy as np, ndshm
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_multiprocessing import is_shared
ndshm.multiprocessing.install()
near, far = multiprocessing.Pipe()
near.send(np.zeros(1 << 16, "u1"))  # this one imports what it needs
first = far.recv()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/", os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.EMFILE
near.send(np.full(1 << 16, 7, "u1"))
second = far.recv()
assert (second == 7).all()
for number in taken:
    os.close(number)
print(is_shared(first), is_shared(second))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True False\n", "")


def test_message_is_loaded_once() -> None:
    data = send(big())
    same = pickle.loads(data)
    with pytest.raises(ndshm.HandleExpired, match="loaded before"):
        pickle.loads(data)
    assert (same == 1).all()


def test_message_from_another_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_array, "_machine", lambda: "another")
    data = send(big())
    monkeypatch.undo()
    with pytest.raises(ndshm.NdshmError, match="another machine"):
        pickle.loads(data)


def test_wrong_settings_are_reported_by_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ndshm.InvalidArgument, match="threshold=-1"):
        ndshm.multiprocessing.install(threshold=-1)
    for wrong in (1.5, "64k", None):
        with pytest.raises(TypeError):
            ndshm.multiprocessing.install(threshold=wrong)  # type: ignore[arg-type]
    monkeypatch.setenv("NDSHM_PICKLE_GRACE", "soon")
    with pytest.raises(ndshm.InvalidArgument, match="NDSHM_PICKLE_GRACE='soon'"):
        ndshm.multiprocessing.install()
    monkeypatch.delenv("NDSHM_PICKLE_GRACE")
    monkeypatch.setenv("NDSHM_SHARING_STRATEGY", "carrier_pigeon")
    with pytest.raises(ndshm.InvalidArgument, match="NDSHM_SHARING_STRATEGY"):
        ndshm.multiprocessing.install()


@pytest.mark.parametrize("strategy", sorted(ndshm.get_all_sharing_strategies()))
def test_both_strategies_send(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NDSHM_SHARING_STRATEGY", strategy)
    same = pickle.loads(send(big(3)))
    assert is_shared(same) and (same == 3).all()


# Where it is installed


def test_uninstall_restores_the_normal_pickle() -> None:
    waiting = send(big())
    ndshm.multiprocessing.uninstall()
    ndshm.multiprocessing.uninstall()
    assert send(big()) == pickle.dumps(big())
    assert is_shared(pickle.loads(waiting)), "what was sent before still arrives"
    assert send(big()) == pickle.dumps(big()), "and does not install again"


def test_uninstall_restores_an_earlier_reducer() -> None:
    ndshm.multiprocessing.uninstall()
    reducers = getattr(ForkingPickler, "_extra_reducers")

    def earlier(x: Any) -> Any:
        return np.full, (x.shape, 5)

    ForkingPickler.register(np.ndarray, earlier)
    try:
        ndshm.multiprocessing.install()
        ndshm.multiprocessing.install(threshold=1000)
        assert is_shared(pickle.loads(send(big())))
        assert (pickle.loads(send(np.zeros(3))) == 5).all(), "what is not shared is left to it"
        ndshm.multiprocessing.uninstall()
        assert reducers[np.ndarray] is earlier
    finally:
        del reducers[np.ndarray]


def test_later_reducer_stays_and_may_pass_arrays_on() -> None:
    reducers = getattr(ForkingPickler, "_extra_reducers")
    ours = reducers[np.ndarray]

    def later(x: Any) -> Any:
        return ours(x)

    ForkingPickler.register(np.ndarray, later)
    try:
        assert is_shared(pickle.loads(send(big())))
        ndshm.multiprocessing.uninstall()
        assert reducers[np.ndarray] is later
        assert send(big()) == pickle.dumps(big())
    finally:
        reducers[np.ndarray] = ours
    # Ours is back, by other means, when it is installed again.
    ndshm.multiprocessing.install()
    assert is_shared(pickle.loads(send(big())))
    assert not is_shared(pickle.loads(send(np.zeros(3))))


def test_forked_children_are_installed() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert is_shared(pool.apply(make, (4,)))
        pool.close()
        pool.join()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_children_install_by_an_initializer_or_by_the_first_array(method: str) -> None:
    context = multiprocessing.get_context(method)
    ndshm.multiprocessing.install(threshold=1000)
    with context.Pool(1) as pool:
        assert not is_shared(pool.apply(make, (4,))), "nothing told it to"
        pool.apply(look, (big(),))
        assert is_shared(pool.apply(make, (4,)))
        assert is_shared(pool.apply(np.zeros, (125,))) and not is_shared(pool.apply(np.zeros, (124,))), "the same threshold"
        pool.close()
        pool.join()
    with context.Pool(1, initializer=ndshm.multiprocessing.install, initargs=(2000,)) as pool:
        assert is_shared(pool.apply(make, (4,)))
        pool.apply(look, (big(),))
        assert is_shared(pool.apply(np.zeros, (250,))) and not is_shared(pool.apply(np.zeros, (249,))), "its own threshold stays"
        pool.close()
        pool.join()
    with context.Pool(1, initializer=ndshm.multiprocessing.uninstall) as pool:
        assert pool.apply(look, (big(),))[1]
        assert not is_shared(pool.apply(make, (4,))), "it has been told not to"
        pool.close()
        pool.join()


def test_top_level_of_the_main_module_installs_in_spawned_children(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import multiprocessing
import numpy as np, ndshm
ndshm.multiprocessing.install()
def make(value):
    return np.full(1 << 16, value)
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            x = pool.apply(make, (3,))
            print(x.base is not None, int(x[0]))
            pool.close()
            pool.join()
""")
    done = subprocess.run([sys.executable, "-W", "error", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 3\n" * 2, "")


def test_forked_child_shares_a_received_array() -> None:
    same = pickle.loads(send(big()))
    pid = os.fork()
    if pid == 0:
        same[0] = 8
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert same[0] == 8


def test_threads_send_at_the_same_time() -> None:
    ndshm.multiprocessing.install(threshold=1)
    wrong: list[int] = []

    def work(value: int) -> None:
        for _ in range(200):
            same = pickle.loads(send(np.full(1000, value)))
            if not is_shared(same) or (same != value).any():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("again", range(5))
def test_process_forks_while_its_threads_send(again: int) -> None:
    # Each process forks at once, because what a thread imports at its first message would block the child.
    program = """
import os, pickle, signal, threading
import numpy as np, ndshm
from multiprocessing.reduction import ForkingPickler
ndshm.multiprocessing.install(threshold=1)
done = threading.Event()
def send(value):
    same = pickle.loads(ForkingPickler.dumps(np.full(1000, value)))
    assert same.base is not None and (same == value).all()
def work(value):
    while not done.is_set():
        send(value)
threads = [threading.Thread(target=work, args=(value,)) for value in range(2)]
for thread in threads:
    thread.start()
statuses = set()
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # ends a child that waits for a thread that it does not have
        send(3)
        os._exit(0)
    statuses.add(os.waitpid(pid, 0)[1])
done.set()
for thread in threads:
    thread.join()
assert statuses == {0}, statuses
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_install_succeeds_without_room() -> None:
    program = f"""
import resource, sys
import numpy as np, ndshm
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_multiprocessing import is_shared, pickle, send
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
ndshm.multiprocessing.install()
print(is_shared(pickle.loads(send(np.zeros(1 << 16)))))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(is_shared(pickle.loads(send(np.zeros(1 << 16)))))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\nTrue\n", "")


def test_import_is_light_and_hides_nothing() -> None:
    program = """
import sys
import ndshm
assert not {"numpy", "multiprocessing", "socket"} & set(sys.modules)
assert callable(ndshm.multiprocessing.install)
import multiprocessing
from ndshm import *
assert hasattr(multiprocessing, "Queue")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_numpy_install_says_so() -> None:
    program = """
import sys
sys.modules["numpy"] = None
import ndshm
ndshm.multiprocessing.uninstall()
try:
    ndshm.multiprocessing.install()
except ImportError as error:
    assert "pip install numpy" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)
