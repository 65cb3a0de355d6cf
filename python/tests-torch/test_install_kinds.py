"""Every kind of tensor and storage that torch sends, under its own two strategies and under `ndshm.torch.install`.

The receiver makes the same tensor, and compares what it got with that: the test says nothing that torch's own strategies do not.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy
import pytest
import torch
from travelling import Child, Travel, cdata, fails, give, keep, kept, skips


class Labelled(torch.Tensor):
    """A subclass with an attribute."""

    label: str


def labelled() -> torch.Tensor:
    tensor = torch.arange(6.0).as_subclass(Labelled)
    tensor.label = "here"
    return tensor


def numbers(dtype: str) -> torch.Tensor:
    """Return 16 bytes or more of a dtype that perhaps has no operations."""
    type_ = getattr(torch, dtype)
    storage = torch.arange(64, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=type_).set_(storage, 0, (64 // type_.itemsize,))


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.arange(6.0), 0.5, 3, torch.quint8)


def read_only() -> torch.Tensor:
    return torch.frombuffer(bytes(range(40)), dtype=torch.int16)


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(3.0)


KINDS: dict[str, Callable[[], Any]] = {
    "empty": lambda: torch.empty(0),
    "empty_matrix": lambda: torch.empty(3, 0, dtype=torch.bool),
    "empty_integers": lambda: torch.tensor([], dtype=torch.int64),
    "empty_part": lambda: torch.arange(6.0)[2:2],
    "scalar": lambda: torch.tensor(7),
    "scalar_of_a_row": lambda: torch.arange(6.0)[4],
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "offset": lambda: torch.arange(30).reshape(5, 6)[2:, 1:4],
    "steps": lambda: torch.arange(30)[3::4],
    "overlapping": lambda: torch.arange(10.0).as_strided((4, 3), (2, 1), 1),
    "channels_last": lambda: torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "large": lambda: torch.arange(10_000),
    "odd_address": lambda: torch.frombuffer(bytearray(range(41)), dtype=torch.float32, offset=1),
    "numpy": lambda: torch.from_numpy(numpy.arange(12).reshape(3, 4)[1:]),
    "dlpack": lambda: torch.from_dlpack(numpy.arange(12.0)),
    "read_only": read_only,
    "inference": inference,
    "subclass": labelled,
    "parameter": lambda: torch.nn.Parameter(torch.arange(6.0)),
    "frozen_parameter": lambda: torch.nn.Parameter(torch.arange(6.0), requires_grad=False),
    "integer_parameter": lambda: torch.nn.Parameter(torch.tensor(5), requires_grad=False),
    "leaf": lambda: torch.arange(6.0, requires_grad=True),
    "coo": lambda: torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4, 5], (2, 3)),
    "coalesced": lambda: torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4], (2, 3), is_coalesced=True),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "quantized": quantized,
    "jagged": lambda: torch.nested.nested_tensor([torch.arange(3.0), torch.arange(5.0)], layout=torch.jagged),
    "masked": lambda: torch.masked.masked_tensor(torch.arange(3.0), torch.tensor([True, False, True])),
    "packed": lambda: torch.nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)]),
    "meta": lambda: torch.empty(3, 4, device="meta").t(),
    "meta_empty": lambda: torch.tensor([], dtype=torch.int64, device="meta"),
    "meta_parameter": lambda: torch.nn.Parameter(torch.empty(3, device="meta")),
    "untyped_storage": lambda: torch.arange(6.0).untyped_storage(),
    "odd_storage": lambda: torch.arange(7, dtype=torch.uint8).untyped_storage(),
    "empty_storage": lambda: torch.empty(0).untyped_storage(),
    "typed_storage": lambda: torch.arange(6, dtype=torch.int16)._typed_storage(),
    "float_storage": lambda: torch.FloatStorage([1, 2, 3]),
}
DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 complex128 float8_e4m3fn "
    "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 "
    "int4 int5 int6 int7 bits8 bits16 bits1x8 bits2x4 bits4x2"
)
KINDS |= {dtype: lambda dtype=dtype: numbers(dtype) for dtype in DTYPES.split()}

# What torch forgets, whatever the strategy, since it does not send it.
FORGOTTEN: dict[str, tuple[Callable[[], Any], str]] = {
    "conj": (lambda: torch.tensor([1 + 2j, 3j]).conj(), "torch does not send the conj bit: the values are wrong"),
    "neg": (lambda: torch.tensor([1 + 2j, 3j]).conj().imag, "torch does not send the neg bit: the values are wrong"),
    "nested": (lambda: torch.nested.nested_tensor([torch.arange(3.0), torch.arange(5.0)]), "torch copies a nested tensor when it is received"),
    "buffer": (lambda: torch.nn.Buffer(torch.arange(3.0)), "torch sends a Buffer as a Tensor"),
}
# Kinds with empty storages that have no memory that could be the same, or no memory at all.
WITHOUT_MEMORY = {"empty", "empty_matrix", "empty_integers", "empty_storage", "meta", "meta_empty", "meta_parameter"}


def make(kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of prototypes and of deprecated storages
        return FORGOTTEN[kind][0]() if kind in FORGOTTEN else KINDS[kind]()


def parts(x: Any) -> list[Any]:
    """Return the dense tensors, or the storage, that hold what another one is made of. The last has the values."""
    if isinstance(x, torch.nn.utils.rnn.PackedSequence):
        return [x.batch_sizes, x.data]
    if not isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, torch.masked.MaskedTensor):
        return [x._masked_mask, x._masked_data]
    if x.is_nested:
        return [x.offsets() if x.layout == torch.jagged else x._nested_tensor_size(), x.values()]
    if x.layout == torch.sparse_coo:
        return [x._indices(), x._values()]
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [x.crow_indices(), x.col_indices(), x.values()]
    if x.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [x.ccol_indices(), x.row_indices(), x.values()]
    return [x]


def storage(x: Any) -> Any:
    part = parts(x)[-1]
    if isinstance(part, torch.storage.TypedStorage):
        return part._untyped_storage
    return part.untyped_storage() if isinstance(part, torch.Tensor) else part


def raw(x: Any) -> torch.Tensor:
    """Return the bytes of the values."""
    return torch.empty(0, dtype=torch.uint8).set_(storage(x))


def describe(x: Any) -> Any:
    """Return everything that must be the same in sender and receiver, but for addresses."""
    several = parts(x)
    if len(several) > 1:
        if not isinstance(x, torch.Tensor):
            return [type(x).__name__, *map(describe, several)]
        shape = x.layout != torch.jagged and not x.is_nested and tuple(x.shape)
        coalesced = x.layout == torch.sparse_coo and x.is_coalesced()
        return [type(x).__name__, x.dtype, str(x.layout), shape, coalesced, x.requires_grad, *map(describe, several)]
    if isinstance(x, torch.Tensor):
        facts: list[Any] = [tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.requires_grad, x.is_leaf, x.is_conj(), x.is_neg()]
        facts += [x.device.type, isinstance(x, torch.nn.Buffer), getattr(x, "__dict__", {})]
    else:
        facts = [getattr(x, "dtype", None)]
    memory = storage(x)
    return [type(x).__name__, *facts, memory.nbytes(), raw(x).tolist() if memory.device.type == "cpu" else None]


def flipped(x: Any) -> Any:
    """Invert all bits of the values, in place."""
    raw(x).bitwise_not_()
    return x


def compare(kind: str, travel: Travel, invert: bool) -> None:
    (x,) = kept
    assert describe(x) == describe(flipped(make(kind)) if invert else make(kind))
    if kind not in WITHOUT_MEMORY:
        assert storage(x).is_shared() and travel.carries(storage(x))


def flip() -> None:
    flipped(kept[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [*KINDS, *FORGOTTEN])
def test_kind_arrives_and_is_one_memory(travel: Travel, kind: str, request: pytest.FixtureRequest) -> None:
    if kind in FORGOTTEN:
        fails(request, FORGOTTEN[kind][1])
    x = make(kind)
    with Child(travel) as child:
        child.ask(keep, x)
        child.ask(compare, kind, travel, False)
        assert describe(x) == describe(make(kind))
        if kind in WITHOUT_MEMORY:
            assert describe(child.ask(give)) == describe(x)
            return
        child.ask(flip)
        assert describe(x) == describe(flipped(make(kind)))
        child.ask(compare, kind, travel, True)
        same = child.ask(give)
        assert describe(same) == describe(x)
        assert storage(same)._cdata == storage(x)._cdata
        flipped(same)
        assert describe(x) == describe(make(kind))
        child.ask(compare, kind, travel, False)


def compare_all() -> None:
    (message,) = kept
    assert list(message) == list(KINDS)
    for kind, x in message.items():
        assert describe(x) == describe(make(kind)), kind


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_message_has_all_kinds(travel: Travel, method: str) -> None:
    with Child(travel, method) as child:
        child.ask(keep, {kind: make(kind) for kind in KINDS})
        child.ask(compare_all)
        back = child.ask(give)
    for kind, x in back.items():
        assert describe(x) == describe(make(kind)), kind


def scale() -> float:
    try:
        return float(kept[0].q_scale())
    except RuntimeError:
        return 0


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensor_keeps_its_scale(travel: Travel, request: pytest.FixtureRequest) -> None:
    fails(request, "torch does not send the scale, and the receiver's tensor has no quantizer")
    with Child(travel) as child:
        child.ask(keep, quantized())
        assert child.ask(scale) == 0.5


def error_of(x: Any) -> str:
    with pytest.raises((RuntimeError, NotImplementedError)) as error:
        ForkingPickler.dumps(x)
    return f"{error.type.__name__}: {error.value}"


def test_what_has_no_data_is_refused_in_torchs_words(travel: Travel) -> None:
    meta = torch.empty(3, device="meta").untyped_storage()
    assert error_of(meta) == "RuntimeError: Cannot pickle meta storage; try pickling a meta tensor instead"
    assert error_of(torch.arange(6.0).to_mkldnn()) == "NotImplementedError: Cannot access storage of OpaqueTensorImpl"


def send_without_data() -> None:
    for x in (torch._efficientzerotensor(3), torch._to_functional_tensor(torch.arange(3.0))):  # type: ignore[attr-defined]
        with pytest.raises((RuntimeError, NotImplementedError)) as error:
            ForkingPickler.dumps(x)
        assert re.search("storage|data", str(error.value))


def test_zero_and_functional_tensors_are_refused(travel: Travel) -> None:
    skips(travel, "torch 2.15 ends by a segmentation fault in _share_fd_cpu_ or _share_filename_cpu_", "file_descriptor", "file_system")
    with Child(travel) as child:
        child.ask(send_without_data)


def look_at_identities() -> tuple[bool, bool]:
    module, views = kept
    return cdata(module.weight) == cdata(views[0]) == cdata(views[1]), module.weight is views[0]


def test_parts_of_a_module_and_its_views_stay_one_memory(travel: Travel) -> None:
    module = torch.nn.Linear(3, 3)
    with Child(travel) as child:
        child.ask(keep, module, [module.weight, module.weight.detach().t()])
        assert child.ask(look_at_identities) == (True, True)
