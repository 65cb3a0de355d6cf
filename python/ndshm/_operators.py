"""What an array has of numpy's: operators, universal functions and the most common methods.

No operation holds two locks, so that `left += right` in one process and `right += left` in another cannot wait for each other: every array
but the one that is written to is copied first, under a lock of its own. Results are numpy arrays.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from ._dtypes import refuse_mask
from ._errors import InvalidArgument
from ._guard import require_numpy

if TYPE_CHECKING:
    from ._core import RawArray as _Base
    from ._guard import Guard
else:
    _Base = object

_Method = Callable[..., Any]

# What libraries look for and do not get.
_ADVICE = {
    # dask copies all that has a method `copy`, and would never see what is written later.
    "copy": ": array[...] copies the elements",
    # It is a bare address, which would not keep the memory when the array is closed. pillow needs it.
    "__array_interface__": ": numpy.asarray(array) is the same memory, without a lock; array[...] is a copy",
}

_BINARY = "add sub mul truediv floordiv mod pow matmul lshift rshift and or xor"
_COMPARISONS = "lt le eq ne gt ge"
_UNARY = "neg pos invert abs"


def _missing(array: Any, name: str) -> Any:
    advice = _ADVICE.get(name, "")
    numpy = sys.modules.get("numpy")
    if not advice and not name.startswith("__") and numpy is not None and hasattr(numpy.ndarray, name):
        advice = f": numpy's is x.{name} inside of `with array.read() as x:`, or array[...].{name} of a copy"
    raise AttributeError(f"{type(array).__name__!r} object has no attribute {name!r}{advice}")


class Operators(_Base):
    """The operators of `Array`. A class of its own, so that the functions below know an array without its module."""

    __slots__ = ()

    if TYPE_CHECKING:
        @property
        def dtype(self) -> Any: ...
        def read(self, timeout: float | None = None) -> Guard: ...
        def write(self, timeout: float | None = None) -> Guard: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __floordiv__(self, other: Any) -> Any: ...
        def __rfloordiv__(self, other: Any) -> Any: ...
        def __mod__(self, other: Any) -> Any: ...
        def __rmod__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __rpow__(self, other: Any) -> Any: ...
        def __matmul__(self, other: Any) -> Any: ...
        def __rmatmul__(self, other: Any) -> Any: ...
        def __lshift__(self, other: Any) -> Any: ...
        def __rlshift__(self, other: Any) -> Any: ...
        def __rshift__(self, other: Any) -> Any: ...
        def __rrshift__(self, other: Any) -> Any: ...
        def __and__(self, other: Any) -> Any: ...
        def __rand__(self, other: Any) -> Any: ...
        def __or__(self, other: Any) -> Any: ...
        def __ror__(self, other: Any) -> Any: ...
        def __xor__(self, other: Any) -> Any: ...
        def __rxor__(self, other: Any) -> Any: ...
        def __iadd__(self, other: Any) -> Self: ...
        def __isub__(self, other: Any) -> Self: ...
        def __imul__(self, other: Any) -> Self: ...
        def __itruediv__(self, other: Any) -> Self: ...
        def __ifloordiv__(self, other: Any) -> Self: ...
        def __imod__(self, other: Any) -> Self: ...
        def __ipow__(self, other: Any) -> Self: ...
        def __imatmul__(self, other: Any) -> Self: ...
        def __ilshift__(self, other: Any) -> Self: ...
        def __irshift__(self, other: Any) -> Self: ...
        def __iand__(self, other: Any) -> Self: ...
        def __ior__(self, other: Any) -> Self: ...
        def __ixor__(self, other: Any) -> Self: ...
        def __eq__(self, other: object) -> Any: ...
        def __ne__(self, other: object) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...
        def __le__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __ge__(self, other: Any) -> Any: ...
        def __neg__(self) -> Any: ...
        def __pos__(self) -> Any: ...
        def __invert__(self) -> Any: ...
        def __abs__(self) -> Any: ...
        def __divmod__(self, other: Any) -> Any: ...
        def __rdivmod__(self, other: Any) -> Any: ...

    # Arrays are keys of dictionaries and members of sets, as torch's tensors are: equality of elements has nothing to do with that.
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """Return the truth of the only element. Other arrays raise, as numpy's do."""
        if self.size != 1:
            count = "more than one element" if self.size else "no elements"
            raise ValueError(f"the truth value of an array with {count} is ambiguous: use a.any(), a.all() or a.size")
        return bool(_copy(self).item())

    def __contains__(self, element: Any) -> bool:
        """Return whether an element is equal to this, as numpy does."""
        return bool(require_numpy("comparing an array").any(self == element))

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **how: Any) -> Any:
        """Apply a universal function of numpy, such as ``numpy.add(a, 1)`` or ``numpy.add(a, 1, out=a)``."""
        outputs = how.pop("out", ())
        written = [inputs[0]] if method == "at" else outputs
        targets = [output for output in written if isinstance(output, Operators)]
        if any(target is not targets[0] for target in targets):
            raise InvalidArgument("out= names several shared arrays: give one of them, because no operation holds two locks")
        target = targets[0] if targets else None
        values = [value if value is target else _copy(value) for value in inputs]
        how = {key: _copy(value) for key, value in how.items()}
        apply = getattr(function, method)
        if target is None:
            return apply(*values, **how, **({"out": outputs} if outputs else {}))
        _refuse_bits(target)
        with target.write() as x:
            out = {"out": tuple(x if output is target else output for output in outputs)} if outputs else {}
            results: Any = apply(*(x if value is target else value for value in values), **how, **out)
            several: list[Any] = [results] if function.nout == 1 or method != "__call__" else list(results)
            given = tuple(target if result is x else result for result in several)
            del out, results, several  # no view may outlive the lock
        return given[0] if len(given) == 1 else given

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, **how: Any) -> Any:
        """As ``numpy.ndarray.sum``, under a lock for reading."""
        return _reduced(self, "sum", out, axis=axis, dtype=dtype, **how)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, **how: Any) -> Any:
        """As ``numpy.ndarray.mean``, under a lock for reading."""
        return _reduced(self, "mean", out, axis=axis, dtype=dtype, **how)

    def min(self, axis: Any = None, out: Any = None, **how: Any) -> Any:
        """As ``numpy.ndarray.min``, under a lock for reading."""
        return _reduced(self, "min", out, axis=axis, **how)

    def max(self, axis: Any = None, out: Any = None, **how: Any) -> Any:
        """As ``numpy.ndarray.max``, under a lock for reading."""
        return _reduced(self, "max", out, axis=axis, **how)

    def any(self, axis: Any = None, out: Any = None, **how: Any) -> Any:
        """As ``numpy.ndarray.any``, under a lock for reading."""
        return _reduced(self, "any", out, axis=axis, **how)

    def all(self, axis: Any = None, out: Any = None, **how: Any) -> Any:
        """As ``numpy.ndarray.all``, under a lock for reading."""
        return _reduced(self, "all", out, axis=axis, **how)

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True) -> Any:
        """Return a copy of the elements as another type, in a numpy array. It is a copy also with ``copy=False``."""
        _refuse_bits(self)
        view: Any
        with self.read() as view:
            return require_numpy("converting an array").array(view.astype(dtype, order, casting, subok, True))

    if not TYPE_CHECKING:  # otherwise type checkers would accept every name
        __getattr__ = _missing

    def tolist(self) -> Any:
        """Return the elements in nested lists."""
        return _whole_copy(self).tolist()

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return a copy of the elements in another shape. It is read-only, because nothing that is written to it would be in the array.

        To write: ``with a.write() as x: x.reshape(..)[:] = 1``.
        """
        return _read_only(_whole_copy(self).reshape(*shape, order=order))

    @property
    def T(self) -> Any:
        """A copy of the elements with the axes reversed. It is read-only, because nothing that is written to it would be in the array.

        To write: ``with a.write() as x: x.T[:] = 1``.
        """
        return _read_only(_whole_copy(self).T)


def _whole_copy(array: Operators) -> Any:
    return require_numpy("copying an array").array(array[...])  # one element is no array


def _read_only(x: Any) -> Any:
    x.flags.writeable = False
    return x


def _refuse_bits(array: Operators) -> None:
    if array._dtype_code == "bfloat16" and array.dtype.name != "bfloat16":
        raise InvalidArgument("bfloat16 elements are only bits to numpy here: install ml_dtypes to compute with them")


def _copy(value: Any) -> Any:
    """Return a copy of an array's elements, under a lock for the copy alone. Other values are returned as they are."""
    if not isinstance(value, Operators):
        return value
    _refuse_bits(value)
    return value[...]


def _reduced(array: Operators, method: str, out: Any, **how: Any) -> Any:
    how = {key: _copy(value) for key, value in how.items()}
    _refuse_bits(array)
    with array.read() as x:
        # Along an axis of length 1, for example, numpy may return a view.
        result = require_numpy("computing with an array").array(getattr(x, method)(**how))
    if out is not None:
        out[...] = result
        return out
    return result if result.ndim else result[()]


def _computed(act: _Method, array: Operators, other: Any, is_left: bool) -> Any:
    other = _copy(other)
    numpy = require_numpy("computing with an array")
    # Other types may keep what they are given.
    if type(other) in (numpy.ndarray, bool, int, float, complex) or isinstance(other, numpy.generic):
        _refuse_bits(array)
        with array.read() as x:
            return act(x, other) if is_left else act(other, x)
    elements = _copy(array)
    return act(elements, other) if is_left else act(other, elements)


def _binary(act: _Method, is_left: bool = True) -> _Method:
    def method(self: Operators, other: Any) -> Any:
        return _computed(act, self, other, is_left)

    return method


def _unary(act: _Method) -> _Method:
    def method(self: Operators) -> Any:
        _refuse_bits(self)
        with self.read() as x:
            return act(x)

    return method


def _in_place(act: _Method) -> _Method:
    def method(self: Operators, other: Any) -> Operators:
        refuse_mask(other)
        other = self if other is self else _copy(other)
        require_numpy("computing with an array")
        _refuse_bits(self)
        with self.write() as x:
            if act(x, x if other is self else other) is not x:
                raise TypeError(f"a {type(other).__name__} cannot be the right side of an assignment to an array: convert it to a numpy array")
        return self

    return method


def _complete() -> None:
    def define(name: str, method: _Method) -> None:
        method.__name__, method.__qualname__ = name, f"Operators.{name}"
        setattr(Operators, name, method)

    for name in _BINARY.split():
        act = getattr(operator, f"__{name}__")
        define(f"__{name}__", _binary(act))
        define(f"__r{name}__", _binary(act, is_left=False))
        define(f"__i{name}__", _in_place(getattr(operator, f"__i{name}__")))
    for name in _COMPARISONS.split():
        define(f"__{name}__", _binary(getattr(operator, f"__{name}__")))
    for name in _UNARY.split():
        define(f"__{name}__", _unary(getattr(operator, f"__{name}__")))
    define("__divmod__", _binary(divmod))
    define("__rdivmod__", _binary(divmod, is_left=False))


_complete()
