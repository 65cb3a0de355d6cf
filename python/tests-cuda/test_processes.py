"""Arrays on a GPU in several processes: everything that multiprocessing sends, kills, forks, and GPUs under other numbers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import resource_sharer
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import driver
import numpy as np
import pytest

import ndshm
import ndshm.cuda

METHODS = ["spawn", "forkserver"]

# What a child sees of an array: dtype, shape, order, whether it is shared, and its sum.
Seen = tuple[str, tuple[int, ...], str, bool, float]


def look(array: ndshm.cuda.Array) -> Seen:
    """Look at an array, and replace its elements."""
    x = array.numpy()
    array.overwrite(np.full_like(x, 9))
    return array.dtype_name, array.shape, array.order, array.is_shared, float(x.sum())


SENT: Seen = ("float32", (2, 3), "F", True, 15.0)


def sent(device: int = 0) -> ndshm.cuda.Array:
    return ndshm.cuda.from_numpy(np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3)), device)


def is_overwritten(array: ndshm.cuda.Array) -> bool:
    return bool((array.numpy() == 9).all())


def look_at_argument(array: ndshm.cuda.Array, outbox: Any) -> None:
    outbox.put(look(array))


def look_at_queue(inbox: Any, outbox: Any) -> None:
    outbox.put(look(inbox.get()))


def echo(pipe: Connection) -> None:
    """Send arrays on, until there are no more."""
    try:
        while True:
            pipe.send(pipe.recv())
    except EOFError:
        pass


def double(array: ndshm.cuda.Array) -> ndshm.cuda.Array:
    return ndshm.cuda.from_numpy(array.numpy() * 2)


def ended(process: Any) -> int:
    process.join(60)
    assert process.exitcode is not None
    return int(process.exitcode)


@pytest.mark.parametrize("method", METHODS)
def test_argument_of_a_process_is_the_same_memory(method: str) -> None:
    context = multiprocessing.get_context(method)
    array, outbox = sent(), context.Queue()
    process = context.Process(target=look_at_argument, args=(array, outbox))
    process.start()
    assert outbox.get(timeout=60) == SENT
    assert ended(process) == 0
    assert is_overwritten(array)


@pytest.mark.parametrize("method", METHODS)
def test_queue_sends_the_same_memory(method: str) -> None:
    context = multiprocessing.get_context(method)
    array, inbox, outbox = sent(), context.Queue(), context.Queue()
    process = context.Process(target=look_at_queue, args=(inbox, outbox))
    process.start()
    inbox.put(array)
    assert outbox.get(timeout=60) == SENT
    assert ended(process) == 0
    assert is_overwritten(array)


@pytest.mark.parametrize("method", METHODS)
def test_received_array_is_sent_on_through_a_pipe(method: str) -> None:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=echo, args=(there,))
    process.start()
    there.close()
    array = sent()
    here.send({"weights": [array, array.part(slice(1, 2))]})
    assert here.poll(60)
    same, part = here.recv()["weights"]
    part.overwrite(np.full((2, 1), 7, "f4"))
    np.testing.assert_array_equal(array.numpy(), [[0, 7, 2], [3, 7, 5]])
    np.testing.assert_array_equal(same.numpy(), array.numpy())
    here.close()
    assert ended(process) == 0


@pytest.mark.parametrize("method", METHODS)
def test_pool_takes_and_returns_arrays(method: str) -> None:
    arrays = [ndshm.cuda.from_numpy(np.full(3, number)) for number in range(4)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.map(double, arrays, chunksize=1)
        assert [result.numpy()[0] for result in results] == [0, 2, 4, 6]
        pool.close()
        pool.join()


def test_executor_takes_and_returns_arrays() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        assert executor.submit(double, sent()).result(60).numpy().sum() == 30


@pytest.mark.parametrize("order", ["C", "F"])
def test_every_dtype_and_order_arrives(order: str) -> None:
    for dtype in "u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16 bool".split():
        x = np.asarray(np.arange(24).reshape(2, 3, 4), dtype, order)
        received = ForkingPickler.loads(ForkingPickler.dumps(ndshm.cuda.from_numpy(x)))
        assert (received.dtype, received.order) == (x.dtype, order)
        np.testing.assert_array_equal(received.numpy(), x)
    assert ForkingPickler.loads(ForkingPickler.dumps(ndshm.cuda.zeros(2, "bfloat16"))).dtype_name == "bfloat16"
    assert ForkingPickler.loads(ForkingPickler.dumps(ndshm.cuda.zeros((), "f4"))).shape == ()


def test_sender_may_drop_its_array() -> None:
    sent_bytes = ForkingPickler.dumps(sent())
    gc.collect()
    assert driver.memory_in_use() == driver.UNIT
    assert look(ForkingPickler.loads(sent_bytes)) == SENT


def test_descriptors_are_closed() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    array = sent()
    ForkingPickler.loads(ForkingPickler.dumps(array))  # starts the thread that sends descriptors
    before = descriptors()
    for _ in range(5):
        ForkingPickler.loads(ForkingPickler.dumps(array)).close()
    # The thread closes its duplicate after it has sent it.
    driver.until(lambda: descriptors() <= before)


def test_pickle_that_is_never_loaded_keeps_its_memory_until_the_sharer_stops() -> None:
    sent_bytes = ForkingPickler.dumps(sent())
    gc.collect()
    assert driver.memory_in_use() == driver.UNIT
    resource_sharer.stop(60)
    assert driver.memory_in_use() == 0
    with pytest.raises(ndshm.HandleExpired, match="sender"):
        ForkingPickler.loads(sent_bytes)


def produce_slowly(outbox: Connection) -> None:
    """Send an array while the GPU still writes it: each of five writes takes 20 ms."""
    array, stream = ndshm.cuda.zeros(1 << 20, "u1"), driver.Stream()
    for value in range(3, 8):
        stream.fill(array.ptr, value, array.nbytes)
    array.written_on(stream.number)
    outbox.send(array)
    signal.pause()


def test_receiver_reads_after_the_sender_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DELAY_US", "20000")
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Pipe(False)
    producer = context.Process(target=produce_slowly, args=(outbox,))
    producer.start()
    assert inbox.poll(60)
    array = inbox.recv()
    producer.kill()  # the array needs it no more
    assert (array.numpy() == 7).all()
    assert ended(producer) == -signal.SIGKILL


def test_pickle_that_is_damaged_is_refused() -> None:
    array = sent()
    for change in ({"note": "{}"}, {"shape": (1 << 20, 1 << 20)}, {"shape": (3 << 20,)}):
        descriptor, note = array.descriptor(False)
        facts: dict[str, Any] = {"note": note, "shape": array.shape, **change}
        with pytest.raises(ndshm.NotAnArray):
            ndshm._core.cuda_attach(descriptor, facts["note"], facts["shape"], "<f4", "C")
        with pytest.raises(OSError):
            os.fstat(descriptor)  # closed in any case
    zero = os.open("/dev/zero", os.O_RDONLY)
    with pytest.raises(ndshm.CudaError, match="cuMemImportFromShareableHandle"):
        ndshm._core.cuda_attach(zero, array_note(array), array.shape, "<f4", "C")


def array_note(array: ndshm.cuda.Array) -> str:
    descriptor, note = array.descriptor(False)
    os.close(descriptor)
    return note


# Kills


def hold(inbox: Connection, outbox: Connection) -> None:
    """Hold an array until this process is killed."""
    array = inbox.recv()
    outbox.send(array.numpy().sum())
    signal.pause()


def produce(outbox: Connection) -> None:
    """Send an array, and wait to be killed."""
    outbox.send(sent())
    signal.pause()


def produce_and_end(outbox: Connection) -> None:
    outbox.send(sent())


def test_killed_consumer_releases_the_memory() -> None:
    context = multiprocessing.get_context("spawn")
    (their_inbox, inbox), (outbox, their_outbox) = context.Pipe(False), context.Pipe(False)
    consumer = context.Process(target=hold, args=(their_inbox, their_outbox))
    consumer.start()
    array = sent()
    inbox.send(array)
    assert outbox.poll(60) and outbox.recv() == 15
    array.close()
    assert driver.memory_in_use() == driver.UNIT
    consumer.kill()
    assert ended(consumer) == -signal.SIGKILL
    assert driver.memory_in_use() == 0


def test_array_of_a_killed_producer_stays() -> None:
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Pipe(False)
    producer = context.Process(target=produce, args=(outbox,))
    producer.start()
    assert inbox.poll(60)
    array = inbox.recv()
    producer.kill()
    assert ended(producer) == -signal.SIGKILL
    assert look(array) == SENT


def test_array_that_its_sender_did_not_live_to_send_is_an_error() -> None:
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Pipe(False)
    producer = context.Process(target=produce_and_end, args=(outbox,))
    producer.start()
    assert ended(producer) == 0
    with pytest.raises(ndshm.HandleExpired, match="sender must live"):
        inbox.recv()
    assert driver.memory_in_use() == 0


# Several GPUs


def tell_the_gpu(inbox: Any, outbox: Any) -> None:
    for _ in range(2):
        try:
            array = inbox.get()
            outbox.put((array.device, array.uuid, float(array.numpy().sum())))
        except ndshm.CudaError as error:
            outbox.put(str(error))


def gpus_seen_with(monkeypatch: pytest.MonkeyPatch, visible: str) -> tuple[list[str], list[Any]]:
    """Send an array of each GPU to a process that sees other ones."""
    context = multiprocessing.get_context("spawn")
    arrays, inbox, outbox = [sent(0), sent(1)], context.Queue(), context.Queue()
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", visible)
        process = context.Process(target=tell_the_gpu, args=(inbox, outbox))
        process.start()
    for array in arrays:
        inbox.put(array)
    answers = [outbox.get(timeout=60) for _ in arrays]
    assert ended(process) == 0
    return [array.uuid for array in arrays], answers


def test_gpus_are_found_under_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids, answers = gpus_seen_with(monkeypatch, "1,0")
    assert answers == [(1, uuids[0], 15), (0, uuids[1], 15)]


def test_hidden_gpu_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids, answers = gpus_seen_with(monkeypatch, "1")
    assert uuids[0] in answers[0] and "CUDA_VISIBLE_DEVICES" in answers[0]
    assert answers[1] == (0, uuids[1], 15)


# Forks


def refusals(array: ndshm.cuda.Array, inbox: Any, outbox: Any) -> None:
    """Tell how often CUDA is refused in a forked child, in what class of exception, and with what advice."""
    attempts = [
        array.numpy,
        array.synchronize,
        lambda: array.overwrite(np.zeros((2, 3), "f4")),
        lambda: array.wait_on(1),
        lambda: array.written_on(1),
        lambda: array.__dlpack__(stream=2),
        lambda: ForkingPickler.dumps(array),
        lambda: array.part(slice(1)).numpy(),
        lambda: ndshm.cuda.zeros(3, "u1"),
        ndshm.cuda.device_count,
        inbox.get,
    ]
    refused = 0
    for attempt in attempts:
        try:
            attempt()
        except RuntimeError as error:
            refused += isinstance(error, ndshm.CudaError) and "spawn or forkserver" in str(error)
    array.close()
    outbox.put((len(attempts), refused))


def test_forked_child_is_told_to_be_spawned() -> None:
    context = multiprocessing.get_context("fork")
    array, inbox, outbox = sent(), context.Queue(), context.Queue()
    array.ptr  # noqa: B018
    process = context.Process(target=refusals, args=(array, inbox, outbox))
    process.start()
    inbox.put(array)
    attempts, refused = outbox.get(timeout=60)
    assert refused == attempts
    assert ended(process) == 0
    assert array.numpy().sum() == 15  # the child has freed nothing


FORK_FIRST = """
import multiprocessing
import numpy, ndshm.cuda

def child(inbox, outbox):
    outbox.put(float(inbox.get().numpy().sum()))

context = multiprocessing.get_context("fork")
inbox, outbox = context.Queue(), context.Queue()
process = context.Process(target=child, args=(inbox, outbox))
process.start()  # before this process uses CUDA
inbox.put(ndshm.cuda.from_numpy(numpy.ones(7)))
print(outbox.get(timeout=60))
process.join()
"""


def test_child_that_was_forked_before_cuda_was_used_receives_arrays() -> None:
    done = subprocess.run([sys.executable, "-c", FORK_FIRST], capture_output=True, text=True, check=True, timeout=100)
    assert (done.stdout, done.stderr) == ("7.0\n", "")
