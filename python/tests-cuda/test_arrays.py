"""Arrays of one process: what goes to the GPU comes back."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import subprocess
import sys
from typing import Any

import driver
import ml_dtypes
import numpy as np
import pytest

import ndshm
import ndshm.cuda

DTYPES = "u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16 bool".split()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_order_comes_back(dtype: str, order: str) -> None:
    x = np.asarray(np.arange(24).reshape(2, 3, 4), dtype, order)
    array = ndshm.cuda.from_numpy(x)
    assert (array.dtype, array.shape, array.strides, array.order) == (x.dtype, x.shape, x.strides, order)
    assert (array.nbytes, array.size, array.itemsize, array.ndim) == (x.nbytes, x.size, x.itemsize, x.ndim)
    y = array.numpy()
    assert (y.dtype, y.strides, y.flags.writeable) == (x.dtype, x.strides, True)
    np.testing.assert_array_equal(x, y)
    empty = ndshm.cuda.zeros(x.shape, dtype, order)
    assert not empty.numpy().any()
    empty.write(x)
    np.testing.assert_array_equal(x, empty.numpy())


def test_bfloat16_comes_back_as_the_type_of_ml_dtypes() -> None:
    x = np.arange(6).astype(ml_dtypes.bfloat16)
    array = ndshm.cuda.from_numpy(x)
    assert array.dtype_name == "bfloat16"
    assert array.dtype == array.numpy().dtype == x.dtype
    np.testing.assert_array_equal(array.numpy(), x)
    array.write(x[::-1])
    array.write(array.numpy())
    np.testing.assert_array_equal(array.numpy(), x[::-1])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 5), (5, 1)])
def test_shapes_without_axes_or_elements_come_back(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 7, "f8")
    np.testing.assert_array_equal(ndshm.cuda.from_numpy(x).numpy(), x)
    array = ndshm.cuda.zeros(shape, "f8", "F")
    array.write(x)
    np.testing.assert_array_equal(array.numpy(), x)


def strided() -> list[Any]:
    x = np.arange(60, dtype="i4").reshape(3, 4, 5)
    misaligned = np.frombuffer(b"." + x.tobytes(), "u1")[1:].view("i4").reshape(x.shape)
    assert not misaligned.flags.aligned
    return [x[::2, 1:], x[::-1], x.transpose(1, 0, 2), np.broadcast_to(x[0], (2, 4, 5)), misaligned]


@pytest.mark.parametrize("case", range(5))
def test_any_strides_are_copied(case: int) -> None:
    x = strided()[case]
    array = ndshm.cuda.from_numpy(x)
    np.testing.assert_array_equal(array.numpy(), x)
    array.write(x[..., ::-1])
    np.testing.assert_array_equal(array.numpy(), x[..., ::-1])


def test_shared_array_of_the_host_is_copied_under_its_lock() -> None:
    array = ndshm.share(np.arange(5.0))
    on_gpu = ndshm.cuda.from_numpy(array)
    np.testing.assert_array_equal(on_gpu.numpy(), np.arange(5.0))


def test_wrong_elements_are_refused() -> None:
    array = ndshm.cuda.zeros(3, "f4")
    for x in (np.zeros(3), np.zeros(4, "f4"), np.zeros((3, 1), "f4")):
        with pytest.raises(ndshm.Mismatch, match="float32"):
            array.write(x)
    with pytest.raises(ndshm.InvalidArgument):
        ndshm.cuda.zeros(3, ">f4")
    with pytest.raises(BufferError):
        array.upload(np.zeros(8, "u1"), False)


def test_array_is_written_freely_until_it_is_shared() -> None:
    array = ndshm.cuda.zeros(4, "u1")
    array.write(np.array([1, 2, 3, 4], "u1"))
    assert not array.is_shared
    part = array.part(slice(1, 3))
    assert array.is_shared and part.is_shared
    with pytest.raises(ndshm.InUse, match="overwrite"):
        part.write(np.array([7, 8], "u1"))
    part.overwrite(np.array([7, 8], "u1"))
    assert array.numpy().tolist() == [1, 7, 8, 4]


@pytest.mark.parametrize("order", ["C", "F"])
def test_parts_are_ranges_of_the_outermost_axis(order: str) -> None:
    x = np.asarray(np.arange(24).reshape(4, 6), "i8", order)
    array = ndshm.cuda.from_numpy(x)
    for index in (slice(1, 3), slice(None), slice(-1, None), slice(3, 1), slice(2, 100)):
        expected = x[index] if order == "C" else x[:, index]
        np.testing.assert_array_equal(array.part(index).numpy(), expected)
    with pytest.raises(ndshm.InvalidArgument, match="step"):
        array.part(slice(None, None, 2))
    with pytest.raises(ndshm.Mismatch, match="axes"):
        ndshm.cuda.zeros((), "f4").part(slice(1))


def test_part_outlives_its_array() -> None:
    array = ndshm.cuda.from_numpy(np.arange(4))
    part = array.part(slice(2, None))
    array.close()
    assert part.numpy().tolist() == [2, 3]


def test_memory_is_freed_with_the_array() -> None:
    array = ndshm.cuda.zeros(3 << 20, "u1")
    assert driver.memory_in_use() == 2 * driver.UNIT
    with array as same:
        assert same is array
    assert driver.memory_in_use() == 0
    assert array.closed and array.shape == (3 << 20,) and "closed" in repr(array)
    array.close()
    for use in (array.numpy, array.synchronize, lambda: array.ptr, lambda: array.is_shared):
        with pytest.raises(ValueError, match="closed"):
            use()
    array = ndshm.cuda.zeros(3, "u1")
    del array
    gc.collect()
    assert driver.memory_in_use() == 0


def test_memory_stays_as_long_as_an_object_whose_address_is_known() -> None:
    array = ndshm.cuda.from_numpy(np.arange(3, dtype="u1"))
    address = array.ptr
    assert array.is_shared
    array.close()
    assert ctypes.string_at(address, 3) == b"\0\1\2"
    del array
    gc.collect()
    assert driver.memory_in_use() == 0


def test_gpus_are_told_by_number_and_uuid() -> None:
    assert ndshm.cuda.device_count() == 2
    arrays = [ndshm.cuda.zeros(3, "u1", device=number) for number in range(2)]
    assert [array.device for array in arrays] == [0, 1]
    assert arrays[0].uuid != arrays[1].uuid and arrays[0].uuid.startswith("GPU-")
    assert "GPU 1" in repr(arrays[1])
    with pytest.raises(ndshm.InvalidArgument, match="no GPU 2"):
        ndshm.cuda.zeros(3, "u1", device=2)


def test_full_gpu_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="GPU") as caught:
        ndshm.cuda.zeros(2 << 30, "u1")
    assert caught.type is ndshm.NoSpace


def test_failure_of_the_driver_names_its_call() -> None:
    driver.LIBRARY.fakeCudaFail(b"cuMemMap", ctypes.c_uint64(1), 719)
    with pytest.raises(ndshm.CudaError, match="cuMemMap") as caught:
        ndshm.cuda.zeros(3, "u1")
    assert isinstance(caught.value, RuntimeError)


def test_plain_pickles_and_copies_say_what_to_do() -> None:
    array = ndshm.cuda.zeros(3, "u1")
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ndshm.Unsupported, match=r"multiprocessing.*array\.numpy\(\)"):
            use(array)
    with pytest.raises(TypeError, match=r"array\.numpy\(\)"):
        np.asarray(array)


def test_package_without_the_module_needs_no_driver() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    program = "import ndshm, sys; assert 'ndshm.cuda' not in sys.modules; assert ndshm.torch"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_import_without_a_gpu_finds_none() -> None:
    program = "import ndshm.cuda; assert ndshm.cuda.device_count() == 0"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "FAKE_CUDA_DEVICES": "0"}, check=True)
