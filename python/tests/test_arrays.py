"""Creating, opening and describing arrays; dtypes, orders and shapes; exports and closing."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm

DTYPES = "u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16 bool".split()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_order_is_opened_as_it_was_created(name: str, dtype: str, order: str) -> None:
    want = np.arange(24).reshape(2, 3, 4).astype(dtype)
    with ndshm.create(name, want.shape, dtype, order) as array:
        array[...] = want
        assert (array.dtype, array.shape, array.order, array.nbytes) == (want.dtype, (2, 3, 4), order, want.nbytes)
    with ndshm.open(name) as again:
        assert again.dtype == want.dtype and again.order == order
        assert again[...].dtype == want.dtype
        np.testing.assert_array_equal(again[...], want)
        assert np.asarray(again).flags.f_contiguous == (order == "F")
        assert np.asarray(again).strides == again.strides


def test_bfloat16_is_exported_as_its_bits(name: str) -> None:
    with ndshm.create(name, 3, "bfloat16") as array:
        array[0] = 1
        assert array.dtype_name == "bfloat16"
        assert np.asarray(array).dtype == np.uint16 and np.asarray(array)[0] == 0x3F80
    assert ndshm.open(name).dtype_name == "bfloat16"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 5)])
def test_shapes_without_axes_or_elements_work(name: str, shape: tuple[int, ...]) -> None:
    array = ndshm.create(name, shape, "f8", "F")
    with array.write() as x:
        assert x.shape == shape
        x[...] = 2.5
    np.testing.assert_array_equal(ndshm.open(name)[...], np.full(shape, 2.5))
    assert np.asarray(array).shape == shape


@pytest.mark.parametrize("make", [np.asfortranarray, np.ascontiguousarray, lambda x: x[::2, ::-1], lambda x: x.T, lambda x: x[:0]])
def test_from_array_copies_any_strides(name: str, make) -> None:  # type: ignore[no-untyped-def]
    source = make(np.arange(60.0).reshape(6, 10))
    array = ndshm.from_array(name, source)
    np.testing.assert_array_equal(array[...], source)
    source[...] = -1
    assert not (array[...] == -1).any()


def test_files_hold_the_elements_and_nothing_else(name: str) -> None:
    array = ndshm.from_array(name, np.arange(10, dtype="<u2"))
    assert (array.directory / name).read_bytes() == np.arange(10, dtype="<u2").tobytes()


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (">f4", "big-endian.*astype"),
        (np.dtype(">i2"), "big-endian"),
        (np.dtype([("a", "f4")]), "structured"),
        ("U4", "not supported"),
        (object, "not supported"),
        (3, "no dtype"),
    ],
)
def test_other_dtypes_are_refused_by_name(name: str, dtype: object, message: str) -> None:
    with pytest.raises(ndshm.InvalidArgument, match=message):
        ndshm.create(name, 3, dtype)
    with pytest.raises(ndshm.NotFound):
        ndshm.open(name)


def test_wrong_arguments_are_refused_with_advice(name: str) -> None:
    with pytest.raises(ndshm.InvalidArgument, match="0 or more"):
        ndshm.create(name, (2, -1), "u1")
    with pytest.raises(ValueError, match="give \"C\" or \"F\""):
        ndshm.create(name, 2, "u1", "K")
    with pytest.raises(ndshm.InvalidArgument, match="too many"):
        ndshm.create(name, (1,) * 65, "u1")
    with pytest.raises(ndshm.InvalidArgument):
        ndshm.create("a/b", 2, "u1")
    with pytest.raises(ndshm.InvalidArgument, match="address space"):
        ndshm.create(name, (2**40, 2**40), "u1")
    with pytest.raises(TypeError):
        ndshm.create(name, "22", "u1")
    with pytest.raises(FileNotFoundError):
        ndshm.open(name)
    ndshm.create(name, (2, 3), "u1")
    with pytest.raises(FileExistsError):
        ndshm.create(name, (2, 3), "u1")
    with pytest.raises(ndshm.Mismatch, match="describes itself as .u1"):
        ndshm.open(name, (2, 3), "f4")
    with pytest.raises(ndshm.Mismatch):
        ndshm.open(name, (3, 2), "u1")


@pytest.mark.parametrize("shape", [2**70, -1, 3.0, "22", b"22", None, (2, 2**70), (2.5, 1), (None,)])
def test_shape_that_memory_cannot_have_is_refused_with_advice(name: str, shape: object) -> None:
    for make in (
        lambda: ndshm.create(name, shape, "u1"),  # type: ignore[arg-type]
        lambda: ndshm.share_zeros(shape, "u1"),  # type: ignore[arg-type]
        lambda: ndshm.RenderBuffer(name, shape, 1, "u1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ndshm.InvalidArgument, match="whole number"):
            make()


def test_numbers_of_numpy_are_lengths(name: str) -> None:
    assert ndshm.create(name, np.int64(3), "u1").shape == (3,)
    assert ndshm.share_zeros(np.array([2, 3]), "u1").shape == (2, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [Path("array"), b"array", 3, None, "\udc80"])
def test_name_that_is_no_text_is_refused_with_advice(wrong: Any) -> None:
    for use in (
        lambda: ndshm.create(wrong, 3, "u1"),
        lambda: ndshm.open(wrong),
        lambda: ndshm.unlink(wrong),
        lambda: ndshm.attached(wrong),
        lambda: ndshm.RenderBuffer(wrong, 4, 4, "u1"),
        lambda: ndshm.RenderBuffer.join(wrong, "u1"),
    ):
        with pytest.raises(ndshm.InvalidArgument, match="give text") as raised:
            use()
        assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("permissions", [-1, 0o1777, 2**70, "rw", 6.0])
def test_permissions_that_no_file_has_are_refused_with_advice(name: str, permissions: Any) -> None:
    with pytest.raises(ndshm.InvalidArgument, match="permissions"):
        ndshm.create(name, 3, "u1", permissions=permissions)
    with pytest.raises(ndshm.InvalidArgument, match="permissions"):
        ndshm.from_array(name, np.ones(3), permissions=permissions)


@pytest.mark.parametrize(
    "dtype", ["float", "complex", "int", "?", "f", "d", "=f4", "=i8", "B", "longlong", np.longlong, np.intc, np.dtype("=u2"), np.double, np.bool_]
)
def test_dtypes_that_numpy_accepts_are_accepted(dtype: Any) -> None:
    array = ndshm.share_zeros(2, dtype)
    assert array.dtype == np.dtype(dtype) and array[...].dtype == np.dtype(dtype)


def test_dtypes_without_numpy() -> None:
    program = (
        "import sys; sys.modules['numpy'] = None; import ndshm\n"
        "print([ndshm.share_zeros(1, dtype).dtype_name for dtype in ('float', 'f4', 'bool', 'complex')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['float64', 'float32', 'bool', 'complex128']\n", done.stderr


def test_error_about_a_description_speaks_of_the_arguments_of_open(name: str) -> None:
    ndshm.create(name, (2, 3), "u1")
    with pytest.raises(ndshm.Mismatch, match="reinterpret=True") as raised:
        ndshm.open(name, (2, 3), "i1")
    assert "(true)" not in str(raised.value) and "--ignore" not in str(raised.value)
    assert ndshm.open(name, (2, 3), "i1", reinterpret=True).dtype_name == "int8"


def test_star_import_hides_no_function_of_python() -> None:
    import builtins

    names: dict[str, Any] = {}
    exec("from ndshm import *", names)
    assert not (set(names) - {"__builtins__"}) & set(dir(builtins))


def test_replaced_array_keeps_its_memory(name: str) -> None:
    old = ndshm.create(name, 2, "u1")
    ndshm.create(name, 3, "u1", replace=True)
    assert np.asarray(old).shape == (2,)
    with pytest.raises(ndshm.Unlinked):
        old.read().__enter__()


def test_write_to_a_read_only_array_stays_in_this_process(name: str) -> None:
    array = ndshm.from_array(name, np.arange(4, dtype="u4"))
    readonly = ndshm.open(name, readonly=True)
    x = np.asarray(readonly)
    assert not x.flags.writeable and memoryview(readonly).readonly
    array[1] = 70
    assert x[1] == 70  # it sees the writes of other attachments
    ctypes.memset(x.ctypes.data, 0xFF, 4)  # like a library that ignores the flag
    assert x[0] == 0xFFFFFFFF
    assert array[0] == 0
    with pytest.raises(ndshm.PermissionDenied):
        readonly.write().__enter__()
    with pytest.raises((BufferError, TypeError)):
        struct.pack_into("B", readonly, 0, 1)


def test_closed_array_refuses_access_and_keeps_exports(name: str) -> None:
    array = ndshm.create(name, 4, "u1")
    x = np.asarray(array)
    array.close()
    array.close()
    assert array.closed and "closed" in repr(array)
    for use in (array.read().__enter__, lambda: array[0], array.unlink):
        with pytest.raises(ValueError, match="open it again"):
            use()
    with pytest.raises(BufferError):
        memoryview(array)
    del array, use
    gc.collect()
    x[:] = 9
    assert ndshm.open(name)[0] == 9
    assert ndshm.attached(name)
    del x
    assert not ndshm.attached(name)


def test_buffers_of_the_wrong_order_are_refused(name: str) -> None:
    array = ndshm.create(name, (2, 3), "u1", "F")
    view = memoryview(array)
    assert view.f_contiguous and not view.c_contiguous
    with pytest.raises(BufferError):
        zlib.crc32(array)


def test_representations_name_the_array(name: str) -> None:
    array = ndshm.create(name, (2, 3), "f4")
    assert name in repr(array) and "float32" in repr(array)
    html = array._repr_html_()
    assert "2 × 3" in html and "float32" in html and "plain" in html
    part = ndshm.share([1, 2]).part(np.s_[1:])
    part.close()
    assert "part of counted, closed" in part._repr_html_()
    assert len(array) == 2
    with pytest.raises(TypeError):
        len(ndshm.create(name, (), "f4", replace=True))


def test_copies_are_ordinary_arrays(name: str) -> None:
    array = ndshm.from_array(name, np.arange(3))
    for duplicate in (copy.copy(array), copy.deepcopy([array])[0]):
        assert isinstance(duplicate, np.ndarray)
        duplicate[0] = 5
        assert array[0] == 0


def test_ls_names_and_describes(name: str) -> None:
    array = ndshm.create(name, (4, 5), "bool", "F")
    row = next(row for row in ndshm.ls() if row.name == name)
    assert row == (name, 20, "bool", (4, 5), "F")
    assert isinstance(ndshm.gc(dry_run=True), list)
    assert array.unlink() and not array.unlink()


@pytest.mark.program
def test_gc_and_the_program_remove_the_same_and_ls_lists_arrays_only(tmp_path: Path) -> None:
    (tmp_path / "ndshm-write-0badcafe").write_bytes(b"\0")  # the lock of a killed upload
    (tmp_path / "ndshm-write-12345678").write_bytes(b"\0\0")  # of another length: no lock
    (tmp_path / "sem.mp-1h2j3k4l").write_bytes(b"\0" * 32)  # a semaphore of multiprocessing
    program = """
import json, subprocess, ndshm
from ndshm import _program
ndshm.create("sem.mine", 32, "u1")
print([row.name for row in ndshm.ls()])
command = [_program.path(), "gc", "--backend", "emulated", "--dry-run", "--json"]
found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
print([gone["name"] for gone in found["removed"]] == ndshm.gc(dry_run=True))
print(ndshm.gc(), ndshm.gc())
"""
    environment = {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['ndshm-write-12345678', 'sem.mine']", "True", "['ndshm-write-0badcafe'] []"]


def test_import_loads_no_other_package() -> None:
    program = (
        "import ndshm, sys; "
        "print([m for m in ('numpy', 'asyncio', 'multiprocessing', 'tqdm', 'pickle', 'torch') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_everything_but_indexing_works_without_numpy(name: str) -> None:
    program = f"""
import sys
sys.modules['numpy'] = None
import ndshm
array = ndshm.create({name!r}, (2, 3), 'f4')
with array.write() as x:
    assert isinstance(x, memoryview) and x.format == 'f' and x.shape == (2, 3)
    x[1, 2] = 1.5
try:
    x[0, 0]
except ValueError:
    pass
else:
    raise AssertionError('released')
with ndshm.open({name!r}).read() as x:
    assert x[1, 2] == 1.5 and x.readonly
try:
    array[0]
except ImportError as error:
    assert 'pip install numpy' in str(error)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_buffer_that_a_library_keeps_without_exporting_stays_valid(name: str) -> None:
    """numpy keeps the object and the address alone, and no buffer."""
    array = ndshm.create(name, 100_000, "f8")
    array[...] = 3
    x: np.ndarray[Any, Any] = np.ndarray((100_000,), "f8", buffer=array)  # type: ignore[arg-type]
    array.close()
    assert x.sum() == 300_000
    counted = ndshm.share(np.ones(100_000))
    y: np.ndarray[Any, Any] = np.ndarray((100_000,), "f8", buffer=counted)  # type: ignore[arg-type]
    counted.freeze()  # attaches through another mapping
    assert counted[0] == 1 and y.sum() == 100_000
    counted.close()
    assert y.sum() == 100_000
    del array, x
    gc.collect()
    assert not ndshm.attached(name)


def test_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert ndshm.__version__ == version("ndshm")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ndshm.nothing  # noqa: B018


OPENER = """
import sys
import ndshm

print(ndshm.open(sys.argv[1], timeout=60)[...].tolist())
"""


def test_open_waits_for_the_name_and_finds_the_whole_array(name: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", OPENER, name], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    time.sleep(0.5)
    array = ndshm.from_array(name, np.arange(3))
    for process in processes:
        assert process.communicate(timeout=60)[0] == "[0, 1, 2]\n"
    assert (array[...] == [0, 1, 2]).all()


def test_open_says_that_it_waited_in_vain(name: str) -> None:
    with pytest.raises(ndshm.TimedOut, match=r"no array has this name.*waited for 0\.05 seconds"):
        ndshm.open(name, timeout=0.05)
    with pytest.raises(ndshm.NotFound):
        ndshm.open(name)
    with pytest.raises(ValueError, match="timeout"):
        ndshm.open(name, timeout=-1)


COUNTER = """
import sys
import ndshm

array = ndshm.create(sys.argv[1], 4, "int64", exist_ok=True)
for _ in range(50):
    array += 1
print(array.name)
"""


def test_first_and_later_processes_create_one_array(name: str) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", COUNTER, name], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == 4 * [f"{name}\n"]
    assert (ndshm.open(name)[...] == 200).all()


def test_exist_ok_takes_no_other_array(name: str) -> None:
    array = ndshm.create(name, (2, 3), "f4", exist_ok=True)
    array[:] = 5
    assert (ndshm.create(name, (2, 3), "f4", exist_ok=True)[...] == 5).all()
    for shape, dtype, order in (((3, 2), "f4", "C"), ((2, 3), "i4", "C"), ((2, 3), "f4", "F"), ((2, 4), "f4", "C")):
        with pytest.raises(ndshm.Mismatch):
            ndshm.create(name, shape, dtype, order, exist_ok=True)
    with pytest.raises(ndshm.InvalidArgument, match="exist_ok"):
        ndshm.create(name, (2, 3), "f4", replace=True, exist_ok=True)
    with pytest.raises(ndshm.AlreadyExists, match="replace"):
        ndshm.create(name, (2, 3), "f4")
    assert (array[...] == 5).all()
