"""Parts of arrays: regions of the same memory, which are sent as such."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import warnings
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm import _views
from test_share import every_array_is_freed

#: The autouse fixture of test_share.py is one of this module too.
__all__ = ["every_array_is_freed"]

METHODS = ["fork", "spawn", "forkserver"]

INDICES: list[Any] = [
    0,
    -1,
    np.s_[:],
    np.s_[...],
    (),
    np.s_[1:3],
    np.s_[..., 1],
    np.s_[2, ..., 1],
    np.s_[:, ::2, ::-1],
    np.s_[::-2, 1:1, 3:],
    np.s_[1, 2, 3],
    np.s_[-3:100, 4::-3],
    np.s_[np.int64(1), :, np.uint8(2)],
    np.s_[3:0:-1, ..., -1:],
]


@pytest.fixture(params=["C", "F"])
def array(request: pytest.FixtureRequest) -> Iterator[ndshm.Array]:
    with ndshm.share(np.asarray(np.arange(4 * 5 * 6, dtype="int32").reshape(4, 5, 6), order=request.param)) as array:
        yield array


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_part_is_the_region_that_numpy_selects(array: ndshm.Array, index: Any) -> None:
    x, part = np.asarray(array), array.part(index)
    expected = x[index]
    assert (part.shape, part.size, part.nbytes) == (expected.shape, expected.size, expected.nbytes)
    assert [stride for stride, length in zip(part.strides, part.shape, strict=True) if length > 1] == [
        stride for stride, length in zip(expected.strides, part.shape, strict=True) if length > 1
    ] or not expected.size
    np.testing.assert_array_equal(np.asarray(part), expected)
    np.testing.assert_array_equal(part[...], expected)
    np.testing.assert_array_equal(np.from_dlpack(part), expected)
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(part))), expected)
    np.testing.assert_array_equal(copy.copy(part), expected)
    if expected.size:
        assert np.shares_memory(np.asarray(part), x)
    whole = x.copy()
    whole[index] = 7
    part[...] = 7
    np.testing.assert_array_equal(x, whole)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_part_of_a_part_is_what_numpy_selects_twice(array: ndshm.Array, index: Any) -> None:
    x = np.asarray(array)
    first = np.s_[::-1, 1:, ::2]
    if isinstance(index, tuple) and index and index[-1] in (1, 2, 3) and not isinstance(index[-1], slice):
        index = (*index[:-1], 0)
    np.testing.assert_array_equal(np.asarray(array.part(first).part(index)), x[first][index])
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(array.part(first).part(index)))), x[first][index])


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (None, ndshm.InvalidArgument),
        ([0, 1], ndshm.InvalidArgument),
        (np.array([0, 1]), ndshm.InvalidArgument),
        (True, ndshm.InvalidArgument),
        (np.True_, ndshm.InvalidArgument),
        (np.zeros((4, 5, 6), bool), ndshm.InvalidArgument),
        (1.0, ndshm.InvalidArgument),
        ("x", ndshm.InvalidArgument),
        (4, IndexError),
        (-5, IndexError),
        (np.s_[0, 0, 0, 0], IndexError),
        (np.s_[..., ...], IndexError),
    ],
    ids=str,
)
def test_what_is_no_region_is_refused(array: ndshm.Array, index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        array.part(index)


def test_parts_are_those_along_an_axis(array: ndshm.Array) -> None:
    x = np.asarray(array)
    for axis in (0, 1, 2, -1):
        parts = list(array.parts(axis))
        assert len(parts) == x.shape[axis]
        for position, part in enumerate(parts):
            np.testing.assert_array_equal(np.asarray(part), np.take(x, position, axis))
    for wrong in (3, -4):
        with pytest.raises(ndshm.InvalidArgument, match="3 axes"):
            array.parts(wrong)


def test_guards_of_parts_are_those_of_the_whole_array(array: ndshm.Array) -> None:
    part, other = array.part(0), array.part(1)
    with part.write() as x:
        assert x.shape == (5, 6)
        x[:] = 0
        for same in (array, other):
            with pytest.raises(ndshm.WouldDeadlock), same.read():
                pass
    assert not x.flags.writeable
    with array.read(), part.read() as x, pytest.raises(ValueError, match="read-only"):
        x[:] = 1


def test_part_keeps_the_memory_and_says_what_it_is() -> None:
    array = ndshm.share(np.zeros((3, 4), "uint8"))
    part = array.part(np.s_[:, 1::2])
    assert repr(part) == "<ndshm.Array part of counted: uint8 (3, 2) strides (4, 2) of (3, 4) order C>"
    assert (part._is_part, array._is_part, part.order, array.part(1).order, array.part(np.s_[:, 0:1]).order) == (True, False, None, "C", None)
    assert part.__dask_tokenize__() != array.part(np.s_[:, 0::2]).__dask_tokenize__()
    assert part.id == array.id
    array.close()
    part[...] = 1
    assert part[...].sum() == 6
    assert "strided" in part._repr_html_()


def test_frozen_array_has_parts_that_cannot_be_written() -> None:
    array = ndshm.share(np.zeros((3, 4), "uint8"))
    part = array.part(1)
    view = np.asarray(part)
    with pytest.raises(ndshm.InUse):
        array.freeze()
    del view
    array.freeze()
    assert part.readonly
    assert not np.asarray(part).flags.writeable
    assert pickle.loads(pickle.dumps(part)).readonly
    with pytest.raises(ndshm.PermissionDenied), part.write():
        pass


@pytest.mark.parametrize("dtype", ["bool", "complex64", "float16"])
def test_part_of_a_named_array_is_sent_by_name(name: str, dtype: str) -> None:
    with ndshm.create(name, (4, 6), dtype, order="F") as array:
        part = pickle.loads(pickle.dumps(array.part(np.s_[1:, ::3])))
        assert (part.shape, part.dtype, part.name) == ((3, 2), np.dtype(dtype), name)
        part[...] = 1
        assert array[...].sum() == 6
        assert part.unlink()


def test_pickle_of_a_region_outside_of_the_array_is_refused(name: str) -> None:
    with ndshm.create(name, (4, 6), "uint8") as array:
        attach, arguments, _ = array.part(0).__reduce__()[1]
        for region in [(0, (25,), (1,)), (-1, (1,), (1,)), (0, (2,), (1 << 62,)), (0, (1, 1), (1,))]:
            with pytest.raises(ndshm.InvalidArgument, match="not inside"):
                ndshm._array._receive_part(attach, arguments, region)


@pytest.mark.parametrize(
    ("offset", "lengths", "strides"),
    [
        (22, [], []),
        (16, [3], [-8]),
        (0, [4, 3], [2, 8]),
        (2, [3, 2], [8, 4]),
        (24, [0, 7], [8, 2]),
        (22, [3, 4], [-8, -2]),
        (0, [1, 2], [1 << 40, 2]),
    ],
)
def test_window_is_taken_if_its_corners_are_inside(offset: int, lengths: list[int], strides: list[int]) -> None:
    part = ndshm.Array(ndshm.share_zeros((3, 4), "uint16")._part_at(offset, lengths, strides))
    assert (part._offset, part.shape, part.strides) == (offset, tuple(lengths), tuple(strides))
    part[...] = 1


@pytest.mark.parametrize(
    ("offset", "lengths", "strides"),
    [
        (24, [], []),
        (8, [3], [8]),
        (0, [2], [-2]),
        (1, [1], [2]),
        (0, [2], [3]),
        (0, [2], []),
        (-2, [0], [2]),
        (26, [0], [2]),
        (0, [2**63], [2]),
        (0, [2**62, 2], [2**63 - 2, 2**63 - 2]),
        (2**63 - 2, [2], [2]),
        # An element that is there twice, and so many that their number overflows.
        (0, [2], [0]),
        (0, [3, 3], [2, 2]),
        (0, [2, 2], [4, 2 * 2]),
        (0, [2**62, 4], [0, 0]),
        (0, [2**62, 2**62], [0, 0]),
        (0, [2**62, 4, 0], [2, 2, 2]),
        (0, [0, 2**62, 4], [2, 2, 2]),
    ],
)
def test_window_that_is_not_inside_or_not_regular_is_refused(offset: int, lengths: list[int], strides: list[int]) -> None:
    array = ndshm.share_zeros((3, 4), "uint16")
    with pytest.raises(ndshm.InvalidArgument, match="not inside"):
        array._part_at(offset, lengths, strides)


@pytest.mark.parametrize("index", [np.s_[:: 1 << 62], np.s_[:: -(1 << 70)], np.s_[3 :: 1 << 62, 4:5:1000]])
def test_step_may_be_longer_than_memory(array: ndshm.Array, index: Any) -> None:
    np.testing.assert_array_equal(array.part(index)[...], array[...][index])


@pytest.mark.parametrize("shape", [(3, 0, 2), (0, 5), (2, 3, 0)])
def test_arrays_without_elements_have_all_their_parts(shape: tuple[int, ...]) -> None:
    array = ndshm.share_zeros(shape, "float64")
    for axis in range(len(shape)):
        parts = list(array.parts(axis))
        assert [part.shape for part in parts] == [shape[:axis] + shape[axis + 1 :]] * shape[axis]
        assert all(np.asarray(pickle.loads(pickle.dumps(part))).size == 0 for part in parts)
    assert array.part(np.s_[::-1, -1:]).size == 0


def fill(part: ndshm.Array) -> None:
    x = np.asarray(part)
    x += 1


def fill_view(x: Any) -> None:
    try:
        x += 1
    except ValueError as error:
        raise RuntimeError(str(error)) from None


@pytest.mark.parametrize("method", METHODS)
def test_workers_paint_the_parts_of_one_array(method: str) -> None:
    with ndshm.share_zeros((20, 8, 3), "int64") as array:
        with multiprocessing.get_context(method).Pool(2) as pool:
            pool.map(fill, array.parts())
            pool.map(fill, array.parts(axis=1))
        assert (array[...] == 2).all()


@pytest.mark.parametrize("is_installed", [False, True])
def test_view_is_sent_as_a_copy_with_one_warning(is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_views, "_is_warned", False)
    # An earlier `uninstall` of this process has ended the watch that began with the first array.
    ndshm.multiprocessing.install() if is_installed else ndshm.multiprocessing.watch_views()
    try:
        with ndshm.share_zeros((20, 1 << 16), "uint8") as array:
            x = np.asarray(array)
            with warnings.catch_warnings(record=True) as caught, multiprocessing.get_context("fork").Pool(2) as pool:
                warnings.simplefilter("always")
                pool.map(fill_view, [x[i] for i in range(20)])
            assert [warning.category for warning in caught] == [ndshm.ViewCopied]
            assert "array.parts()" in str(caught[0].message)
            assert not x.any()
            del x
    finally:
        ndshm.multiprocessing.uninstall()
        getattr(ForkingPickler, "_extra_reducers").pop(np.ndarray, None)


@pytest.mark.parametrize("method", METHODS)
def test_views_are_sent_as_parts_if_installed_so(method: str) -> None:
    ndshm.multiprocessing.install(views=True)
    try:
        with ndshm.share_zeros((20, 3), "uint8") as array:
            x = np.asarray(array)
            with warnings.catch_warnings(), multiprocessing.get_context(method).Pool(2) as pool:
                warnings.simplefilter("error")
                pool.map(fill_view, [x[i] for i in range(20)])
                pool.map(fill_view, [x.T[i, ::-1] for i in range(3)])
            assert (x == 2).all()
            del x
    finally:
        ndshm.multiprocessing.uninstall()


def sent(x: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(x))


@pytest.mark.filterwarnings("ignore::ndshm.ViewCopied")
def test_views_that_are_no_parts_stay_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    ndshm.multiprocessing.install(views=True)
    try:
        with ndshm.share(np.arange(24, dtype="int32").reshape(4, 6)) as array:
            x = np.asarray(array)
            assert np.shares_memory(x, x) and _views.find(x) is not None
            overlapping = np.lib.stride_tricks.as_strided(x, (3, 3), (4, 4))
            for view in (x.view("float32"), overlapping, np.broadcast_to(x[0], (2, 6)), x + 1):
                assert _views.find(view) is None
                np.testing.assert_array_equal(sent(view), view)
            with array.read() as view:
                assert _views.find(view[1]) is None
                np.testing.assert_array_equal(sent(view[1]), x[1])
            x.flags.writeable = False
            received = sent(x[1:])
            assert not received.flags.writeable
            np.testing.assert_array_equal(received, x[1:])
            del received, view, x, overlapping
    finally:
        ndshm.multiprocessing.uninstall()


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda x, array: x.view("float32"),
        lambda x, array: np.lib.stride_tricks.as_strided(x, (3, 3), (4, 4)),
        lambda x, array: np.lib.stride_tricks.sliding_window_view(x[0], 3, writeable=True),
        lambda x, array: np.asarray(memoryview(array)[2:]),
        lambda x, array: np.ndarray((3, 2), "int32", buffer=array, offset=4),
        lambda x, array: np.ndarray((4, 6), "float32", buffer=array)[1:],
        lambda x, array: np.frombuffer(array, "int32"),
    ],
)
def test_view_that_is_copied_is_told_whatever_it_is(make: Any, views: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ndshm.multiprocessing.install(threshold=1, views=views)
    monkeypatch.setattr(_views, "_is_warned", False)
    try:
        array = ndshm.share(np.arange(24, dtype="int32").reshape(4, 6))
        view = make(np.asarray(array), array)
        with pytest.warns(ndshm.ViewCopied, match="as a copy, as it is no regular region of the array: what" if views else "as a copy: what"):
            received = sent(view)
        received[...] = 77
        assert not (array[...] == 77).any()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sent(view)  # told once
        monkeypatch.setattr(_views, "_is_warned", False)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sent(np.asarray(array)[:0])  # there is nothing to write
        del view, received
    finally:
        ndshm.multiprocessing.uninstall()


@pytest.mark.parametrize("make", [lambda x: x.reshape(-1)[3:9], lambda x: np.asarray(memoryview(x[1:])), lambda x: x[None, :, 2].T])
def test_views_of_views_are_sent_as_parts(make: Any) -> None:
    ndshm.multiprocessing.install(views=True)
    try:
        array = ndshm.share(np.arange(24, dtype="int32").reshape(4, 6))
        view = make(np.asarray(array))
        received = sent(view)
        np.testing.assert_array_equal(received, view)
        received[...] = 77
        assert (view == 77).all() and (array[...] == 77).sum() == view.size
        del view, received
    finally:
        ndshm.multiprocessing.uninstall()


def test_reducer_of_another_library_between_ours_is_no_loop() -> None:
    reducers = getattr(ForkingPickler, "_extra_reducers")
    ndshm.multiprocessing.uninstall()
    ndshm.multiprocessing.watch_views()
    watching, calls = reducers[np.ndarray], []

    def theirs(x: Any) -> Any:
        calls.append(x.shape)
        return watching(x)

    ForkingPickler.register(np.ndarray, theirs)
    try:
        ndshm.multiprocessing.install()
        np.testing.assert_array_equal(sent(np.arange(5)), np.arange(5))
        assert calls == [(5,)]
        ndshm.multiprocessing.uninstall()
        assert reducers[np.ndarray] is theirs
    finally:
        reducers.pop(np.ndarray, None)


def test_uninstall_ends_the_warning_where_nothing_was_installed() -> None:
    ndshm.multiprocessing.watch_views()
    ndshm.multiprocessing.uninstall()
    assert np.ndarray not in getattr(ForkingPickler, "_extra_reducers")


def test_upload_takes_parts(tmp_path: Any) -> None:
    x = np.arange(8 * 6 * 4, dtype="uint16").reshape(8, 6, 4)
    with ndshm.share(x) as array:
        volume = ndshm.create_volume(tmp_path / "v", (4, 6, 2), (4, 4, 2), "uint16")
        ndshm.upload(volume, array.part(np.s_[::2, :, 1:3])).result()
        np.testing.assert_array_equal(ndshm.download(volume).result()[...], x[::2, :, 1:3])
        with pytest.raises(BufferError, match="not positive"):
            ndshm.upload(volume, array.part(np.s_[::-2, :, 1:3])).result()


def test_field_of_a_record_array_is_pickled_as_before() -> None:
    with ndshm.share_zeros(2, "u1"):
        ndshm.multiprocessing.watch_views()
        try:
            records = np.rec.fromarrays([np.arange(3), np.arange(3)], names="obj,base")
            for field in (records["obj"], records["base"]):
                assert _views.find(field) is None
                np.testing.assert_array_equal(sent(np.asarray(field)), np.arange(3))
        finally:
            getattr(ForkingPickler, "_extra_reducers").pop(np.ndarray, None)


def test_view_of_an_array_that_lost_its_name_is_copied(name: str) -> None:
    ndshm.multiprocessing.install(views=True)
    try:
        x = np.asarray(ndshm.from_array(name, np.arange(4)))
        ndshm.unlink(name)
        for _ in range(2):
            with pytest.warns(ndshm.ViewCopied):
                np.testing.assert_array_equal(sent(x[1:]), [1, 2, 3])
            ndshm.from_array(name, np.full(4, 99), replace=True)
    finally:
        ndshm.multiprocessing.uninstall()


def test_parts_of_a_frozen_array_share_its_mapping() -> None:
    array = ndshm.share(np.zeros((50, 4), "u1"))
    array.freeze()
    x = np.asarray(array)
    views = [np.asarray(part) for part in array.parts()]
    assert all(np.shares_memory(view, x) for view in views)
    assert array.refcount == 1


def test_volume_like_a_part_has_its_shape(tmp_path: Any) -> None:
    with ndshm.share_zeros((8, 4), "u1") as array:
        volume = ndshm.create_volume(tmp_path / "v", chunk=(2, 2), like=array.part(np.s_[:4]))
        assert ndshm.info(volume).scales[0].shape == (4, 4)
