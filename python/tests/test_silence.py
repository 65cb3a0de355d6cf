"""Where an array was silently taken for something else: it is refused with advice, or right."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

import ndshm


def outcome(program: str, *arguments: str) -> tuple[int, str, str]:
    """Run a program in a process of its own. Return how it ended, and what it printed."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("convert", [int, float, round, complex])
def test_array_is_no_number(convert: Any) -> None:
    with pytest.raises(TypeError):
        convert(ndshm.share(np.array([49], "u1")))


def test_error_of_a_conversion_says_what_to_do() -> None:
    for convert in (int, float):
        with pytest.raises(TypeError, match=rf"{convert.__name__}\(array\[index\]\)"):
            convert(ndshm.share(np.array([49], "u1")))


def test_array_without_axes_is_a_number() -> None:
    array = ndshm.share(np.array(3.75))
    assert (float(array), int(array)) == (3.75, 3)


def test_names_of_numpy_that_arrays_lack_come_with_advice() -> None:
    array = ndshm.share(np.arange(3))
    for name, advice in (("std", "x.std inside"), ("argmax", "array[...].argmax of a copy"), ("copy", "array[...] copies")):
        with pytest.raises(AttributeError, match=re.escape(advice)):
            getattr(array, name)
    with pytest.raises(AttributeError, match="'nonsense'$"):
        getattr(array, "nonsense")  # noqa: B009


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "bool"])
def test_elements_have_numpys_own_types(dtype: str) -> None:
    array = ndshm.share(np.ones(2, dtype))
    with array.read() as x:
        assert x.dtype.type is type(array[0]) is array[...].dtype.type is np.asarray(array).dtype.type is np.dtype(dtype).type


def test_array_with_a_mask_is_refused(name: str) -> None:
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    with ndshm.share_zeros(2, "f8") as array:
        for take in (ndshm.share, lambda x: ndshm.from_array(name, x), lambda x: array.__setitem__(slice(None), x)):
            with pytest.raises(ndshm.InvalidArgument, match="filled"):
                take(masked)
        assert (array[...] == 0).all()
    assert (ndshm.share(masked.filled(7))[...] == [7, 2]).all()


def test_upload_of_an_array_with_a_mask_is_refused(tmp_path: Any) -> None:
    volume = ndshm.create_volume(str(tmp_path / "v.zarr"), (2,), (2,), "f8")
    with pytest.raises(ndshm.InvalidArgument, match="filled"):
        ndshm.upload(volume, np.ma.masked_array([1.0, 2.0], [True, False]))


def test_pandas_takes_the_elements() -> None:
    pandas = pytest.importorskip("pandas")
    array = ndshm.share(np.arange(3))
    assert pandas.Series(array).tolist() == [0, 1, 2]
    assert pandas.DataFrame({"a": array}).a.tolist() == [0, 1, 2]
    assert pandas.DataFrame(ndshm.share(np.arange(6).reshape(2, 3))).to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_iteration_gives_copies_of_the_rows() -> None:
    array = ndshm.share(np.arange(6).reshape(2, 3))
    rows = list(array)
    array[:] = 0
    assert [row.tolist() for row in rows] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(TypeError, match="axes"):
        iter(ndshm.share(np.array(1)))


def test_guard_is_entered_by_one_thread_at_a_time() -> None:
    array = ndshm.share_zeros(3, "u1")
    guard, entered, leave = array.read(), [], threading.Event()
    start = threading.Barrier(2)
    refused = threading.Semaphore(0)

    def enter() -> None:
        start.wait()
        try:
            with guard as x:
                entered.append(x.sum())
                leave.wait()
        except RuntimeError:
            refused.release()

    # While the array is locked for writing, both threads come to the point at which they wait for the lock.
    with array.write():
        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        refused.acquire()
    while not entered:
        threading.Event().wait(0.001)
    with pytest.raises(ndshm.WouldBlock):
        array.write(timeout=0).__enter__()
    leave.set()
    for thread in threads:
        thread.join()
    assert len(entered) == 1
    with guard, array.read():
        pass
    with array.write(timeout=0):
        pass


def test_claim_is_entered_by_one_thread(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 4, "u1")
    claim = buffer.claim()
    assert claim is not None
    with claim as x:
        with pytest.raises(RuntimeError, match="in use"):
            claim.__enter__()
        x[:] = 1
    with pytest.raises(ValueError, match="has ended"):
        claim.__enter__()
    assert buffer.progress == (1, 1)
    buffer.finish()


def test_forked_child_cannot_use_the_claim_of_its_parent(name: str) -> None:
    buffer = ndshm.RenderBuffer(name, 4, 2, "u1")
    claim = buffer.claim()
    assert claim is not None
    child = os.fork()
    if child == 0:
        try:
            with claim as x:
                x[:] = 9
        except ndshm.NdshmError as error:
            os._exit(0 if "claim after fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert buffer.progress == (0, 2)
    with claim as x:
        assert (x == 0).all()
        x[:] = 1
    for other in buffer.claims():
        with other as x:
            x[:] = 1
    assert (buffer.finish()[...] == 1).all()


@pytest.mark.parametrize("export", [np.asarray, memoryview, np.from_dlpack])
@pytest.mark.parametrize("strategy", sorted(ndshm.get_all_sharing_strategies()))
def test_array_with_views_that_can_write_is_not_frozen(export: Any, strategy: str) -> None:
    array = ndshm.share_zeros(3, "u1", strategy=strategy)
    x = export(array)
    with pytest.raises(ndshm.InUse, match="1 view"):
        array.freeze()
    assert not array.readonly
    array[0] = 1
    del x
    array.freeze()
    y = export(array)
    assert y[0] == 1
    array.freeze()  # changes nothing


def test_view_of_an_ended_guard_that_can_write_keeps_the_array_from_being_frozen() -> None:
    array = ndshm.share_zeros(3, "u1")
    with pytest.warns(ndshm.ViewOutlivesGuard):
        with array.write() as x:
            part = x[1:]
    with pytest.raises(ndshm.InUse):
        array.freeze()
    del part, x
    array.freeze()


def test_views_that_cannot_write_do_not_keep_an_array_from_being_frozen() -> None:
    array = ndshm.share_zeros(3, "u1")
    with pytest.warns(ndshm.ViewOutlivesGuard):
        with array.read() as x:
            part = x[1:]
    with array.write() as y:
        y[:] = 1
    array.freeze()  # although `y` is still a variable
    assert part.sum() == 2 and y.sum() == 3 and not y.flags.writeable


def test_address_from_before_the_freeze_cannot_write() -> None:
    program = """
        import numpy, ndshm
        array = ndshm.share_zeros(5000, "u1")
        x = numpy.ndarray(5000, "u1", buffer=array)  # keeps no buffer, so it is not counted
        x[:] = 1
        array.freeze()
        assert x.sum() == 5000 and array[0] == 1 and array.refcount
        print("frozen", flush=True)
        x[{index}] = 2
        print("written")
    """
    for index in (0, -1):
        code, printed, complaint = outcome(program.format(index=index))
        assert (code, printed) == (-signal.SIGSEGV, "frozen\n"), complaint


def without_ml_dtypes(program: str) -> str:
    code, printed, complaint = outcome("import sys\nsys.modules['ml_dtypes'] = None\n" + textwrap.dedent(program))
    assert code == 0, complaint
    return printed


def test_bfloat16_is_the_type_of_ml_dtypes(name: str) -> None:
    import ml_dtypes

    array = ndshm.create(name, 3, "bfloat16")
    array[:] = 1.5
    with array.write() as x:
        assert x.dtype == ml_dtypes.bfloat16
        x[1] = 2
    assert array.dtype == ml_dtypes.bfloat16 and array[...].tolist() == [1.5, 2, 1.5]
    assert np.asarray(array).view(ml_dtypes.bfloat16).tolist() == [1.5, 2, 1.5]
    other = ndshm.share_zeros(3, "bfloat16")
    other[:] = array
    assert other[...].tolist() == [1.5, 2, 1.5]
    chunks = ndshm.RenderBuffer(name + "-chunks", (2, 2), (2, 1), "bfloat16", "C")
    for claim in chunks.claims():
        with claim as x:
            x[:] = 0.5
    painted = chunks.finish()
    assert (painted[...] == 0.5).all() and painted.unlink()


def test_bfloat16_without_ml_dtypes_refuses_numbers() -> None:
    program = """
        import numpy, ndshm
        array = ndshm.share_zeros(2, "bfloat16")
        for value in (1.0, 1, numpy.ones(2), numpy.ones(2, "u1"), [0.5, 1]):
            try:
                array[:] = value
            except ndshm.InvalidArgument as error:
                assert "ml_dtypes" in str(error)
            else:
                raise AssertionError(value)
        array[:] = numpy.array([0x3F80, 0x4000], "u2")
        print(array.dtype, array[...].tolist())
    """
    assert without_ml_dtypes(program) == "uint16 [16256, 16384]\n"
