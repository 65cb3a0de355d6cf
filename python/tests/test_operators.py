"""Operators, universal functions and methods of arrays: numpy's results, one lock at a time, and no view that outlives it."""

from __future__ import annotations

import multiprocessing
import operator
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from watched import Watched, watched

pytestmark = pytest.mark.filterwarnings("error::ndshm.ViewOutlivesGuard")

KINDS = ["plain", "counted", "frozen", "read-only", "part", "F order", "0-d", "empty"]
DTYPES = ["bool", "uint8", "int32", "float32", "complex64"]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow, divmod]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
COMPARISONS = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod, operator.ixor, operator.ilshift, operator.ipow]


def made(kind: str, dtype: str, name: str) -> tuple[ndshm.Array, Any]:
    """Return an array of this kind, and the same elements in a numpy array."""
    x = np.arange(1, 13).reshape(3, 4).astype(dtype)
    if kind in ("plain", "read-only", "F order"):
        x = np.asfortranarray(x) if kind == "F order" else x
        array = ndshm.from_array(name, x)
        return (ndshm.open(name, readonly=True) if kind == "read-only" else array), x
    if kind == "part":
        return ndshm.share(x).part(np.s_[1:, ::2]), x[1:, ::2].copy()
    x = {"0-d": x[1, 1], "empty": x[:0]}.get(kind, x)
    array = ndshm.share(x)
    if kind == "frozen":
        array.freeze()
    return array, np.array(x)


def outcome(act: Any) -> Any:
    """Return what a call gives, or the class of its error."""
    try:
        with np.errstate(all="ignore"):
            return act()
    except Exception as error:
        return type(error)


def assert_same(found: Any, wanted: Any, what: str = "") -> None:
    if isinstance(wanted, type):
        assert found is wanted, what
        return
    for one, other in zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]:
        assert type(one) is type(other) and one.dtype == other.dtype, what
        np.testing.assert_array_equal(one, other, err_msg=what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_results_are_those_of_numpy(name: str, kind: str, dtype: str) -> None:
    a, x = made(kind, dtype, name)
    one = x.dtype.type(1)
    for act in ARITHMETIC + BITS + COMPARISONS:
        what = f"{act.__name__} of {kind} {dtype}"
        for other in (2, one, x):
            assert_same(outcome(lambda: act(a, other)), outcome(lambda: act(x, other)), what)
            assert_same(outcome(lambda: act(other, a)), outcome(lambda: act(other, x)), what)
        assert_same(outcome(lambda: act(a, a)), outcome(lambda: act(x, x)), what)
    for act in (operator.neg, operator.pos, operator.invert, operator.abs):
        assert_same(outcome(lambda: act(a)), outcome(lambda: act(x)), act.__name__)
    for method in ("sum", "mean", "min", "max", "any", "all"):
        assert_same(outcome(lambda: getattr(a, method)()), outcome(lambda: getattr(x, method)()), method)
        function = getattr(np, method)
        assert_same(outcome(lambda: function(a)), outcome(lambda: function(x)), method)
        if x.ndim:
            assert_same(outcome(lambda: function(a, axis=0)), outcome(lambda: function(x, axis=0)), method)
    assert a.tolist() == x.tolist() and (1 in a) == (1 in x)
    assert outcome(lambda: bool(a)) == (outcome(lambda: bool(x)) if x.size else ValueError)
    for copy in (a.T, a.reshape(-1), np.reshape(a, -1)):
        assert not copy.flags.writeable
    assert_same(a.T, x.T)
    assert_same(a.reshape(x.size, 1), x.reshape(x.size, 1))
    assert_same(a.astype("complex128"), x.astype("complex128"))
    assert_same(a[...], x if x.ndim else x[()])
    with pytest.raises(AttributeError, match=r"array\[...\] copies"):  # dask would copy what has this method
        a.copy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_assignments_change_the_memory_or_nothing(name: str, kind: str, dtype: str) -> None:
    for act in IN_PLACE:
        for other in (1, "itself", "another"):
            a, x = made(kind, dtype, name)
            before, value = x.copy(), {"itself": x, "another": x.copy()}.get(str(other), other)
            shared = {"itself": a, "another": ndshm.share(x)}.get(str(other), other)
            wanted = outcome(lambda: act(x, value))
            found = outcome(lambda: act(a, shared))
            if kind in ("frozen", "read-only"):
                assert found is ndshm.PermissionDenied
                np.testing.assert_array_equal(a[...], before)
            elif isinstance(wanted, type):
                assert found is wanted, f"{act.__name__} of {kind} {dtype}"
                np.testing.assert_array_equal(a[...], before)
            else:
                assert found is a
                np.testing.assert_array_equal(a[...], x, err_msg=f"{act.__name__} of {kind} {dtype}")
            a.close()
            ndshm.unlink(name)


def test_universal_functions_write_to_one_array_under_its_lock() -> None:
    x = np.arange(6.0).reshape(2, 3)
    a, b = ndshm.share(x), ndshm.share(x)
    assert np.add(a, b, out=a) is a and np.array_equal(a[...], 2 * x)
    assert np.add(a, a, out=a) is a and np.array_equal(a[...], 4 * x)
    plain = np.zeros((2, 3))
    assert np.negative(a, out=plain) is plain and np.array_equal(plain, -4 * x)
    np.add.at(a, (0, 0), 100)
    assert a[0, 0] == 100
    assert np.array_equal(np.add.reduce(b), x.sum(0)) and np.array_equal(np.multiply.outer(b, b), np.multiply.outer(x, x))
    np.negative(b, out=b, where=ndshm.share(x > 2))
    assert np.array_equal(b[...], np.where(x > 2, -x, x))
    whole, rest = np.divmod(x, 2, out=(a, plain))
    assert whole is a and rest is plain and np.array_equal(a[...], x // 2)
    with pytest.raises(ndshm.InvalidArgument, match="no operation holds two locks"):
        np.divmod(x, 2, out=(a, b))
    target = ndshm.share_zeros(3, "float64")
    assert b.sum(axis=0, out=target) is target and np.array_equal(target[...], b[...].sum(0))


def test_own_guard_is_told_from_a_lock_to_wait_for() -> None:
    a = ndshm.share(np.ones(4))
    with a.write() as x:
        for act in (lambda: a + 1, lambda: operator.iadd(x, a), lambda: operator.iadd(a, 1), lambda: np.add(x, a), a.sum, lambda: a == x):
            with pytest.raises(ndshm.WouldDeadlock):
                act()
        x += 1
    with a.read() as x:
        assert (x == a).all() and (a + x).sum() == 16
        with pytest.raises(ndshm.WouldDeadlock):
            a += 1
    assert a.sum() == 8


def test_arrays_are_keys_and_members_by_identity() -> None:
    a, b = ndshm.share([1, 2]), ndshm.share([1, 2])
    assert {a: 1}[a] == 1 and a in {a, b} and len({a, b}) == 2 and [b, a].index(b) == 0 and a in [a, b]
    with pytest.raises(ValueError, match="ambiguous"):
        [b, a].remove(a)  # b == a is compared first, as with numpy's arrays
    both = pickle.loads(pickle.dumps({"a": a, "again": a}))
    assert both["a"] is both["again"] and (both["a"] == a).all() and both["a"] is not a


def test_masks_and_bits_are_refused_where_meaning_would_be_lost() -> None:
    a = ndshm.share([1, 2, 3])
    with pytest.raises(ndshm.InvalidArgument, match="mask"):
        a += np.ma.masked_equal([1, 2, 3], 2)
    assert np.ma.isMaskedArray(a + np.ma.masked_equal([1, 2, 3], 2))
    assert a.tolist() == [1, 2, 3]
    with pytest.raises(TypeError):
        a += "text"
    bits = ndshm.share_zeros(3, "bfloat16")
    if bits.dtype.name == "bfloat16":
        assert (bits + 1).dtype.name == "bfloat16"
        return
    for act in (lambda: bits + 1, lambda: operator.iadd(bits, 1), lambda: np.add(1, bits), bits.sum, lambda: bits == 0, lambda: -bits):
        with pytest.raises(ndshm.InvalidArgument, match="ml_dtypes"):
            act()


def add_often(array: ndshm.Array, times: int) -> None:
    for _ in range(times):
        array += 1


def add_to(left: ndshm.Array, right: ndshm.Array, times: int) -> None:
    for _ in range(times):
        left += right


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_lose_no_addition_and_wait_for_no_circle(method: str) -> None:
    context = multiprocessing.get_context(method)
    array = ndshm.share(np.zeros(512, "int64"))
    left, right = ndshm.share(np.ones(512, "uint64")), ndshm.share(np.ones(512, "uint64"))
    jobs: list[tuple[Any, tuple[Any, ...]]] = [(add_often, (array, 1000))] * 4
    jobs += [(add_to, (left, right, 500)), (add_to, (right, left, 500))]
    processes = [context.Process(target=target, args=arguments) for target, arguments in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0, "it waits for ever"
    assert array.min() == array.max() == 4000
    assert left.min() == left.max() and right.min() == right.max(), "each addition is of a whole array"


# The operations of each line of the guide's table, by the line's first cell. `x` is a numpy array.
LINES: dict[str, list[Callable[[Any, Any, Any], Any]]] = {
    "`a + 1`, `1 + a`, `a < x`, `-a`, `abs(a)`": [
        lambda a, b, x: a + x[0, 0],
        lambda a, b, x: x + a,
        lambda a, b, x: a == x,
        lambda a, b, x: abs(a),
    ],
    "`a + b`, `a == b`, `a @ b`": [lambda a, b, x: a + b, lambda a, b, x: a == b, lambda a, b, x: a @ b],
    "`a += x`, `a += a`": [lambda a, b, x: operator.iadd(a, x), lambda a, b, x: operator.iadd(a, a)],
    "`a += b`": [lambda a, b, x: operator.iadd(a, b)],
    "`numpy.add(a, b)`": [lambda a, b, x: np.add(a, b)],
    "`numpy.add(a, b, out=a)`, `numpy.add.at(a, index, b)`": [
        lambda a, b, x: np.add(a, b, out=a),
        lambda a, b, x: np.add.at(a, np.arange(4), b),
    ],
    "`a.sum()`, `mean`, `min`, `max`, `any`, `all`, `numpy.sum(a)`": [
        lambda a, b, x: a.sum(),
        lambda a, b, x: a.any(axis=0),
        lambda a, b, x: a.all(),
        lambda a, b, x: np.sum(a),
    ],
    "`a.astype(dtype)`, `a.tolist()`, `a[index]`": [
        lambda a, b, x: a.astype(a.dtype),
        lambda a, b, x: a.tolist(),
        lambda a, b, x: a[0],
        lambda a, b, x: a[a.shape[0] - 1, 0],
    ],
    "`a.T`, `a.reshape(shape)`": [lambda a, b, x: a.T, lambda a, b, x: a.reshape(-1)],
    "`a[index] = x`, `a[index] = b`": [lambda a, b, x: a.__setitem__(0, x[1]), lambda a, b, x: a.__setitem__(..., b)],
    "`bool(a)`, `x in a`": [lambda a, b, x: bool(watched(a.part(np.s_[:1, :1]))), lambda a, b, x: x[0, 0] in a],
    "`hash(a)`, keys of dictionaries, members of sets": [lambda a, b, x: hash(a) == hash(a), lambda a, b, x: a in {a: b}],
}


def lines() -> dict[str, list[str]]:
    """Return the other cells of each line of the guide's table."""
    page = (Path(__file__).parents[2] / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*) \|$", page.partition("## Compute with an array")[2].partition("\n## ")[0], re.M)
    return {cells[0]: cells[1:] for cells in (row.split(" | ") for row in rows)}


@pytest.mark.parametrize("dtype", ["float32", "complex64", "bool", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "counted", "F order", "part"])
@pytest.mark.parametrize("line", LINES)
def test_each_line_of_the_guide_says_locks_copies_and_results(line: str, kind: str, dtype: str, name: str) -> None:
    locks, _, gives, *_ = *lines()[line], ""
    for act in LINES[line]:
        x = np.ones((4, 4), ndshm.share_zeros(1, dtype).dtype)
        b = watched(ndshm.share(x))
        if kind == "plain":
            a = watched(ndshm.from_array(name, x, replace=True))
        else:
            whole = ndshm.share(np.asarray(np.ones((4, 8)), x.dtype) if kind == "part" else np.asarray(x, order=kind[0]))
            a = watched(whole.part(np.s_[:, ::2]) if kind == "part" else whole)
        Watched.locks.clear()
        result = act(a, b, x)
        seen = [(way, "b" if array is b else "a") for way, array in Watched.locks]
        plain = seen[0][0] if seen and len(seen) == 1 else ", then ".join(f"{way} of `{which}`" for way, which in seen) or "none"
        is_cast = dtype == "bfloat16" and line.startswith("`a[index] = x`") and len(seen) > 1
        assert plain == ("read of `b`, then write of `a`" if is_cast else locks)
        if gives.startswith("`a`"):
            assert result is a or result is None
        elif isinstance(result, np.ndarray):
            assert not np.may_share_memory(result, np.asarray(a))
            assert result.flags.writeable != ("read-only" in gives)
        assert not isinstance(result, ndshm.Array) or result is a
        a.close()
        b.close()


def test_the_guide_has_no_other_lines() -> None:
    assert list(lines()) == list(LINES)


INTERRUPTED = """
import operator, sys
import numpy, ndshm

array, other = ndshm.open(sys.argv[1]), ndshm.share(numpy.ones(4))
acts = [
    lambda: array + 1, lambda: 1 + array, lambda: other + array, lambda: -array, lambda: array == 1, lambda: array @ other,
    lambda: operator.iadd(array, 1), lambda: operator.iadd(array, array), lambda: operator.iadd(array, other), lambda: operator.iadd(other, array),
    lambda: numpy.add(array, 1), lambda: numpy.add(other, 1, out=array), lambda: numpy.add.at(array, 0, 1), lambda: numpy.add.reduce(array),
    lambda: array.sum(), lambda: array.any(), lambda: array.astype("f4"), lambda: array.tolist(), lambda: array.T, lambda: array.reshape(2, 2),
    lambda: array[0], lambda: array.__setitem__(0, 5), lambda: 1 in array, lambda: list(array),
]
for number, act in enumerate(acts):
    try:
        print(number, flush=True)
        act()
        print("not interrupted", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("ended", flush=True)
sys.stdin.readline()
array += other
print(array.tolist(), other.tolist(), flush=True)
"""


def test_ctrl_c_ends_the_wait_of_each_operation_and_leaves_no_lock(name: str) -> None:
    array = ndshm.from_array(name, np.zeros(4))
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        with array.write():
            while (line := child.stdout.readline().strip()) != "ended":
                assert line.isdigit()
                time.sleep(0.1)  # it waits for the lock by now; if not, the next line says that it was not interrupted
                child.send_signal(signal.SIGINT)
                assert child.stdout.readline() == "interrupted\n", line
        with array.write(timeout=10) as x:
            assert (x == 0).all()
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "[1.0, 1.0, 1.0, 1.0] [1.0, 1.0, 1.0, 1.0]\n"
