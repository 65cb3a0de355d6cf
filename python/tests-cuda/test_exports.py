"""The same memory in other libraries: DLPack, `__cuda_array_interface__`, and the order of work between streams."""

from __future__ import annotations

import ctypes
import gc
import itertools
import multiprocessing
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import driver
import ml_dtypes
import numpy as np
import pytest
from consumer import Taken

import ndshm
import ndshm.cuda

CODES = {"u": 1, "i": 0, "f": 2, "c": 5, "b": 6}
SIZE = 1 << 20


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", "u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16 bool".split())
def test_tensor_is_the_memory_of_the_array(dtype: str, order: str, versioned: bool) -> None:
    x = np.asarray(np.arange(6).reshape(2, 3), dtype, order)
    array = ndshm.cuda.from_numpy(x, device=1)
    assert array.__dlpack_device__() == (2, 1)
    taken = Taken(array.__dlpack__(max_version=(1, 0) if versioned else None), versioned)
    tensor = taken.tensor
    assert (tensor.data, tensor.byte_offset, tensor.device_type, tensor.device_id) == (array.ptr, 0, 2, 1)
    assert (tensor.code, tensor.bits, tensor.lanes) == (CODES[x.dtype.kind], 8 * x.itemsize, 1)
    assert (taken.shape, taken.strides) == ((2, 3), (3, 1) if order == "C" else (1, 2))
    if versioned:
        assert (taken.managed.major, taken.managed.flags) == (1, 0)
    taken.delete()


def test_bfloat16_has_its_own_code() -> None:
    taken = Taken(ndshm.cuda.from_numpy(np.zeros(3, ml_dtypes.bfloat16)).__dlpack__(), False)
    assert (taken.tensor.code, taken.tensor.bits) == (4, 16)
    taken.delete()


def test_part_begins_at_its_first_element() -> None:
    array = ndshm.cuda.from_numpy(np.arange(12, dtype="f4").reshape(4, 3))
    taken = Taken(array.part(slice(2, None)).__dlpack__(), False)
    assert taken.tensor.data + taken.tensor.byte_offset == array.ptr + 24
    taken.delete()


@pytest.mark.parametrize("versioned", [False, True])
def test_tensor_keeps_the_memory_until_its_deleter_is_called(versioned: bool) -> None:
    array = ndshm.cuda.from_numpy(np.full(4, 9, "u1"))
    taken = Taken(array.__dlpack__(max_version=(1, 1) if versioned else None), versioned)
    assert array.is_shared
    array.close()
    del array
    gc.collect()
    assert driver.Stream().read(taken.tensor.data, 4) == b"\t\t\t\t"
    taken.delete()
    assert driver.memory_in_use() == 0


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (2, 1)])
def test_capsule_that_is_not_taken_frees_its_memory(version: tuple[int, int] | None) -> None:
    array = ndshm.cuda.zeros(4, "u1")
    capsule = array.__dlpack__(max_version=version)
    array.close()
    with pytest.raises(BufferError, match="closed"):
        array.__dlpack__()
    assert driver.memory_in_use() == driver.UNIT
    assert ("versioned" in repr(capsule)) == (version is not None and version[0] >= 1)
    del capsule
    assert driver.memory_in_use() == 0


def test_requests_for_a_copy_or_another_device_are_refused() -> None:
    array = ndshm.cuda.zeros(4, "u1")
    array.__dlpack__(dl_device=(2, 0), copy=False)
    for request in ({"copy": True}, {"dl_device": (2, 1)}, {"dl_device": (1, 0)}, {"stream": 0}, {"stream": -7}):
        with pytest.raises(BufferError):
            array.__dlpack__(**request)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match=r"numpy\(\)"):
        np.from_dlpack(array, device="cpu")


@pytest.mark.parametrize("order", ["C", "F"])
def test_interface_describes_the_memory(order: str) -> None:
    array = ndshm.cuda.zeros((2, 3), "f4", order)
    assert array.__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (array.ptr, False),
        "strides": None if order == "C" else (4, 8),
        "stream": None,
    }
    assert array.is_shared
    assert ndshm.cuda.zeros(0, "f4").__cuda_array_interface__["data"] == (0, False)
    assert ndshm.cuda.zeros(2, "bool").__cuda_array_interface__["typestr"] == "|b1"
    assert not hasattr(ndshm.cuda.zeros(2, "bfloat16"), "__cuda_array_interface__")


# The order of work. In these processes, every operation of a stream takes 20 ms: what does not wait reads zeros.


def filled_late() -> tuple[ndshm.cuda.Array, driver.Stream]:
    """An array that a stream will have filled with sevens in 100 ms."""
    array, stream = ndshm.cuda.zeros(SIZE, "u1"), driver.Stream()
    for value in range(3, 8):
        stream.fill(array.ptr, value, SIZE)
    array.written_on(stream.number)
    return array, stream


def is_seven(read: bytes) -> bool:
    return read == b"\7" * SIZE


def read_without_order() -> bool:
    array, _stream = filled_late()
    array.__dlpack__(stream=-1)
    return not is_seven(driver.Stream().read(array.ptr, SIZE))


def read_in_a_stream_that_waits() -> bool:
    array, _stream = filled_late()
    consumer = driver.Stream()
    array.wait_on(consumer.number)
    return is_seven(consumer.read(array.ptr, SIZE))


def read_in_the_stream_of_a_tensor() -> bool:
    array, _stream = filled_late()
    consumer = driver.Stream()
    array.__dlpack__(stream=consumer.number)
    return is_seven(consumer.read(array.ptr, SIZE))


def read_in_the_default_stream() -> bool:
    array, consumer = filled_late()
    array.__dlpack__()
    consumer.number = 1
    return is_seven(consumer.read(array.ptr, SIZE))


def read_in_the_stream_of_the_interface() -> bool:
    array, consumer = filled_late()
    consumer.number = array.__cuda_array_interface__["stream"]
    return is_seven(consumer.read(array.ptr, SIZE))


def copy_after_unsaid_work() -> bool:
    array = ndshm.cuda.zeros(SIZE, "u1")
    library = driver.Stream()
    library.number = 1  # the legacy default stream, of which no library says what it does
    library.fill(array.ptr, 7, SIZE)
    return is_seven(array.numpy().tobytes())


def end_under_a_read() -> bool:
    array, stream = ndshm.cuda.zeros(SIZE, "u1"), driver.Stream()
    stream.fill(array.ptr, 7, SIZE)
    array.used_on(stream.number)
    array.close()
    del array
    return memory_ends_without_a_wait()


def copy_to_the_host() -> bool:
    array, _stream = filled_late()
    return is_seven(array.numpy().tobytes())


def synchronize() -> bool:
    array, _stream = filled_late()
    array.synchronize()
    return is_seven(driver.Stream().read(array.ptr, SIZE))


def close() -> bool:
    array, _stream = filled_late()
    array.close()
    del array
    return memory_ends_without_a_wait()


def memory_ends_without_a_wait() -> bool:
    gc.collect()
    is_there = driver.memory_in_use() == driver.UNIT
    driver.until(lambda: driver.memory_in_use() == 0)
    return is_there


CASES: list[Callable[[], bool]] = [
    read_without_order,
    read_in_a_stream_that_waits,
    read_in_the_stream_of_a_tensor,
    read_in_the_default_stream,
    read_in_the_stream_of_the_interface,
    copy_to_the_host,
    copy_after_unsaid_work,
    end_under_a_read,
    synchronize,
    close,
]


def run_cases(outbox: Any) -> None:
    for case in CASES:
        outbox.send((case.__name__, case(), driver.violations()))


def test_reads_come_after_writes_in_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DELAY_US", "20000")
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Pipe(duplex=False)
    process = context.Process(target=run_cases, args=(outbox,))
    process.start()
    outbox.close()
    for case in CASES:
        assert inbox.poll(60)
        assert inbox.recv() == (case.__name__, True, "")
    process.join()
    assert process.exitcode == 0


# torch. The one that is installed for tests cannot use GPUs; here a module stands for it that can.


def torch_with(is_available: bool, streams: tuple[int, ...] = ()) -> Any:
    module: Any = types.ModuleType("torch")
    module.__version__ = "9.9"
    in_turn = itertools.cycle(streams)
    module.cuda = types.SimpleNamespace(
        is_available=lambda: is_available,
        is_initialized=lambda: bool(streams),
        Stream=lambda device, priority: types.SimpleNamespace(cuda_stream=next(in_turn)),
    )
    module.from_dlpack = lambda array: ("tensor", array.__dlpack_device__(), array.__dlpack__(stream=1, max_version=(1, 0)))
    return module


def test_torch_with_cuda_takes_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with(True))
    array = ndshm.cuda.zeros(3, "f4")
    tensor: Any = ndshm.torch.as_tensor(array)
    assert tensor[:2] == ("tensor", (2, 0))
    taken = Taken(tensor[2], True)
    assert taken.tensor.data == array.ptr
    taken.delete()


def test_end_of_an_array_leaves_a_capture_of_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = driver.Stream()
    monkeypatch.setitem(sys.modules, "torch", torch_with(True, (captured.number, driver.Stream().number)))
    monkeypatch.setattr(ndshm.cuda, "_named", set())
    tensor: Any = ndshm.torch.as_tensor(ndshm.cuda.zeros(3, "f4"))
    driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(captured.number), 0)
    Taken(tensor[2], True).delete()
    time.sleep(0.05)
    assert driver.memory_in_use() == driver.UNIT
    graph = ctypes.c_void_p()
    driver.call("cuStreamEndCapture", ctypes.c_void_p(captured.number), ctypes.byref(graph))
    driver.until(lambda: driver.memory_in_use() == 0)


def test_torch_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch_with(False))
    with pytest.raises(ndshm.Unsupported, match=r"torch 9\.9 cannot use GPUs"):
        ndshm.torch.as_tensor(ndshm.cuda.zeros(3, "f4"))
