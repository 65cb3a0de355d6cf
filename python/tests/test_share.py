"""Counted arrays: the receiver of a pickle gets the same memory, and the last process frees it."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import multiprocessing
import multiprocessing.reduction
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm import _array, in_flight

METHODS = ["fork", "spawn", "forkserver"]


def is_orphaned(name: str) -> bool:
    try:
        return not ndshm.attached(name)
    except ndshm.NotFound:  # its program has freed it meanwhile
        return False


@pytest.fixture(autouse=True)
def every_array_is_freed() -> Iterator[None]:
    """Fail if a counted array stays in the directory after a test."""
    ndshm.gc()
    before = set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    in_flight.clear()
    new = {name for name in set(os.listdir("/dev/shm")) - before if re.fullmatch(r"ndshm-[0-9a-f]+", name)}
    mapped = Path("/proc/self/maps").read_text()
    left = {name for name in new if name in mapped or is_orphaned(name)}  # other programs may be at work
    assert not left, f"left behind: {left}"


def add_one(array: ndshm.Array) -> ndshm.Array:
    with array.write() as x:
        x[...] += 1
    return array


def add_one_in_place(array: ndshm.Array) -> None:
    add_one(array)


def through_queue(inbox: Any, outbox: Any) -> None:
    outbox.put(add_one(inbox.get()))


def assert_kept_in_flight(name: str) -> None:
    """Check that only a handle in flight keeps an array, and remove it."""
    ndshm.gc()
    assert Path("/dev/shm", name).exists()
    assert name in ndshm.gc(in_flight=True, dry_run=True)
    ndshm.gc(in_flight=True)
    assert not Path("/dev/shm", name).exists()


def expect(array: ndshm.Array, value: int) -> None:
    np.testing.assert_array_equal(array[...], np.full((2, 3), value))


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_carries_the_memory_there_and_back(method: str) -> None:
    array = ndshm.share_zeros((2, 3), "i4", "F")
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        back = pool.map(add_one, [array])[0]
        assert back.order == "F" and back.dtype == np.dtype("i4")
        expect(back, 1)
        pool.close()
        pool.join()
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=through_queue, args=(inbox, outbox))
    process.start()
    inbox.put(array)
    expect(outbox.get(timeout=60), 2)
    process.join()
    near, far = context.Pipe()
    near.send(array)
    expect(add_one(far.recv()), 3)
    process = context.Process(target=add_one, args=(array,))
    process.start()
    process.join()
    expect(array, 4)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        expect(executor.submit(add_one, array).result(), 5)
    del back
    gc.collect()
    assert array.in_flight == 0, "each of these pickles was loaded once, and keeps nothing"
    # multiprocessing ends forked children without their destructors, so they stay counted. The kernel knows that they are gone.
    assert method != "spawn" or array.refcount == 1


def test_joblib_carries_the_memory_there_and_back() -> None:
    import joblib

    array = ndshm.share_zeros((2, 3), "i4")
    joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(add_one_in_place)(array) for _ in range(3))
    expect(array, 3)
    back = joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(add_one)(array)])[0]
    expect(back, 4)
    joblib.externals.loky.get_reusable_executor().shutdown()
    name = array.name
    del array, back
    gc.collect()
    in_flight.clear()
    # The worker cannot know that its result was loaded, and for how often. So its handle keeps the array for a while.
    assert_kept_in_flight(name)


def test_cloudpickle_carries_the_memory_any_number_of_times() -> None:
    import cloudpickle

    array = ndshm.share(np.full((2, 3), 7, "i4"))
    data = cloudpickle.dumps(array)
    arrays = [pickle.loads(data) for _ in range(1000)]
    expect(add_one(arrays[-1]), 8)
    expect(array, 8)
    assert (array.refcount, array.in_flight) == (1001, 1)


DASK = """
import distributed
import ndshm


def add_one(array):
    with array.write() as x:
        x[...] += 1


if __name__ == "__main__":
    array = ndshm.share_zeros((2, 3), "i4")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        with distributed.Client(cluster) as client:
            for future in [client.submit(add_one, array, pure=False) for _ in range(3)]:
                future.result()
    print(array[...].tolist())
"""


def test_dask_carries_the_memory(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(DASK)
    before = set(os.listdir("/dev/shm"))
    # In a process of its own, because dask may keep the last array that it sent.
    ran = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True)
    assert ran.stdout == "[[3, 3, 3], [3, 3, 3]]\n"
    end = time.monotonic() + 60
    while set(os.listdir("/dev/shm")) - before:
        assert time.monotonic() < end
        ndshm.gc(in_flight=True)  # the cluster kills workers, and some end after it
        time.sleep(0.01)


def test_dask_and_hashing_issue_no_handle() -> None:
    import dask.base

    array = ndshm.share_zeros(3, "i4")
    tokens = {dask.base.tokenize(array) for _ in range(3)}
    assert len(tokens) == 1 and hash(array) == hash(array)
    assert tokens != {dask.base.tokenize(ndshm.share_zeros(3, "i4"))}
    assert array.in_flight == 0


def test_thousand_pickles_that_are_never_loaded_need_one_ticket_each_way() -> None:
    from multiprocessing.reduction import ForkingPickler

    array = ndshm.share_zeros(3, "i4")
    texts = {pickle.dumps(array) for _ in range(1000)}
    assert (len(texts), array.in_flight, array.refcount) == (1, 1, 1)
    once = {bytes(ForkingPickler.dumps(array)) for _ in range(1000)}
    assert (len(once), array.in_flight, array.refcount) == (1, 2, 1)
    assert in_flight.clear() == 2
    assert array.in_flight == 0
    with pytest.raises(ndshm.HandleExpired, match="NDSHM_PICKLE_GRACE"):
        pickle.loads(texts.pop())


def test_sender_may_drop_its_array_before_the_receiver_has_it() -> None:
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    inbox.put(ndshm.share(np.ones((2, 3), "i4")))
    gc.collect()
    process = context.Process(target=through_queue, args=(inbox, outbox))
    process.start()
    expect(outbox.get(timeout=60), 2)
    process.join()


def test_pickle_is_useless_after_its_grace_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NDSHM_PICKLE_GRACE", "1")
    data = pickle.dumps(ndshm.share_zeros(3, "i4"))
    time.sleep(1.1)
    ndshm.gc()
    with pytest.raises(ndshm.HandleExpired, match="pickle it again"):
        pickle.loads(data)
    array = ndshm.share_zeros(3, "i4")
    for _ in range(300):
        pickle.dumps(array)
    assert array.in_flight == 1, "a short time is renewed as well"
    for text in ("soon", "0", "1e9"):
        monkeypatch.setenv("NDSHM_PICKLE_GRACE", text)
        with pytest.raises(ndshm.InvalidArgument, match=f"NDSHM_PICKLE_GRACE='{text}'"):
            pickle.dumps(array)


def test_pickle_outlives_the_process_that_made_it_for_thirty_seconds() -> None:
    program = "import ndshm, pickle, sys; sys.stdout.buffer.write(pickle.dumps(ndshm.share([1, 2, 3])))"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    array = pickle.loads(done.stdout)
    assert list(array[...]) == [1, 2, 3]
    assert array.in_flight == 1
    inspected = subprocess.run(
        [sys.executable, "-c", "import ndshm, sys; print(ndshm.gc(in_flight=True, dry_run=True))"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert array.name not in inspected.stdout, "it is attached here"
    name = array.name
    del array
    gc.collect()
    in_flight.clear()
    assert Path("/dev/shm", name).exists(), "the handle of the other process keeps it"
    assert_kept_in_flight(name)


def test_killed_sender_leaves_an_array_that_gc_removes(tmp_path: Path) -> None:
    program = """
import os, sys, time
import numpy, ndshm
array = ndshm.share(numpy.ones(1000))
print(array.name, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        ndshm.gc()
        assert Path("/dev/shm", name).exists()
        child.send_signal(signal.SIGKILL)
        child.wait()
    ndshm.gc()
    assert not Path("/dev/shm", name).exists()


def test_receiver_killed_before_it_loads_the_pickle_leaves_it_in_flight() -> None:
    near, far = multiprocessing.Pipe()
    array = ndshm.share(np.ones((2, 3), "i4"))
    name = array.name
    near.send(array)
    del array
    have_read, has_read = multiprocessing.Pipe()
    pid = os.fork()
    if pid == 0:
        far.recv_bytes()
        has_read.send_bytes(b"x")
        signal.pause()
    assert have_read.poll(60)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert_kept_in_flight(name)


def slow_sum(array: ndshm.Array) -> int:
    time.sleep(0.1)
    return int(array[...].sum())


def test_parent_of_a_forked_pool_may_drop_its_array_first() -> None:
    array = ndshm.share(np.ones((2, 3), "i4"))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = [pool.apply_async(slow_sum, (array,)) for _ in range(4)]
        del array
        gc.collect()
        assert [result.get(60) for result in results] == [6] * 4
        pool.close()
        pool.join()


def test_forked_child_attaches_for_itself() -> None:
    array = ndshm.share(np.ones((2, 3), "i4"))
    there, here = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            add_one(array)
            assert array.refcount == 2, array.refcount
            os.write(here[1], b"x")
            os.read(there[0], 1)
            # The parent has let go, and the child is the last process.
            assert array.refcount == 1
            again = pickle.loads(pickle.dumps(array))
            assert again[0, 0] == 2
            in_flight.clear()
            array.close()
            again.close()
            code = 0
        finally:
            os._exit(code)
    os.read(here[0], 1)
    expect(array, 2)
    name = array.name
    array.close()
    assert Path("/dev/shm", name).exists()
    os.write(there[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not Path("/dev/shm", name).exists()


def test_forked_child_reads_what_lost_its_name_but_cannot_send_it() -> None:
    array = ndshm.share(np.ones((2, 3), "i4"))
    there = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(there[0], 1)
            assert np.asarray(array).sum() == 6
            with pytest.raises(ndshm.HandleExpired, match="inherited"):
                pickle.dumps(array)
            code = 0
        finally:
            os._exit(code)
    array.close()
    os.write(there[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_frozen_array_is_read_only_everywhere() -> None:
    array = ndshm.share(np.arange(6, dtype="i4"))
    data = pickle.dumps(array)
    before = pickle.loads(data)
    array.freeze()
    after = pickle.loads(data)
    for one in (array, before, after):
        assert one.readonly and one[5] == 5
        with pytest.raises(ndshm.PermissionDenied, match="frozen"), one.write():
            pass
        exported = np.asarray(one)
        assert not exported.flags.writeable
        # A library that ignores the flag changes its own copy, and the process lives.
        pointer = exported.ctypes.data
        import ctypes

        ctypes.memset(pointer, 0xFF, 4)
        assert exported[0] == -1
    assert pickle.loads(data)[0] == 0


def test_shared_array_is_copied_under_its_lock(name: str) -> None:
    array = ndshm.share(np.arange(6, dtype="i4"))
    for copied in (ndshm.share(array), ndshm.from_array(name, array)):
        copied[0] = 9
        assert list(array[...]) == [0, 1, 2, 3, 4, 5] and list(copied[1:]) == [1, 2, 3, 4, 5]
    with array.write(), pytest.raises(ndshm.WouldDeadlock):
        ndshm.share(array)


def test_array_is_copied_by_copy_and_deepcopy() -> None:
    array = ndshm.share(np.arange(6, dtype="i4"))
    for one in (copy.copy(array), copy.deepcopy(array)):
        assert type(one) is np.ndarray
        one[0] = 9
    assert array[0] == 0 and array.in_flight == 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["bool", "u1", "i8", "f2", "f4", "c16"])
def test_every_type_arrives_as_it_is(dtype: str, order: Any) -> None:
    x = np.asarray(np.arange(6).reshape(2, 3), dtype=dtype, order=order)
    same = pickle.loads(pickle.dumps(ndshm.share(x)))
    assert same.dtype == x.dtype and same.order == order
    np.testing.assert_array_equal(same[...], x)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_arrays_without_elements_or_axes_arrive(shape: tuple[int, ...]) -> None:
    same = pickle.loads(pickle.dumps(ndshm.share(np.zeros(shape, "f4"))))
    assert same.shape == shape


def test_strategies_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ndshm.get_all_sharing_strategies() == {"file_descriptor", "file_system"}
    assert ndshm.get_sharing_strategy() == "file_system"
    monkeypatch.setenv("NDSHM_SHARING_STRATEGY", "file_descriptor")
    assert ndshm.get_sharing_strategy() == "file_descriptor"
    monkeypatch.setenv("NDSHM_SHARING_STRATEGY", "carrier_pigeon")
    with pytest.raises(ndshm.InvalidArgument, match="NDSHM_SHARING_STRATEGY='carrier_pigeon'"):
        ndshm.share([1])
    with pytest.raises(ndshm.InvalidArgument, match="strategy='carrier_pigeon'"):
        ndshm.set_sharing_strategy("carrier_pigeon")


def test_array_by_descriptor_gets_its_name_when_it_is_pickled() -> None:
    array = ndshm.share(np.arange(3), strategy="file_descriptor")
    assert array.name == "" and array[2] == 2
    same = pickle.loads(pickle.dumps(array))
    assert array.name and same.name == array.name
    same[2] = 5
    assert array[2] == 5


def test_counted_array_is_not_unlinked() -> None:
    with pytest.raises(ndshm.Unsupported, match="last process"):
        ndshm.share([1]).unlink()


def test_closed_counted_array_is_not_pickled() -> None:
    array = ndshm.share([1])
    array.close()
    for dumps in (pickle.dumps, multiprocessing.reduction.ForkingPickler.dumps):
        with pytest.raises(ValueError, match="is closed"):
            dumps(array)


def test_clear_ends_more_pickles_than_one_ticket_can_count() -> None:
    array = ndshm.share([1])
    first = bytes(multiprocessing.reduction.ForkingPickler.dumps(array))
    for _ in range(1 << 14):
        multiprocessing.reduction.ForkingPickler.dumps(array)
    assert array.in_flight == 2
    assert in_flight.clear() == 2 and array.in_flight == 0
    with pytest.raises(ndshm.HandleExpired):
        pickle.loads(first)


def test_tokens_tell_nameless_arrays_apart() -> None:
    import dask.base

    tokens = {dask.base.tokenize(ndshm.share([number], strategy="file_descriptor")) for number in range(5)}
    assert len(tokens) == 5


def test_frozen_array_without_its_name_is_not_exported() -> None:
    array = ndshm.share(np.arange(6, dtype="i4"))
    other = pickle.loads(pickle.dumps(array))
    other.freeze()
    os.unlink(f"/dev/shm/{array.name}")
    # This attachment is from before the freeze, and writable. It cannot be attached privately any more.
    for export in (np.asarray, memoryview, np.from_dlpack):
        with pytest.raises((BufferError, ndshm.Unlinked)):
            export(array)
    assert not np.asarray(other).flags.writeable


def test_plain_array_has_no_count(name: str) -> None:
    array = ndshm.create(name, 3, "u1")
    for get in (lambda: array.refcount, array.freeze):
        with pytest.raises(ndshm.Unsupported, match="ndshm.share"):
            get()


def test_pickle_from_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_array, "_machine", lambda: "another")
    data = pickle.dumps(ndshm.share([1]))
    monkeypatch.undo()
    with pytest.raises(ndshm.NdshmError, match="another machine"):
        pickle.loads(data)


def test_ten_thousand_arrays_go_through_a_queue_with_64_descriptors() -> None:
    program = f"""
import multiprocessing, resource, sys
import numpy as np
import ndshm
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_share import sum_of_firsts
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    context = multiprocessing.get_context("spawn")
    queue, answer = context.Queue(100), context.Queue()
    process = context.Process(target=sum_of_firsts, args=(queue, answer, 10_000))
    process.start()
    for number in range(10_000):
        queue.put(ndshm.share(np.full(10, number % 10, "u1")))
    assert answer.get() == 45_000
    process.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def sum_of_firsts(queue: Any, answer: Any, count: int) -> None:
    answer.put(sum(int(queue.get(timeout=60)[0]) for _ in range(count)))
