"""What torch promises of tensors that it sends to other processes, under its own two strategies and under `ndshm.torch.install`.

The CPU cases of torch's `test/test_multiprocessing.py`, and the tests here that have their promises:

===================================== ==============================================================================
test_fd_sharing, test_fs_sharing      test_child_fills_what_the_parent_sees, test_what_is_sent_twice_is_one_storage
test_fd_preserve_sharing, test_fs_..  test_storage_tensor_row_and_column_share_one_storage
test_fd_pool, test_fs_pool            test_pool_writes_in_place_and_returns_values
test_fs                               test_memory_in_a_queue_is_freed_after_it_was_received
test_inherit_tensor                   test_forked_process_writes_to_an_inherited_tensor
test_autograd_errors                  test_pool_computes_gradients (fork)
test_autograd_fine_with_spawn         test_pool_computes_gradients (spawn)
test_empty_tensor_sharing             test_install_kinds.py: empty, empty_matrix, empty_integers
test_empty_tensor_sharing_meta        test_install_kinds.py: meta_empty
test_tensor_sharing_meta              test_install_kinds.py: meta
test_meta_simple (skipped on Linux)   test_install_kinds.py: meta, meta_parameter
test_variable_sharing                 test_gradients_and_hooks_stay_at_home (leaf)
test_leaf_variable_sharing            test_gradients_and_hooks_stay_at_home (leaf)
test_parameter_sharing                test_gradients_and_hooks_stay_at_home (parameter)
test_non_leaf_variable_sharing        test_tensor_with_a_graph_is_refused
test_integer_parameter_serialization_cpu  test_install_kinds.py: integer_parameter; test_spawned_process_gets_arguments
test_empty_shared                     test_empty_tensor_can_be_shared
test_is_shared, test_fs_is_shared     test_is_shared
test_set_thread_name                  none: nothing is sent
===================================== ==============================================================================
"""

from __future__ import annotations

import copy
import os
import pickle
import re
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.multiprocessing
from peers import eventually, files
from travelling import Child, Travel, cdata, fails, finish, forget, give, keep, kept, skips

import ndshm
import ndshm.torch

METHODS = ["fork", "spawn"]
NOT_RESIZABLE = "Trying to resize storage that is not resizable"


def fill(value: float, number: int = 0) -> None:
    """Fill a tensor that the child keeps."""
    with torch.no_grad():
        kept[number].fill_(value)


def check(value: float, travel: Travel, *numbers: int) -> None:
    """Check the elements of tensors that the child keeps, and where their memory is."""
    for tensor in [kept[number] for number in numbers or (0,)]:
        assert (tensor == value).all(), tensor
        assert tensor.is_shared() and travel.carries(tensor)


def are_one(*numbers: int) -> bool:
    return len({cdata(kept[number]) for number in numbers}) == 1


@pytest.mark.parametrize("method", METHODS)
def test_child_fills_what_the_parent_sees(travel: Travel, method: str) -> None:
    x = torch.zeros(5, 5)
    earlier = x[:, 1]
    with Child(travel, method) as child:
        child.ask(keep, x)
        later = x[2]
        child.ask(fill, 4)
        assert all((view == 4).all() for view in (x, earlier, later))
        assert travel.carries(x) and cdata(x) == cdata(earlier) == cdata(later)
        for value, view in enumerate((x, earlier, later)):
            x.fill_(9)
            view.fill_(value)
            assert child.ask(give).tolist() == x.tolist()
        x.fill_(3)
        child.ask(check, 3, travel)


def make_and_keep(travel: Travel) -> None:
    keep(torch.ones(5, 5))
    assert not kept[0].is_shared() and not travel.carries(kept[0])


@pytest.mark.parametrize("method", METHODS)
def test_what_is_sent_twice_is_one_storage(travel: Travel, method: str) -> None:
    with Child(travel, method) as child:
        child.ask(make_and_keep, travel)
        one, other = child.ask(give), child.ask(give)
        assert one is not other and cdata(one) == cdata(other) and travel.carries(one)
        one.fill_(7)
        assert (other == 7).all()
        child.ask(check, 7, travel)
        number = cdata(one)
        child.ask(keep, one, other)  # home again
        assert child.ask(are_one, 0, 1) and cdata(one) == number
        child.ask(fill, 8, 1)
        assert (one == 8).all()


def test_what_comes_home_is_the_same_storage(travel: Travel) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    row = x[1]
    with Child(travel) as child:
        child.ask(keep, x, row)
        assert child.ask(are_one, 0, 1)
        back, back_row = child.ask(give, 0, 1)
        assert cdata(back) == cdata(back_row) == cdata(x)
        assert back_row.storage_offset() == 4 and torch.equal(back_row, row)
        del x, row, back
        child.ask(forget)
        assert back_row.tolist() == [4, 5, 6, 7]  # the last tensor keeps the memory


def look_at_parts(travel: Travel) -> None:
    untyped, typed, tensor, row, column = kept
    assert type(untyped) is torch.UntypedStorage and type(typed) is torch.storage.TypedStorage and typed.dtype == torch.float32
    assert {untyped._cdata, typed._untyped_storage._cdata} == {cdata(tensor)} == {cdata(row)} == {cdata(column)}
    assert untyped.nbytes() == 100 and typed._size() == 25 and untyped.is_shared() and travel.carries(untyped)
    assert row.storage_offset() == 10 and column.stride() == (5,)
    tensor[2, 1] = 99
    assert row[1] == 99 and column[2] == 99


def test_storage_tensor_row_and_column_share_one_storage(travel: Travel) -> None:
    x = torch.randn(5, 5)
    with Child(travel) as child:
        child.ask(keep, x.untyped_storage(), x._typed_storage(), x, x[2], x[:, 1])
        child.ask(look_at_parts, travel)
        assert x[2, 1] == 99
        untyped, typed, *tensors = child.ask(give, 0, 1, 2, 3, 4)
        assert untyped._cdata == typed._untyped_storage._cdata == cdata(x)
        assert all(cdata(tensor) == cdata(x) for tensor in tensors)
        assert torch.equal(tensors[1], x[2]) and torch.equal(tensors[2], x[:, 1])


def double(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    assert (tensor == 0).all()
    tensor.fill_(4)
    return tensor, tensor.add(1)


@pytest.mark.parametrize("method", METHODS)
def test_pool_writes_in_place_and_returns_values(travel: Travel, method: str) -> None:
    tensors = [torch.zeros(2, 2) for _ in range(8)]
    with travel.pool(method) as pool:
        results = pool.map(double, tensors, 1)
        for tensor, (same, sums) in zip(tensors, results, strict=True):
            assert (tensor == 4).all() and (sums == 5).all()
            assert cdata(same) == cdata(tensor) and cdata(sums) != cdata(tensor) and travel.carries(sums)
        assert len({cdata(sums) for _, sums in results}) == len(tensors)
        pool.close()
        pool.join()
    assert all((sums == 5).all() for _, sums in results)  # after their makers have ended


def gradient(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone().requires_grad_()
    x.square().sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("method", METHODS)
def test_pool_computes_gradients(travel: Travel, method: str) -> None:
    assert gradient(torch.ones(3)).tolist() == [2, 2, 2]
    with travel.pool(method) as pool:
        found = pool.map(gradient, [torch.full((3,), float(number)) for number in range(3)])
        assert [x.tolist() for x in found] == [[0] * 3, [2] * 3, [4] * 3]
        pool.close()
        pool.join()


def test_memory_in_a_queue_is_freed_after_it_was_received(travel: Travel) -> None:
    def made() -> int:
        """Count the files of tensors. Under file_descriptor they have no names."""
        return len(files()) + sum(name.startswith(f"torch_{os.getpid()}_") for name in os.listdir("/dev/shm"))

    queue = torch.multiprocessing.get_context("fork").Queue()
    assert made() == 0
    queue.put(torch.zeros(4, dtype=torch.float64).untyped_storage())
    eventually(lambda: not queue.empty())
    assert made() == (travel.name != "file_descriptor")
    storage = queue.get(timeout=60)
    assert storage.nbytes() == 32
    queue.close()
    queue.join_thread()
    del storage, queue
    travel.end()  # what is kept to be used again is given up
    ndshm.gc()
    eventually(lambda: made() == 0, 10)


class Adder(torch.multiprocessing.get_context("fork").Process):  # type: ignore[misc]
    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(daemon=True)
        self.tensors = tensors

    def run(self) -> None:
        for tensor in self.tensors:
            tensor.add_(3)


def test_forked_process_writes_to_an_inherited_tensor(travel: Travel) -> None:
    """A private tensor that it inherits stays private, and so does a copy of one that is shared."""
    shared, private = torch.zeros(5, 5).share_memory_(), torch.zeros(5, 5)
    clone = shared.clone()
    assert travel.carries(shared) and not clone.is_shared() and not private.is_shared()
    process = Adder(shared, private, clone)
    process.start()
    finish(process)
    assert (shared == 3).all() and (private == 0).all() and (clone == 0).all()


def write_row(index: int, tensor: torch.Tensor, parameter: torch.nn.Parameter, travel: Travel) -> None:
    assert travel.carries(tensor) and parameter.dtype == torch.int64 and not parameter.requires_grad
    tensor[index].fill_(index + parameter.item())


@pytest.mark.parametrize("method", METHODS)
def test_spawned_process_gets_arguments(travel: Travel, method: str) -> None:
    tensor = torch.zeros(2, 5).share_memory_()
    parameter = torch.nn.Parameter(torch.tensor(10), requires_grad=False)
    for index in range(2):
        travel.run(write_row, index, tensor, parameter, travel, method=method)
    assert tensor.tolist() == [[10] * 5, [11] * 5]


def receive_variable(type_: type, requires_grad: bool) -> None:
    (x,) = kept
    assert type(x) is type_ and x.requires_grad == requires_grad and x.is_leaf
    assert x.grad is None and not x._backward_hooks and x.grad_fn is None
    expected = torch.arange(1.0, 26).view(5, 5)
    expected[0, 0] = 1000
    assert x.data.equal(expected)
    x.data[:] = torch.ones(5, 5)
    x.grad = torch.full((5, 5), 7.0)
    if requires_grad:
        (x * 3).sum().backward()
        assert (x.grad == 10).all()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("type_", [torch.Tensor, torch.nn.Parameter], ids=["leaf", "parameter"])
def test_gradients_and_hooks_stay_at_home(travel: Travel, type_: type, requires_grad: bool) -> None:
    called = []

    @torch.utils.hooks.unserializable_hook
    def hook(gradient: torch.Tensor) -> None:
        called.append(gradient)  # a closure: it cannot be pickled

    x = torch.arange(1.0, 26).view(5, 5)
    x = torch.nn.Parameter(x, requires_grad=requires_grad) if type_ is torch.nn.Parameter else x.requires_grad_(requires_grad)
    if requires_grad:
        x.register_hook(hook)
    x.grad = torch.zeros(5, 5)
    version = x._version
    with Child(travel) as child:
        child.ask(keep, x)
        assert x._version == version
        x.data[0, 0] = 1000
        x.grad.data[:] = 4
        child.ask(receive_variable, type_, requires_grad)
        assert (x.data == 1).all() and (x.grad == 4).all() and not x.grad.is_shared()
        back = child.ask(give)
        assert type(back) is type_ and back.requires_grad == requires_grad and cdata(back) == cdata(x) and back.grad is None
    if requires_grad:
        x.sum().backward()
        assert len(called) == 1 and (x.grad == 5).all()


def test_hook_that_is_not_sent_is_warned_of(travel: Travel) -> None:
    x = torch.zeros(3, requires_grad=True)
    x.register_hook(lambda gradient: gradient)
    with pytest.warns(UserWarning, match="backward hook .* on tensor will not be serialized"):
        ForkingPickler.dumps(x)
    ndshm.in_flight.clear()


def test_tensor_with_a_graph_is_refused(travel: Travel) -> None:
    text = (
        "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support crossing process boundaries.  "
        "If you just want to transfer the data, call detach() on the tensor before serializing (e.g., putting it on the queue)."
    )
    x = torch.ones(5, requires_grad=True)
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    for refused in (x * 2, x[1:]):
        with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
            queue.put(refused)
        assert not refused.is_shared()
    queue.put(x[1:].detach())
    assert queue.get().tolist() == [1] * 4
    assert travel.carries(x)  # the views share its memory
    queue.close()


def test_what_autograd_has_saved_stays_right(travel: Travel) -> None:
    x = torch.arange(1.0, 4).requires_grad_()
    total = (x * x).sum()
    with Child(travel) as child:
        child.ask(keep, x)
        total.backward()
        assert x.grad is not None and x.grad.tolist() == [2, 4, 6]
        total = (x * x).sum()
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_empty_tensor_can_be_shared(travel: Travel) -> None:
    assert torch.tensor([]).share_memory_().is_shared()


def share_again(travel: Travel) -> None:
    """Share a tensor that was received: nothing moves."""
    (x,) = kept
    before = cdata(x), x.data_ptr()
    assert x.is_shared() and x.share_memory_() is x and (cdata(x), x.data_ptr()) == before and travel.carries(x)
    x.untyped_storage().share_memory_()
    assert x.data_ptr() == before[1]


def test_is_shared(travel: Travel) -> None:
    x = torch.randn(5, 5)
    bits = x.clone()
    row, storage = x[1], x.untyped_storage()
    assert not x.is_shared() and not row.is_shared() and not storage.is_shared()
    assert x.share_memory_() is x
    assert x.is_shared() and row.is_shared() and storage.is_shared() and x._typed_storage()._is_shared() and travel.carries(x)
    place = x.data_ptr()
    assert x.share_memory_().data_ptr() == row.share_memory_().data_ptr() - 20 == place
    assert torch.equal(x, bits) and not x.clone().is_shared() and not (x + 1).is_shared() and not copy.deepcopy(x).is_shared()
    with Child(travel) as child:
        child.ask(keep, x)
        child.ask(share_again, travel)
        child.ask(fill, 2)
        assert (row == 2).all() and x.data_ptr() == place  # a shared one does not move when it is sent


def test_sent_tensor_is_shared(travel: Travel) -> None:
    x = torch.zeros(5)
    with Child(travel) as child:
        child.ask(keep, x)
        assert x.is_shared() and travel.carries(x)
        place = x.data_ptr()
        assert x.share_memory_().data_ptr() == place
        child.ask(fill, 6)
        assert (x == 6).all()


class Tied(torch.nn.Module):
    """A model in which two layers have one weight, with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.register_buffer("seen", torch.zeros(()))
        torch.nn.init.zeros_(self.one.weight)
        torch.nn.init.zeros_(self.other.bias)


def train(model: Tied, lock: Any, steps: int, travel: Travel) -> None:
    """Add to the weights, as Hogwild does, with gradients of this process's own."""
    assert model.one.weight is model.other.weight and all(travel.carries(tensor) for tensor in model.state_dict().values())
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    for _ in range(steps):
        optimizer.zero_grad()
        (-model.one.weight.sum() - model.other.bias.sum()).backward()
        assert (model.one.weight.grad == -1).all()
        with lock:
            optimizer.step()
            model.seen.add_(1)


@pytest.mark.parametrize("method", METHODS)
def test_model_is_trained_by_two_processes(travel: Travel, method: str) -> None:
    model = Tied()
    weight = model.one.weight
    assert model.share_memory() is model
    assert model.one.weight is weight and weight.is_shared() and weight.is_leaf and weight.requires_grad
    places = [tensor.data_ptr() for tensor in model.state_dict().values()]
    model.share_memory()
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == places
    lock = torch.multiprocessing.get_context(method).Lock()
    processes = [travel.process(train, model, lock, 20, travel, method=method) for _ in range(2)]
    for process in processes:
        finish(process)
    assert (weight == 40).all() and (model.other.bias == 40).all() and model.seen == 40
    assert weight.grad is None
    model.one(torch.ones(4)).sum().backward()
    assert weight.grad is not None and not weight.grad.is_shared()


def test_what_the_receiver_sends_on_is_the_same_memory(travel: Travel) -> None:
    x = torch.zeros(3, 4)
    with Child(travel) as one, Child(travel) as other:
        one.ask(keep, x.t())
        other.ask(keep, one.ask(give))
        from_one, from_other = one.ask(give), other.ask(give)
        assert cdata(from_one) == cdata(from_other) == cdata(x) and from_other.stride() == (1, 4)
        for value, writer in enumerate((one, other), 1):
            writer.ask(fill, value)
            assert (x == value).all()
            one.ask(check, value, travel)
            other.ask(check, value, travel)


def hand_on(queue: Any, gate: Any) -> None:
    """Send what the parent received before it forked."""
    (x,) = kept
    x.add_(1)
    queue.put(x)
    assert gate.wait(60)


def test_forked_child_sends_on_what_its_parent_received(travel: Travel) -> None:
    context = torch.multiprocessing.get_context("fork")
    queue, gate = context.Queue(), context.Event()
    with Child(travel) as maker:
        maker.ask(make_and_keep, travel)
        x = maker.ask(give)
        keep(x)  # the forked child has it there
        child = travel.process(hand_on, queue, gate)
        with Child(travel) as third:
            same = queue.get(timeout=60)
            assert cdata(same) == cdata(x) and (x == 2).all()
            third.ask(keep, same)
            gate.set()
            finish(child)
            maker.ask(check, 2, travel)
            third.ask(fill, 5)
            maker.ask(check, 5, travel)
            maker.end()  # its memory stays
            third.ask(fill, 6)
            assert (x == 6).all() and (same == 6).all()
    forget()
    queue.close()
    queue.join_thread()


def test_parent_drops_what_a_forked_child_has(travel: Travel, request: pytest.FixtureRequest) -> None:
    """The memory is not used for other tensors while the child reads it."""
    fails(request, "torch removes the file, since it does not count forked children: No such file", "file_system")
    x = torch.full((5000,), 3.0)
    with Child(travel) as receiver:
        receiver.ask(keep, x)
        keep(x)
        with Child(travel) as forked:
            forget()
            del x
            receiver.ask(forget)
            for number in range(10):
                receiver.ask(keep, torch.full((5000,), 100.0 + number))
            forked.ask(check, 3, travel)
            assert (forked.ask(give) == 3).all()


@pytest.mark.parametrize("made", ["file_descriptor", "file_system"])
def test_tensor_that_torch_shared_before_stays_one_memory(travel: Travel, made: str, request: pytest.FixtureRequest) -> None:
    if travel.name != "ndshm" and travel.name != made:
        fails(request, f"torch copies to its {travel.name} what it shared by {made}, and the memory is split")
    travel.end()
    torch.multiprocessing.set_sharing_strategy(made)
    x = torch.zeros(5, 5).share_memory_()
    with Child(Travel(made)) as old:  # forked before
        old.ask(keep, x)
        travel.begin()
        place = x.data_ptr()
        with Child(travel) as inherits, Child(travel) as receives:
            receives.ask(keep, x[1:])
            inherits.ask(keep, x)
            for value, child in enumerate((old, receives, inherits), 1):
                child.ask(fill, value)
                assert (x[1:] == value).all()
            x.fill_(7)
            assert all((child.ask(give) == 7).all() for child in (old, receives, inherits))
            assert x.data_ptr() == place and x.share_memory_().data_ptr() == place


def make_as_torch(travel: Travel) -> None:
    """Send tensors from now on as a process does that has not called `install`."""
    travel.end()
    keep(torch.zeros(5, 5))


def test_tensor_of_a_process_without_install_stays_one_memory(travel: Travel, request: pytest.FixtureRequest) -> None:
    fails(request, "torch copies to its file_system what it received by file_descriptor, and the memory is split", "file_system")
    with Child(travel) as maker, Child(travel) as other:
        maker.ask(make_as_torch, travel)
        x = maker.ask(give)
        assert Travel("file_descriptor").carries(x)
        other.ask(keep, x)
        other.ask(fill, 3)
        assert (x == 3).all() and (maker.ask(give) == 3).all()
        maker.ask(fill, 4)
        assert (other.ask(give) == 4).all()


@pytest.mark.parametrize("way", ["inherited", "sent"])
def test_tensor_of_a_file_stays_one_memory(travel: Travel, way: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if way == "sent":
        fails(request, "torch's file_descriptor has no descriptor of the file: Bad file descriptor", "file_descriptor")
        fails(request, "torch copies the tensor to its file_system, and the file does not change any more", "file_system")
    path = tmp_path / "numbers"
    path.write_bytes(bytes(100))
    x = torch.from_file(str(path), shared=True, size=25)
    assert x.is_shared()
    if way == "sent":
        try:
            ForkingPickler.dumps(x)
        except OSError:
            if travel.name == "ndshm":
                pytest.skip("refused as by torch's file_descriptor: nothing is split")
            raise
    else:
        keep(x)
    with Child(travel) as child:
        if way == "sent":
            child.ask(keep, x)
        child.ask(fill, 5)
        assert (x == 5).all()
        x.fill_(6)
        child.ask(check_values, 6)
    forget()
    assert numpy.fromfile(path, "f4").tolist() == [6] * 25


def check_values(value: float) -> None:
    assert (kept[0] == value).all()


def resize(size: int) -> str:
    """Resize the storage of a tensor, and return the error's text."""
    try:
        kept[0].untyped_storage().resize_(size)
    except RuntimeError as error:
        return str(error)
    return ""


def test_receiver_cannot_resize(travel: Travel) -> None:
    x = torch.ones(10)
    with Child(travel) as child:
        child.ask(keep, x)
        for size in (8, 80, 1 << 20):
            assert child.ask(resize, size) == NOT_RESIZABLE
        child.ask(check, 1, travel)
        x.fill_(2)
        child.ask(check, 2, travel)


@pytest.mark.parametrize("way", ["sent", "share_memory_"])
def test_sender_cannot_resize(travel: Travel, way: str) -> None:
    skips(travel, "torch 2.15 ends by a segmentation fault", "file_descriptor", "file_system")
    x = torch.ones(10)
    with Child(travel) as child:
        if way == "share_memory_":
            x.share_memory_()
        child.ask(keep, x)
        for change in (lambda: x.resize_(2000), lambda: x.untyped_storage().resize_(8000), lambda: x.untyped_storage().resize_(8)):
            with pytest.raises(RuntimeError, match=NOT_RESIZABLE):
                change()
        with pytest.raises(RuntimeError, match=NOT_RESIZABLE), pytest.warns(UserWarning):
            torch.arange(100.0, out=x)
    fresh = x.clone()
    fresh.resize_(2000)  # an own one can


@pytest.mark.parametrize("way", ["sent", "share_memory_"])
def test_sender_can_resize_to_nothing(travel: Travel, way: str) -> None:
    x = torch.ones(1000)
    row = x[10:20]
    storage = x.untyped_storage()
    with Child(travel) as child:
        if way == "share_memory_":
            x.share_memory_()
        child.ask(keep, x)
        storage.resize_(0)
        assert storage.nbytes() == 0 and not x.is_shared() and row.untyped_storage().nbytes() == 0
        child.ask(check, 1, travel)  # the receiver's memory stays
        if travel.name == "ndshm":  # torch takes the empty storage for the one that comes home: segmentation fault
            same = child.ask(give)
            assert (same == 1).all() and cdata(same) != cdata(x)
            same.fill_(2)
            child.ask(check, 2, travel)
            assert storage.nbytes() == 0
        del x, row
        child.ask(keep, storage)
        assert child.ask(give).nbytes() == 0


@pytest.mark.parametrize("mover", ["_swap_data_ptr_", "_share_filename_cpu_", "_share_fd_cpu_", "data", "set_"])
def test_storage_that_moved_after_it_was_sent_is_sent_from_its_new_place(travel: Travel, mover: str) -> None:
    x = torch.ones(10)
    with Child(travel) as child:
        child.ask(keep, x)
        if mover == "_swap_data_ptr_":
            x.untyped_storage()._swap_data_ptr_(torch.ones(10).untyped_storage())
        elif mover == "data":
            x.data = torch.ones(10)
        elif mover == "set_":
            x.set_(torch.ones(10).untyped_storage(), 0, (10,))
        else:
            getattr(x.untyped_storage(), mover)()
        x.fill_(9)
        same = child.ask(give)  # the old memory, or the new one if nothing moved
        moved = same.data_ptr() != x.data_ptr()
        assert (same == (1 if moved else 9)).all()
        child.ask(keep, same, x)
        assert child.ask(are_one, 0, 1) != moved
        child.ask(fill, 5, 1)
        assert (x == 5).all() and (same == (1 if moved else 5)).all()
        child.ask(fill, 6, 0)
        assert (x == (5 if moved else 6)).all()


def test_shared_memory_that_was_swapped_into_another_storage_is_sent_from_there(travel: Travel) -> None:
    x, y = torch.ones(10), torch.full((10,), 2.0)
    with Child(travel) as child:
        child.ask(keep, x)
        x.untyped_storage()._swap_data_ptr_(y.untyped_storage())
        assert (x == 2).all() and (y == 1).all() and not x.is_shared() and y.is_shared()
        child.ask(keep, x, y)
        assert not child.ask(are_one, 0, 1)
        child.ask(check, 2, travel, 0)
        child.ask(check, 1, travel, 1)
        child.ask(fill, 3, 0)
        child.ask(fill, 4, 1)
        assert (x == 3).all() and (y == 4).all()


def size_and_sum() -> tuple[int, float]:
    return kept[0].untyped_storage().nbytes(), float(kept[0].sum())


def test_address_that_is_used_again_has_the_new_size_and_values(travel: Travel) -> None:
    with Child(travel) as child:
        for number in range(150):
            size = (1000, 10, 20_000, 1, 300)[number % 5]
            child.ask(keep, torch.full((size,), float(number)))
            assert child.ask(size_and_sum) == (4 * size, number * size)


def test_tensor_of_an_array_is_sent_as_that_array(travel: Travel, request: pytest.FixtureRequest) -> None:
    fails(request, "torch moves the tensor to a file of its own, and it is the array no more", "file_system")
    array = ndshm.share_zeros((5, 5), "float32")
    x = ndshm.torch.as_tensor(array)
    with Child(travel) as child:
        child.ask(keep, x)
        child.ask(fill, 3)
        assert (x == 3).all() and (array[...] == 3).all()
        same = ndshm.torch.from_tensor(child.ask(give), copy=False)
        assert same.id == array.id
        with array.write() as view:
            view[...] = 4
        assert (child.ask(give) == 4).all()
        assert x.is_shared() and x.share_memory_().is_shared() and ndshm.torch.from_tensor(x, copy=False).id == array.id


def test_tensor_of_a_numpy_view_of_an_array_is_sent_as_that_array(travel: Travel, request: pytest.FixtureRequest) -> None:
    fails(request, "torch copies the tensor to a file of its own, and it is the array no more", "file_descriptor", "file_system")
    array = ndshm.share_zeros((5, 5), "float32")
    x, part = torch.from_numpy(numpy.asarray(array)), torch.from_numpy(numpy.asarray(array)[0, :3])
    with Child(travel) as child:
        child.ask(keep, x, part)  # both begin at one address
        child.ask(fill, 3)
        assert (array[...] == 3).all(), "the array is another memory"
        child.ask(fill, 4, 1)
        assert array[0].tolist() == [4, 4, 4, 3, 3] and (part == 4).all()
        same, same_part = child.ask(give, 0, 1)
        assert same.untyped_storage().nbytes() == 100 and same_part.untyped_storage().nbytes() == 12
        assert ndshm.torch.from_tensor(same, copy=False).id == array.id
        assert cdata(ndshm.torch.as_tensor(array)) == cdata(x)


def test_numpy_array_of_a_received_tensor_is_its_memory(travel: Travel) -> None:
    with Child(travel) as child:
        child.ask(make_and_keep, travel)
        view = child.ask(give).numpy()
        child.ask(fill, 8)
        assert (view == 8).all()  # after its tensor was dropped
        view[...] = 9
        child.ask(check, 9, travel)


def test_other_pickles_and_copies_share_nothing(travel: Travel, tmp_path: Path) -> None:
    x = torch.ones(3)
    copies = [copy.deepcopy(x), pickle.loads(pickle.dumps(x))]
    torch.save(x, tmp_path / "x.pt")
    copies.append(torch.load(tmp_path / "x.pt"))
    assert not any(tensor.is_shared() for tensor in [x, *copies])
    x.share_memory_()
    copies += [copy.deepcopy(x), pickle.loads(pickle.dumps(x))]
    torch.save(x, tmp_path / "x.pt")
    copies.append(torch.load(tmp_path / "x.pt"))
    x.fill_(2)
    assert all(tensor.tolist() == [1, 1, 1] and not tensor.is_shared() for tensor in copies)


def test_sender_gives_private_memory_back() -> None:
    """Small blocks that last pin large ones that are freed below them, so that glibc keeps those."""

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    ndshm.torch.install()
    before = resident()
    for _ in range(1000):
        tensor = torch.ones(1 << 18)
        pickle.loads(ForkingPickler.dumps(tensor))
    del tensor
    ndshm.torch.install(False)
    assert resident() - before < 400 << 20
