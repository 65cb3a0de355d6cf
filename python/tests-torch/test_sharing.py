"""The promises of torch's tests of `torch.multiprocessing`, for tensors of arrays and for arrays, with each strategy of torch.

Under ``file_system`` torch moves a tensor that it sends to a file of its own. What torch promises holds there too, but the tensor is not
the array any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing
from peers import Peer, eventually, files, make, torch_files
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ndshm
from ndshm.torch import as_tensor, from_tensor

ROUNDS = 10


def shared_with(strategy: str, array: ndshm.Array) -> Callable[[float], bool]:
    """Return a function that checks that the array has a value everywhere, or zeros if torch has moved its tensor."""
    return lambda value: bool((array[...] == (value if strategy == "file_descriptor" else 0)).all())


def fill(inbox: Any, outbox: Any, value: float) -> None:
    """Fill the first of two tensors."""
    tensor, column = inbox.get()
    tensor.fill_(value)
    assert (column == value).all()
    outbox.put("filled")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_sender_sees_what_the_receiver_writes(kind: str, strategy: str, method: str) -> None:
    array = make(kind)
    tensor = as_tensor(array)
    with Peer(fill, 4, method=method) as peer:
        assert peer.ask([tensor, tensor[:, 1]]) == "filled"
        peer.end()
    assert (tensor == 4).all() and shared_with(strategy, array)(4)


def send_twice(inbox: Any, outbox: Any, kind: str) -> None:
    tensor = as_tensor(make(kind))
    tensor.fill_(1)
    for _ in range(2):
        outbox.put(tensor)
    del tensor
    inbox.get()


def test_tensor_received_twice_is_one_memory(kind: str, strategy: str) -> None:
    with Peer(send_twice, kind, method="fork") as peer:
        one, other = (peer.outbox.get(timeout=60) for _ in range(2))
        assert (one == 1).all() and (other == 1).all()
        one.fill_(7)
        assert (other == 7).all()
        assert one.untyped_storage()._cdata == other.untyped_storage()._cdata
        del one, other
        peer.inbox.put("end")
        peer.end()


def test_storage_tensor_row_and_column_stay_one_memory(kind: str, strategy: str) -> None:
    for _ in range(ROUNDS):
        array = make(kind)
        tensor = as_tensor(array)
        tensor.fill_(1)
        sent = [tensor.untyped_storage(), tensor, tensor[2], tensor[:, 1]]
        queue = torch.multiprocessing.get_context("fork").Queue()
        queue.put(sent)
        storage, *received = queue.get(timeout=60)
        assert storage._cdata == sent[0]._cdata
        for one, same in zip(received, sent[1:], strict=True):
            assert one.untyped_storage()._cdata == storage._cdata and torch.equal(one, same)
        received[0].fill_(10)
        assert (received[1] == 10).all() and (received[2] == 10).all() and (tensor == 10).all()
        assert (array[...] == (10 if strategy == "file_descriptor" else 1)).all()
        queue.close()
        queue.join_thread()
        del sent, tensor, storage, received, one, same
        ndshm.unlink("py-torch")


def double(tensor: torch.Tensor) -> torch.Tensor:
    tensor.add_(1)
    return tensor.add(1)


def test_pool_writes_in_place_and_returns_values(kind: str, strategy: str) -> None:
    arrays = [make(kind, name=f"py-torch-{number}") for number in range(4)]
    tensors = [as_tensor(array) for array in arrays]
    with torch.multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.map(double, tensors, 1)
        pool.close()
        pool.join()
    assert all((result == 2).all() for result in results)
    assert all((tensor == 1).all() for tensor in tensors)
    assert all(shared_with(strategy, array)(1) for array in arrays)
    for number in range(4):
        ndshm.unlink(f"py-torch-{number}")


def test_torch_makes_a_file_only_under_file_system(kind: str, strategy: str) -> None:
    array = make(kind)
    tensor = as_tensor(array)
    named = 0 if kind == "nameless" else 1
    assert (len(files()), torch_files()) == (named, [])
    queue = torch.multiprocessing.get_context("fork").Queue()
    for _ in range(ROUNDS):
        queue.put(tensor)
        same = queue.get(timeout=60)
        assert (len(files()), len(torch_files())) == (named, int(strategy == "file_system"))
    queue.close()
    queue.join_thread()
    assert torch.equal(same, tensor)


class Adder(torch.multiprocessing.get_context("fork").Process):  # type: ignore[misc]
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor

    def run(self) -> None:
        self.tensor.add_(3)


def test_forked_child_writes_to_an_inherited_tensor(kind: str, strategy: str) -> None:
    array = make(kind)
    tensor = as_tensor(array)
    process = Adder(tensor)
    process.start()
    process.join(60)
    assert process.exitcode == 0 and (tensor == 3).all() and (array[...] == 3).all()


def test_is_shared(kind: str, strategy: str) -> None:
    private = torch.zeros(5, 5)
    assert not private.is_shared() and private.share_memory_().is_shared()
    assert as_tensor(make(kind)).is_shared()
    assert not torch.from_dlpack(from_tensor(private)).is_shared()


def test_empty_tensors_are_sent(kind: str, strategy: str) -> None:
    queue = torch.multiprocessing.get_context("fork").Queue()
    for shape, dtype in (((0,), "float32"), ((0,), "int64"), ((3, 0), "bool")):
        tensor = as_tensor(make(kind, shape, dtype))
        assert tensor.is_shared()
        queue.put(tensor)
        same = queue.get(timeout=60)
        assert same.shape == shape and same.dtype == tensor.dtype
        ndshm.unlink("py-torch")
    queue.close()
    queue.join_thread()


def look_at_parameter(inbox: Any, outbox: Any) -> None:
    parameter = inbox.get()
    outbox.put((type(parameter).__name__, parameter.requires_grad, parameter.grad is None, parameter.is_leaf))
    with torch.no_grad():
        parameter.add_(1)
    outbox.put("done")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_parameters_keep_their_properties(kind: str, strategy: str, requires_grad: bool) -> None:
    array = make(kind)
    parameter = torch.nn.Parameter(as_tensor(array), requires_grad=requires_grad)
    with Peer(look_at_parameter, method="fork") as peer:
        assert peer.ask(parameter) == ("Parameter", requires_grad, True, True)
        assert peer.outbox.get(timeout=60) == "done"
        peer.end()
    assert (parameter == 1).all() and shared_with(strategy, array)(1)


def test_tensor_that_is_no_leaf_is_refused(kind: str, strategy: str) -> None:
    tensor = as_tensor(make(kind)).requires_grad_()
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(tensor * 2)


def test_integer_without_axes_is_sent(kind: str, strategy: str) -> None:
    array = make(kind, (), "int64")
    array[...] = 7
    queue = torch.multiprocessing.get_context("fork").Queue()
    queue.put(torch.nn.Parameter(as_tensor(array), requires_grad=False))
    same = queue.get(timeout=60)
    assert same.shape == () and same == 7
    queue.close()
    queue.join_thread()


def test_rounds_need_no_more_descriptors(kind: str, strategy: str) -> None:
    queue = torch.multiprocessing.get_context("fork").Queue()

    def send() -> None:
        array = make(kind)
        queue.put(as_tensor(array))
        assert queue.get(timeout=60).sum() == 0
        ndshm.unlink("py-torch")

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    for _ in range(5):
        send()  # torch starts a thread with a socket
    before = count()
    for _ in range(30):
        send()
    eventually(lambda: count() <= before + 1)
    queue.close()
    queue.join_thread()


def write_row(index: int, tensor: torch.Tensor) -> None:
    tensor[index].fill_(index + 1)


def test_spawned_processes_get_tensors_as_arguments(kind: str) -> None:
    """Only with torch's strategy file_descriptor. With the other one, torch's `spawn` leaves a file of any tensor."""
    array = make(kind)
    tensor = as_tensor(array)
    torch.multiprocessing.spawn(write_row, args=(tensor,), nprocs=2)  # type: ignore[no-untyped-call]
    assert tensor[:2].sum(dim=1).tolist() == [5, 10] and array[...].sum() == 15


def train(model: torch.nn.Module, steps: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            for _ in range(steps):
                parameter.add_(1)


def test_model_is_trained_by_other_processes(kind: str, strategy: str) -> None:
    model = torch.nn.Linear(5, 5, bias=False)
    array = make(kind)
    model.weight = torch.nn.Parameter(as_tensor(array))
    model.share_memory()  # type: ignore[no-untyped-call]
    context = torch.multiprocessing.get_context("fork")
    for _ in range(2):  # one after the other: torch takes no lock
        process = context.Process(target=train, args=(model, 3))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    assert (model.weight == 6).all() and shared_with(strategy, array)(6)


class Lines(Dataset[torch.Tensor]):
    """A dataset that makes a tensor of its array in each worker."""

    def __init__(self, array: ndshm.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> torch.Tensor:
        return as_tensor(self.array)[index]


def load(array: ndshm.Array, method: str) -> None:
    array[:, 0] = range(100)
    for data in (TensorDataset(as_tensor(array)), Lines(array)):
        loader = DataLoader(data, batch_size=10, num_workers=2, multiprocessing_context=method)
        batches = [batch[0] if isinstance(batch, list) else batch for batch in loader]
        assert len(batches) == 10 and int(sum(batch.sum() for batch in batches)) == 4950


def test_dataloader_workers_read_the_tensor(kind: str, strategy: str) -> None:
    load(make(kind, (100, 3), "int64"), "fork")


def test_spawned_dataloader_workers_read_the_tensor() -> None:
    load(make("counted", (100, 3), "int64"), "spawn")


def write_to_array(inbox: Any, outbox: Any) -> None:
    arrays = inbox.get()
    with arrays[0].write() as x:
        x[...] = 4
    outbox.put(arrays)


@pytest.mark.parametrize("ours", ["file_descriptor", "file_system"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_arrays_are_sent_whatever_torchs_strategy(strategy: str, ours: str, method: str) -> None:
    array, other = (ndshm.share_zeros((5, 5), "float32", strategy=ours) for _ in range(2))
    with Peer(write_to_array, method=method) as peer:
        back = peer.ask([array, array, other, array])
        peer.end()
    assert [same.id for same in back] == [array.id, array.id, other.id, array.id]
    assert all((same[...] == (0 if same.id == other.id else 4)).all() for same in [array, other, *back])
    assert array.in_flight == 0 and not torch_files()


def write_in_pool(array: ndshm.Array) -> int:
    with array.write() as x:
        x += 1
    return int(x.sum()) + 1


def test_pool_writes_in_place_to_arrays(strategy: str) -> None:
    arrays = [ndshm.share_zeros((5, 5), "int32") for _ in range(4)]
    with torch.multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(write_in_pool, arrays, 1) == [26] * 4
        pool.close()
        pool.join()
    assert all((array[...] == 1).all() for array in arrays)
