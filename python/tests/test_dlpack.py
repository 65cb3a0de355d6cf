"""DLPack: the same memory in other libraries, without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ndshm


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", "u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16 bool".split())
def test_every_dtype_and_order_arrives_as_the_same_memory(name: str, dtype: str, order: str) -> None:
    array = ndshm.from_array(name, np.asarray(np.arange(24).reshape(2, 3, 4), dtype, order))
    x = np.from_dlpack(array)
    assert (x.dtype, x.shape, x.strides) == (array.dtype, array.shape, array.strides)
    np.testing.assert_array_equal(x, array[...])
    x[1, 2, 3] = 0
    assert array[1, 2, 3] == 0


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_shapes_without_axes_or_elements_arrive(name: str, shape: tuple[int, ...]) -> None:
    assert np.from_dlpack(ndshm.create(name, shape, "f8")).shape == shape


def test_read_only_array_arrives_as_read_only(name: str) -> None:
    ndshm.create(name, 4, "u1")
    readonly = ndshm.open(name, readonly=True)
    assert not np.from_dlpack(readonly).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        readonly.__dlpack__()  # a consumer of DLPack before version 1
    with pytest.raises(BufferError, match="read-only"):
        readonly.__dlpack__(max_version=(0, 8))


def test_tensor_keeps_the_memory_attached(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    x = np.from_dlpack(array)
    array.close()
    with pytest.raises(BufferError, match="open it again"):
        array.__dlpack__()
    x[0] = 3
    assert ndshm.attached(name)
    assert ndshm.open(name)[0] == 3
    del x
    gc.collect()
    assert not ndshm.attached(name)


@pytest.mark.parametrize("version", [None, (1, 0), (2, 1)])
def test_capsule_that_is_not_taken_is_freed(name: str, version: tuple[int, int] | None) -> None:
    array = ndshm.create(name, 4, "u1")
    capsule = array.__dlpack__(max_version=version)
    array.close()
    assert ndshm.attached(name)
    assert ("versioned" in repr(capsule)) == (version is not None)
    del capsule
    assert not ndshm.attached(name)


def test_requests_for_a_copy_or_another_device_are_refused(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    assert array.__dlpack_device__() == (1, 0)
    array.__dlpack__(dl_device=(1, 0), copy=False)
    for request in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError):
            array.__dlpack__(**request)  # type: ignore[arg-type]
