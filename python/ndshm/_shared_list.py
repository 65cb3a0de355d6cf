"""`SharedList`: a list that processes share without copies."""

from __future__ import annotations

import array
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, SupportsIndex, TypeVar, overload

from ._array import Array
from ._imports import importing
from ._share import share_zeros

_T_co = TypeVar("_T_co", covariant=True)

# The shared array has, as 64-bit numbers, the places in its content at which the items begin, and at last the end of the content. Then the
# content follows: the pickles of the items.
# How many bytes are copied at once.
_PIECE: Final = 1 << 20
_PLACE: Final = "Q"
_WIDTH = 8


class SharedList(Sequence[_T_co]):
    """A read-only list in shared memory, for the workers of a DataLoader or a Pool.

    A worker that reads an ordinary list changes the reference counts of its items, and so gets a copy of its memory. Here each item is
    stored as a pickle, once for all processes. ``x[i]`` loads the item, and gives a new object each time.

    Sent to another process, the list is a handle of about 300 bytes to the same memory, as an array from `share` is. The last process that
    has the list frees it.

    Parameters
    ----------
    items
        Objects that can be pickled, such as ``bytes``, paths or dictionaries. An ndshm array among them can be loaded only as long as its
        own pickle is good: see `in_flight`.

    Raises
    ------
    NoSpace
        There is not enough memory. Nothing was created.

    Examples
    --------
    >>> import ndshm
    >>> samples = ndshm.SharedList([{"path": "a.png", "label": 3}, {"path": "b.png", "label": 5}])
    >>> samples[-1]["label"]
    5
    >>> len(samples)
    2
    """

    __slots__ = ("__weakref__", "_array", "_content", "_loads", "_places")

    def __init__(self, items: Iterable[_T_co]) -> None:
        with importing("pickle"):
            import pickle

        content, places = bytearray(), array.array(_PLACE, [0])
        for item in items:
            try:
                content += pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                error.add_note(f"This is item {len(places) - 1} of the SharedList.")
                raise
            places.append(len(content))
        shared = share_zeros(_WIDTH * len(places) + len(content), "|u1")
        with memoryview(shared) as whole:
            whole[: _WIDTH * len(places)] = memoryview(places).cast("B")
            at = _WIDTH * len(places)
            # A slice is copied with the interpreter locked, so slices are small: other threads run between them.
            for start in range(0, len(content), _PIECE):
                piece = content[start : start + _PIECE]
                whole[at + start : at + start + len(piece)] = piece
        shared.freeze()
        self._attach(shared, len(places))

    def _attach(self, shared: Array, places: int) -> None:
        with importing("pickle"):
            from pickle import loads  # `import ndshm` does not load it

        self._loads = loads
        whole = memoryview(shared)
        self._array = shared
        self._places = whole[: _WIDTH * places].cast(_PLACE)
        self._content = whole[_WIDTH * places :]

    @property
    def nbytes(self) -> int:
        """How much shared memory the list needs, in bytes."""
        return self._array.nbytes

    def __len__(self) -> int:
        return len(self._places) - 1

    @overload
    def __getitem__(self, index: SupportsIndex) -> _T_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T_co]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> _T_co | list[_T_co]:
        """Load an item, or an ordinary list of items."""
        if isinstance(index, slice):
            return [self._load(number) for number in range(*index.indices(len(self)))]
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"item {index} of a SharedList of {len(self)} items")
        return self._load(number)

    def _load(self, number: int) -> _T_co:
        item: _T_co = self._loads(self._content[self._places[number] : self._places[number + 1]])
        return item

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (type(self), self._array, len(self._places))

    def __copy__(self) -> SharedList[_T_co]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedList[_T_co]:
        return self

    def __repr__(self) -> str:
        return f"<ndshm.SharedList: {len(self)} items, {self.nbytes} bytes>"


def _receive(cls: type[SharedList[Any]], shared: Array, places: int) -> SharedList[Any]:
    received = cls.__new__(cls)
    received._attach(shared, places)
    return received
