"""Storages of torch that are the memory of arrays, with a double of torch: tables, small storages, recycled memory, messages that fail."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import resource
import sys
import time
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
import small_shm
import storages
from conftest import counted_arrays
from ndshm import _core, in_flight
from ndshm.torch import _loader, _queues, _storages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="torch's tensors travel as arrays on Linux only")

#: More bytes than a storage has that shares an array with others.
LARGE = _storages.SMALL + 1

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let storages of the double travel as those of torch do after `install`, and look for what is left."""
    before = counted_arrays()
    monkeypatch.setattr(_storages, "_torch", storages)
    register()
    yield
    getattr(ForkingPickler, "_extra_reducers").pop(storages.UntypedStorage, None)  # noqa: B009
    _storages.end()
    gc.collect()
    in_flight.clear()
    assert counted_arrays() <= before
    assert not _storages._by_cdata and not _storages._by_place and not len(_storages._attached)


def register() -> None:
    """What `_install` does with torch, for the double."""
    _storages._torch = storages
    ForkingPickler.register(storages.UntypedStorage, lambda storage: _storages.reduce(_storages.move(storages, storage)))


def through(storage: Any) -> Any:
    """Send a storage to this process."""
    return pickle.loads(ForkingPickler.dumps(storage))


def add_one(inbox: Any, outbox: Any) -> None:
    """In another process: add one to every byte of what arrives, and send it back."""
    register()
    while (storage := inbox.get()) is not None:
        storage._memory += 1
        outbox.put(storage)
        storage = None
    _storages.end()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("length", [1, 40, _storages.SMALL, LARGE, 3 << 20])
def test_sender_and_receiver_have_one_memory(method: str, length: int) -> None:
    context: Any = multiprocessing.get_context(method)
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=add_one, args=(inbox, outbox))
    process.start()
    storage = storages.of([7] * length)
    for value in (8, 9):
        inbox.put(storage)
        assert outbox.get() is storage, "what comes home is the storage that was sent"
        assert set(storage.tolist()) == {value}
    inbox.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_what_is_sent_twice_is_one_storage() -> None:
    for length in (40, LARGE):
        storage = storages.of([3] * length)
        assert through(storage) is storage and through([storage, storage])[1] is storage
        assert not storage.resizable()


def test_moved_storage_is_another_one_from_then_on() -> None:
    """torch can give a storage other memory later: addresses in a table do not tell which it has."""
    for length in (40, LARGE):
        storage = storages.of([1] * length)
        through(storage)
        place = _storages.place_of(storage)
        assert place is not None
        storage._swap_data_ptr_(storages.of([2] * length))
        assert _storages.place_of(storage) is None
        received = through(storage)
        assert received is storage and received.tolist() == [2] * length
        again = _storages.place_of(storage)
        assert again is not None and again.key != place.key


def test_shorter_storage_at_the_address_of_a_longer_one_has_its_own_length() -> None:
    array = ndshm.share(np.arange(200, dtype="u1"))
    longer = storages.frombuffer(array, dtype="uint8", count=200).untyped_storage()
    shorter = storages.frombuffer(array, dtype="uint8", count=20).untyped_storage()
    assert shorter.data_ptr() == longer.data_ptr()
    assert [through(one).tolist() for one in (longer, shorter)] == [list(range(200)), list(range(20))]


def test_memory_of_an_array_is_sent_as_that_array(name: str) -> None:
    plain, counted = ndshm.create(name, (4, 5), "f4", "F"), ndshm.share(np.zeros((4, 5), "f4"))
    for array in (plain, counted):
        memory = np.asarray(array).ravel("K").view("u1")
        storage = storages.UntypedStorage(memory=memory)
        place = _storages.place_of(storage)
        assert place is not None and place.offset == 0 and place.array.dtype == "float32"
        received = through(storage)
        received._memory[:4] = np.array([9], "f4").view("u1")
        assert array[0, 0] == 9
        part = storages.UntypedStorage(memory=memory[16:])
        assert (found := _storages.place_of(part)) is not None and found.offset == 16
    frozen = ndshm.share(np.zeros(4, "u1"))
    frozen.freeze()
    assert _storages.place_of(storages.UntypedStorage(memory=np.asarray(frozen))) is None, "what is written there stays in this process"


def test_plain_array_that_lost_its_name_is_not_sent(name: str) -> None:
    storage = storages.UntypedStorage(memory=np.asarray(ndshm.create(name, 100, "u1")))
    ndshm.create(name, 100, "u1", replace=True)
    with pytest.raises(ndshm.Unlinked, match="clone"):
        through(storage)
    ndshm.unlink(name)
    with pytest.raises(ndshm.Unlinked, match="clone"):
        through(storage)


def test_array_is_found_where_freed_ones_began() -> None:
    page = 4096
    freed = [ndshm.share_zeros(16 * page, "u1") for _ in range(400)]
    began = {np.asarray(array).ctypes.data for array in freed}
    del freed
    gc.collect()
    array = ndshm.share_zeros(64 * page, "u1")
    memory = np.asarray(array)
    inside = [address - memory.ctypes.data for address in began if 0 < address - memory.ctypes.data < memory.nbytes]
    assert inside, "the kernel maps where there was something before"
    for offset in inside:
        storage = storages.UntypedStorage(memory=memory[offset:])
        assert (place := _storages.place_of(storage)) is not None and place.offset == offset


def test_storage_of_a_part_is_that_of_the_whole_array() -> None:
    array = ndshm.share(np.arange(24, dtype="f4").reshape(4, 6))
    whole = _storages.storage_of(storages, array)
    assert whole.nbytes() == 96 and _storages.storage_of(storages, array.part(np.s_[2:, ::2])) is whole


def test_array_is_not_frozen_while_a_storage_can_write() -> None:
    array = ndshm.share(np.zeros(100))
    storage = _storages.storage_of(storages, array)
    with pytest.raises(ndshm.InUse, match="can write"):
        array.freeze()
    del storage
    gc.collect()
    array.freeze()


def test_first_storage_of_a_place_is_the_one_that_arrives_again() -> None:
    array = ndshm.share(np.arange(200, dtype="u1"))
    first, second = (storages.frombuffer(array, dtype="uint8", count=200).untyped_storage() for _ in range(2))
    assert through(first) is first and through(second) is first
    del second
    assert through(first) is first


def test_small_storages_share_an_array() -> None:
    before = counted_arrays()
    kept = [storages.of([number]) for number in range(100)]
    received = [through(storage) for storage in kept]
    assert len(counted_arrays() - before) == 1
    places = [_storages.place_of(storage) for storage in received]
    offsets = [place.offset for place in places if place is not None]
    assert offsets == [64 * number for number in range(100)]
    # A place is not used again, and the array lives as long as one of them.
    del kept, received[1:], places
    later = through(storages.of([7] * 100))
    assert (place := _storages.place_of(later)) is not None and place.offset == 6400
    assert received[0].tolist() == [0]
    for _ in range(_storages.SLAB // _storages.SMALL):
        through(storages.of([1] * _storages.SMALL))
    assert len(counted_arrays() - before) == 2, "the first, of which two are left, and the one that is filled now"


def test_process_does_not_grow() -> None:
    for count in (1000, 20000):
        for _ in range(count):
            through(storages.of([1, 2, 3]))
        for _ in range(count // 100):
            through(storages.of([1] * LARGE))
        gc.collect()
        if count == 1000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 << 10, f"{grown} KiB"
    assert not _storages._by_cdata and len(_storages._attached) <= 1


def test_message_that_was_loaded_before_is_refused() -> None:
    for length in (40, LARGE):
        message = ForkingPickler.dumps(storages.of([1] * length))
        kept = pickle.loads(message)
        with pytest.raises(ndshm.HandleExpired, match="loaded before"):
            pickle.loads(message)
        del kept
        with pytest.raises(ndshm.HandleExpired, match="loaded before"):
            pickle.loads(message)


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("no")


def test_message_that_fails_keeps_nothing() -> None:
    _queues._patch_pickler()
    for length in (40, LARGE):
        storage = storages.of([1] * length)
        good = ForkingPickler.dumps(storage)
        with pytest.raises(ValueError, match="no"):
            ForkingPickler.dumps([storage, Unpicklable()])
        place = _storages.place_of(storage)
        assert place is not None and place.array.in_flight == 1, "that of the good message"
        assert pickle.loads(good) is storage and place.array.in_flight == 0


def test_tensor_that_is_sent_again_and_again_leaves_no_notes() -> None:
    storage = storages.of([1] * LARGE)
    before = len(in_flight._notes.handles())
    for _ in range(500):
        through(storage)
    assert len(in_flight._notes.handles()) <= before + 1


def test_handle_lasts_longer_if_its_sender_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NDSHM_PICKLE_GRACE", "1")
    monkeypatch.setattr(_storages, "_unread", {})
    kept, lost = (ForkingPickler.dumps(storages.of([1] * length)) for length in (LARGE, LARGE + 1))
    monkeypatch.setenv("NDSHM_PICKLE_GRACE", "60")
    _storages._unread.popitem()  # type: ignore[union-attr]
    _storages.keep_unread()
    time.sleep(1.2)
    ndshm.gc()
    assert pickle.loads(kept).nbytes() == LARGE
    with pytest.raises(ndshm.HandleExpired):
        pickle.loads(lost)
    _storages.keep_unread()
    assert not _storages._unread


def test_process_that_ends_leaves_nothing(tmp_path: Path) -> None:
    program = """
        import os, sys
        sys.path.insert(0, TESTS)
        import storages
        from ndshm.torch import _storages

        storages.kept = [_storages.new(storages, length, is_overwritten=True) for length in (40, 1 << 20)]
        _storages.end_process()
        print(len(os.listdir("/dev/shm")), storages.kept[1].nbytes(), storages.kept[1].fill_(7), flush=True)
        _storages.end_process()
        os._exit(0)
        """.replace("TESTS", repr(os.path.dirname(__file__)))
    assert small_shm.run(program, tmp_path) == [f"0 {1 << 20} None"]


# --- recycled memory


def sent(length: int) -> tuple[str, bytes]:
    """Send a new storage and drop it. Return the file of its array, and the message."""
    storage = _storages.new(storages, length, is_overwritten=True)
    storage.fill_(1)
    place = _storages.place_of(storage)
    assert place is not None
    return place.array.name, ForkingPickler.dumps(storage)


def test_memory_is_used_again_once_its_message_was_read_and_dropped() -> None:
    _storages.recycle(1 << 20)
    name, message = sent(LARGE)
    others = {sent(LARGE)[0] for _ in range(2)}
    assert name not in others, "a message that was not read keeps its array"
    received = pickle.loads(message)
    assert sent(LARGE)[0] != name, "and so does its receiver"
    assert received.tolist() == [1] * LARGE
    del received
    again, _ = sent(LARGE)
    assert again == name
    with pytest.raises(ndshm.HandleExpired):
        pickle.loads(message)  # the text of an old handle leads to no other array


def test_recycled_memory_is_zeros_unless_all_of_it_is_overwritten() -> None:
    _storages.recycle(1 << 20)
    for _ in range(2):
        storage = _storages.new(storages, LARGE, is_overwritten=False)
        assert set(storage.tolist()) == {0}
        storage.fill_(5)
    overwritten = _storages.new(storages, LARGE, is_overwritten=True)
    assert overwritten.nbytes() == LARGE


def test_only_so_much_is_kept() -> None:
    before = counted_arrays()
    _storages.recycle(3 * LARGE)
    for _ in range(5):
        in_flight.clear()
        for length in range(LARGE, LARGE + 8):
            pickle.loads(sent(length)[1])
    assert len(counted_arrays() - before) == 2, "as many as have room: of 32 KiB and a byte, files take 40 KiB"
    _storages.recycle(0)
    assert counted_arrays() <= before


def test_kept_memory_is_given_up_before_there_is_no_space(tmp_path: Path) -> None:
    program = """
        import sys
        sys.path.insert(0, TESTS)
        import ndshm, storages
        from ndshm.torch import _storages

        _storages.recycle(250 << 20)
        for mib in (50, 60, 70):
            storage = _storages.new(storages, mib << 20, is_overwritten=True)
            del storage
        import os
        print(len(os.listdir("/dev/shm")))
        print(ndshm.share_zeros(200 << 20, "u1").nbytes)
        print(len(os.listdir("/dev/shm")))
        """.replace("TESTS", repr(os.path.dirname(__file__)))
    assert small_shm.run(program, tmp_path) == ["3", str(200 << 20), "0"]


def reads_later(storage: Any, begin: Any, seen: Any) -> None:
    begin.wait(60)
    seen.put(set(storage.tolist()))


def test_forked_child_keeps_what_it_inherited() -> None:
    """Parent and child share an open file description, so that the kernel would let the parent write while the child reads."""
    _storages.recycle(1 << 20)
    storage = _storages.new(storages, LARGE, is_overwritten=True)
    storage.fill_(7)
    context = multiprocessing.get_context("fork")
    begin, seen = context.Event(), context.SimpleQueue()
    process = context.Process(target=reads_later, args=(storage, begin, seen))
    process.start()
    del storage
    for _ in range(10):
        pickle.loads(sent(LARGE)[1]).fill_(3)
    begin.set()
    assert seen.get() == {7}
    process.join(60)


def sends_on(storage: Any, outbox: Any) -> None:
    register()
    storage._memory += 1
    outbox.put(storage)
    own = storages.of([5])
    outbox.put(own)


def test_forked_child_sends_on_what_it_inherited() -> None:
    for length in (40, LARGE):
        storage = storages.of([1] * length)
        through(storage)
        context = multiprocessing.get_context("fork")
        outbox = context.SimpleQueue()
        process = context.Process(target=sends_on, args=(storage, outbox))
        process.start()
        assert outbox.get() is storage and set(storage.tolist()) == {2}
        # The child begins an array of its own: in the parent's, both would use one place.
        received = outbox.get()
        mine = through(storages.of([6]))
        assert (received.tolist(), mine.tolist()) == ([5], [6])
        process.join(60)


# --- messages that nothing will read


def test_rest_of_a_pipe_is_read_without_waiting() -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    storage = storages.of([1] * LARGE)
    small = storages.of([2] * 40)
    for batch in ((0, {"x": storage, "y": [small]}), (1, storage)):
        writer.send_bytes(ForkingPickler.dumps(batch))
    array = ndshm.share(np.zeros(10))
    ndshm.multiprocessing.install(1, views=True)
    for batch in (array, array.part(np.s_[1:]), np.asarray(array)[2:]):
        writer.send_bytes(ForkingPickler.dumps(batch))
    ndshm.multiprocessing.uninstall()
    assert array.in_flight == 1
    writer.send_bytes(pickle.dumps(Unloadable()))
    place, slab = _storages.place_of(storage), _storages.place_of(small)
    assert place is not None and slab is not None and (place.array.in_flight, slab.array.in_flight) == (1, 1)
    # The last message is written in part.
    os.write(writer.fileno(), b"\0\0\1\0" + ForkingPickler.dumps((2, storage))[:20])
    unread = os.dup(reader.fileno())
    begun = time.monotonic()
    _loader._end(unread)
    assert time.monotonic() - begun < 5
    assert (place.array.in_flight, slab.array.in_flight) == (1, 0), "that of the last message keeps its time"
    assert array.in_flight == 0
    in_flight.clear()


class Unloadable:
    """An object that must not be made of a message that is not loaded."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_long_message_is_found_too() -> None:
    message = b"x" * 100
    parts = b"\0\0\0\3abc" + b"\xff\xff\xff\xff" + (100).to_bytes(8, "big") + message + b"\0\0\0\x09par"
    assert list(_loader._messages(parts)) == [b"abc", message]
    assert list(_loader._messages(b"\xff\xff\xff\xff\0\0")) == [] == list(_loader._messages(b"\0\0"))
    # An interrupt has read the beginning of the first message: what is left of it is no length.
    assert list(_loader._messages(b"\xff\xff\xff\xfc" * 10)) == [] == list(_loader._messages(b"\x7f\0\0\0abc"))


# --- errors in the thread of a Queue


def put_too_much(queue: Any, count: int) -> None:
    register()
    _queues._patch_pickler()
    _queues._patch_queues()
    for length in (count, 3):
        queue.put(storages.of([1] * length))
    queue.close()
    queue.join_thread()
    _storages.end()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
@pytest.mark.parametrize("size", [0, 1])
def test_error_in_the_thread_of_a_queue_is_raised_in_the_receiver(kind: str, size: int) -> None:
    queue: Any = getattr(multiprocessing.get_context("fork"), kind)(size)
    process = multiprocessing.get_context("fork").Process(target=put_failing, args=(queue,))
    process.start()
    with pytest.raises(ndshm.NoSpace, match=rf"too little.*\(process {process.pid} could not send"):
        queue.get(timeout=60)
    assert queue.get(timeout=60).tolist() == [1, 1, 1], "the next message arrives"
    process.join(60)
    assert process.exitcode == 0


def put_failing(queue: Any) -> None:
    new = _storages.new

    def failing(torch: Any, length: int, *, is_overwritten: bool) -> Any:
        if length == LARGE:
            raise ndshm.NoSpace("there is too little")
        return new(torch, length, is_overwritten=is_overwritten)

    _storages.new = failing
    put_too_much(queue, LARGE)


def test_handles_of_another_array_are_not_used() -> None:
    one, other = ndshm.share(np.zeros(3)), ndshm.share(np.zeros(3))
    handle = in_flight._notes.issue(one, False, 60.0)
    assert not other._redeem(handle) and one.in_flight == 1
    assert one._redeem(handle) and not one._redeem(handle)
    handle = in_flight._notes.issue(one, False, 60.0)
    assert _core.redeem(handle) and not _core.redeem(handle)
    del one
    assert not _core.redeem(handle)
