"""Tensors that are the memory of arrays: what they keep alive, in which processes, and what torch cannot do to them."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from peers import Peer, eventually, files, hold, listed, make, torch_files

import ndshm
from ndshm import _program
from ndshm.torch import PrivateTensor, as_tensor, from_tensor

DTYPES = {
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "bool": torch.bool,
}


def descriptors() -> list[str]:
    """Return the descriptors of this process that lead to arrays."""
    directory = os.environ["NDSHM_EMULATED_DIR"]
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the listing's own
            continue
        if path.startswith(directory + "/"):
            found.append(path)
    return found


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_and_order_are_kept_both_ways(kind: str, dtype: str, order: str) -> None:
    array = make(kind, (4, 1, 3), dtype, order)
    tensor = as_tensor(array)
    assert tensor.dtype == DTYPES[dtype] and tensor.shape == (4, 1, 3) and tensor.is_shared()
    assert tensor.stride() == ((3, 3, 1) if order == "C" else (1, 4, 4))
    tensor[2, 0, 1] = 1
    assert array[2, 0, 1] and array[...].astype(bool).sum() == 1
    array[3, 0, 2] = array[2, 0, 1]
    assert tensor[3, 0, 2] == 1
    again = from_tensor(tensor)
    assert (again.shape, again.order, again.dtype_name) == (array.shape, order, array.dtype_name)
    again[0, 0, 0] = again[2, 0, 1]
    # An array without a name is not found again.
    assert bool(array[0, 0, 0]) == (kind != "nameless")


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (0,), (3, 0, 2), (4096,)])
def test_shapes_without_axes_or_elements(kind: str, shape: tuple[int, ...]) -> None:
    array = make(kind, shape, "int32", "F")
    tensor = as_tensor(array)
    assert tensor.shape == shape and tensor.is_shared()
    tensor.fill_(7)
    assert (array[...] == 7).all() and array[...].shape == shape
    assert (from_tensor(tensor)[...] == 7).all()
    length = 4 * int(np.prod(shape))
    for name in files():
        # torch lengthens a file that is shorter than it was told.
        found = Path(os.environ["NDSHM_EMULATED_DIR"], name).stat().st_size
        assert found == (length if kind == "plain" else 4096 * (1 + -(-length // 4096)))


def test_array_stays_attached_until_the_last_tensor_is_gone(kind: str) -> None:
    array = make(kind)
    name = array.name
    tensor = as_tensor(array)
    tensor.fill_(7)
    row = tensor[2]
    array.close()
    del array, tensor

    def is_kept() -> bool:
        assert ndshm.gc() == [] and ndshm.gc(in_flight=True) == []
        return kind == "nameless" or (ndshm.attached(name) and listed(name)["attached"])

    assert is_kept() and row.sum() == 35
    with Peer(hold) as peer:
        assert peer.ask(row) == 7
        row.fill_(8)
        assert peer.ask("look") == 8
        del row
        gc.collect()
        assert is_kept() and peer.ask("look") == 8
        if kind == "plain":
            again = ndshm.open(name)
            again[...] = 9
            again.close()
            assert peer.ask("look") == 9 and is_kept()
    if kind == "plain":
        eventually(lambda: not ndshm.attached(name))
    elif kind == "counted":
        # Nothing ran when the killed process's tensor ended.
        eventually(lambda: not ndshm.attached(name))
        assert listed(name)["counted"]["orphaned"]
        assert ndshm.gc() == [name]
    assert kind == "plain" or not files()


def produce(inbox: Any, outbox: Any, kind: str) -> None:
    """Make an array, send its tensor on, and stay."""
    array = make(kind)
    tensor = as_tensor(array)
    tensor.fill_(7)
    name = array.name
    array.close()
    outbox.put((name, tensor))
    inbox.get()


def test_tensor_outlives_its_killed_producer(kind: str) -> None:
    with Peer(produce, kind) as producer, Peer(hold) as peer:
        name, tensor = producer.outbox.get(timeout=60)
        assert peer.ask(tensor) == 7
        del tensor
        producer.kill()
        gc.collect()
        assert ndshm.gc() == [] and peer.ask("look") == 7
        assert kind == "nameless" or (ndshm.attached(name) and listed(name)["attached"])
    if kind == "counted":
        eventually(lambda: not ndshm.attached(name))
        assert ndshm.gc() == [name]


def produce_for_ever(inbox: Any, outbox: Any, kind: str) -> None:
    for number in range(1, 1_000_000):
        tensor = as_tensor(make(kind, (1000,), "int32", name=f"py-torch-{os.getpid()}-{number}"))
        tensor.fill_(number)
        inbox.put(tensor)
        if kind == "plain":
            ndshm.unlink(f"py-torch-{os.getpid()}-{number}")
        outbox.put(number)


def consume_for_ever(inbox: Any, outbox: Any) -> None:
    held = []
    while True:
        held.append(inbox.get())
        assert held[-1].is_shared() and (held[-1] == held[-1][0]).all()
        del held[:-3]
        outbox.put(0)


@pytest.mark.parametrize("first", ["producer", "consumer"])
def test_killed_processes_leave_orphans_at_most(kind: str, first: str) -> None:
    dice = random.Random(f"{kind} {first}")
    context = torch.multiprocessing.get_context("fork")
    for _ in range(8):
        tensors, numbers = context.Queue(4), context.Queue()
        producer = context.Process(target=produce_for_ever, args=(tensors, numbers, kind))
        consumer = context.Process(target=consume_for_ever, args=(tensors, numbers))
        both = [producer, consumer] if first == "producer" else [consumer, producer]
        for process in both:
            process.start()
        for _ in range(8):
            numbers.get(timeout=60)
        for process in both:
            time.sleep(dice.random() / 20)
            process.kill()
            process.join(60)
        for queue in (tensors, numbers):
            queue.close()
            queue.cancel_join_thread()
        for name in files():
            if kind == "plain":
                assert not ndshm.attached(name) and ndshm.unlink(name)  # killed before it unlinked this one
        eventually(lambda: not ndshm.gc() and not files(), 5)


def test_received_tensor_becomes_the_same_array_again(kind: str) -> None:
    with Peer(produce, kind) as producer:
        name, tensor = producer.outbox.get(timeout=60)
        if kind == "nameless":
            with pytest.raises(ndshm.InvalidArgument, match="whole array"):
                from_tensor(tensor, copy=False)
            return
        array = from_tensor(tensor, copy=False)
        assert array.name == name and array.is_counted == (kind == "counted")
        with array.write() as x:
            x[...] = 8
        assert tensor.sum() == 200
        array.close()
        del array, tensor, x
    if kind == "counted":
        eventually(lambda: name not in files())  # `x` was the last handle to leave, and found that no process has the array


@pytest.mark.parametrize("end", ["tensor first", "array first", "together"])
def test_counted_array_is_removed_with_its_last_tensor(end: str) -> None:
    array = make("counted")
    tensor = as_tensor(array)
    assert len(files()) == 1
    if end == "tensor first":
        del tensor
        assert len(files()) == 1 and ndshm.attached(array.name)
        del array
    elif end == "array first":
        del array
        assert len(files()) == 1
        del tensor
    else:
        del array, tensor
    eventually(lambda: not files(), 1)


def test_manager_removes_the_array_of_a_tensor_that_lived_to_the_end(tmp_path: Path) -> None:
    """torch frees no tensors when the interpreter ends, and nothing runs after that."""
    code = """
import sys
import ndshm, ndshm.torch
tensor = ndshm.torch.as_tensor(ndshm.share_zeros(1000, "float32"))
print("ready", flush=True)
sys.stdin.read()
"""
    socket = tmp_path / "socket"
    environment = os.environ | {"NDSHM_MANAGER": "", "NDSHM_MANAGER_SOCKET": str(socket)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        try:
            eventually(socket.exists)
            time.sleep(0.5)  # until the process has announced itself
            (name,) = files()
            assert ndshm.attached(name)
        finally:
            process.communicate()
    assert process.returncode == 0
    eventually(lambda: not files())
    program = _program.path()
    assert program is not None
    subprocess.run([program, "manager", "stop"], env=environment, check=True, capture_output=True)


def test_many_tensors_leave_neither_files_nor_descriptors() -> None:
    for number in range(300):
        tensor = as_tensor(ndshm.share(np.full(1000, number)))
        assert tensor[999] == number and len(files()) <= 3
    del tensor
    eventually(lambda: not files(), 1)
    assert descriptors() == []


def test_receivers_that_end_later_are_noticed_by_the_next_tensor() -> None:
    with Peer(hold) as peer:
        tensor = as_tensor(ndshm.share(np.ones(10)))
        assert peer.ask(tensor) == 1
        del tensor
        gc.collect()
        assert len(files()) == 1
    tensor = as_tensor(ndshm.share(np.ones(10)))
    eventually(lambda: as_tensor(ndshm.share(np.ones(10))).sum() == 10 and len(files()) <= 2)
    del tensor
    eventually(lambda: not files(), 1)


def fork_and_hold(inbox: Any, outbox: Any, tensor: torch.Tensor) -> None:
    while True:
        outbox.put(float(tensor[0, 0]))
        if inbox.get() == "end":
            return


def test_forked_child_keeps_an_inherited_tensor(kind: str) -> None:
    array = make(kind)
    name = array.name
    tensor = as_tensor(array)
    with Peer(fork_and_hold, tensor, method="fork") as peer:
        assert peer.outbox.get(timeout=60) == 0
        tensor.fill_(7)
        array.close()
        del tensor
        gc.collect()
        assert descriptors() == []
        assert peer.ask("look") == 7 and ndshm.gc() == []
        assert kind == "nameless" or ndshm.attached(name)
        peer.inbox.put("end")
        peer.end()
    if kind == "counted":
        eventually(lambda: not ndshm.attached(name))
        assert ndshm.gc() == [name]


def test_program_that_is_run_does_not_keep_the_array(name: str) -> None:
    array = make("plain")
    tensor = as_tensor(array)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as other:
        array.close()
        assert ndshm.attached(name)
        del tensor
        eventually(lambda: not ndshm.attached(name), 1)
        other.communicate()


def test_torch_cannot_resize_the_file(kind: str) -> None:
    array = make(kind, (4, 6), "int32")
    tensor = as_tensor(array)
    number = tensor.untyped_storage()._share_fd_cpu_()[0]
    length = os.fstat(number).st_size
    for resize in (
        lambda: tensor.resize_(100, 100),
        lambda: tensor.untyped_storage().resize_(100000),
        lambda: tensor.untyped_storage().resize_(4),
        lambda: tensor.set_(tensor.untyped_storage(), 0, (100, 100)),
    ):
        with pytest.raises(RuntimeError, match="not resizable|out of bounds"):
            resize()
        assert os.fstat(number).st_size == length and tensor.untyped_storage().nbytes() == 96
    tensor.resize_(2, 3)  # a part of the storage
    tensor.fill_(7)
    assert array[0].sum() == 42 and array[...].sum() == 42
    assert kind == "plain" or array.refcount == 2  # the trailer is whole


def test_torch_moves_a_tensor_that_is_shared_again_by_name(kind: str, strategy: str) -> None:
    array = make(kind)
    tensor = as_tensor(array)
    assert tensor.share_memory_() is tensor and tensor.is_shared()
    tensor.fill_(7)
    assert array[...].sum() == (175 if strategy == "file_descriptor" else 0)
    assert len(torch_files()) == (strategy == "file_system")


def test_copies_are_private(kind: str) -> None:
    array = make(kind)
    tensor = as_tensor(array)
    for same in (copy.deepcopy(tensor), tensor.clone(), pickle.loads(pickle.dumps(tensor))):
        assert not same.is_shared()
        same.fill_(7)
    assert array[...].sum() == 0
    assert tensor[1:3].is_shared() and tensor.t().is_shared() and tensor.detach().is_shared()


@pytest.mark.parametrize("how", ["read-only", "frozen"])
def test_read_only_array_gives_a_private_tensor_that_says_so(name: str, how: str) -> None:
    if how == "frozen":
        array = make("counted")
        other = pickle.loads(pickle.dumps(array))
        array.freeze()
    else:
        other = make("plain")
        array = ndshm.open(name, readonly=True)
    with pytest.warns(PrivateTensor, match="is not shared") as warned:
        tensor = as_tensor(array)
    assert [warning.filename for warning in warned] == [__file__]
    assert not tensor.is_shared() and tensor.shape == (5, 5)
    tensor.add_(1)
    assert tensor.sum() == 25 and other[...].sum() == 0
    with pytest.raises(ndshm.InvalidArgument):
        from_tensor(tensor, copy=False)
    with Peer(hold) as peer:
        assert peer.ask(tensor) == 1  # copied by torch
    assert other[...].sum() == 0


def test_frozen_later_the_tensor_can_still_write() -> None:
    """torch has a mapping of its own, which `freeze` does not reach."""
    array = make("counted")
    tensor = as_tensor(array)
    array.freeze()
    tensor.fill_(7)
    assert array[...].sum() == 175


def test_tensor_is_written_under_a_guard(kind: str) -> None:
    array = make(kind)
    tensor = as_tensor(array)
    with array.write():
        tensor.add_(1)
        with pytest.raises(ndshm.WouldBlock), array.read(timeout=0):
            pass
    with array.read() as x:
        assert x.sum() == 25
    # The tensor's lease is no lock.
    with array.write(timeout=0):
        pass


def test_unlinked_array_needs_its_descriptor(name: str) -> None:
    array = make("plain")
    tensor = as_tensor(array)
    array.unlink()
    with pytest.raises(ndshm.Unlinked):
        as_tensor(array)
    tensor.fill_(7)
    with pytest.raises(ndshm.InvalidArgument, match="whole array"):
        from_tensor(tensor, copy=False)
    kept = ndshm.create(name, (5, 5), "f4", keep_fd=True)
    # The name leads to another array than the tensor.
    assert from_tensor(tensor).name != name
    kept.unlink()
    other = as_tensor(kept)
    other.fill_(8)
    assert kept[...].sum() == 200 and tensor.sum() == 175


def test_refused_arguments() -> None:
    array = make("counted")
    array.close()
    with pytest.raises(ValueError, match="closed"):
        as_tensor(array)
    with pytest.raises(TypeError, match=r"ndshm\.share"):
        as_tensor(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        from_tensor(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ndshm.InvalidArgument, match="sparse"):
        from_tensor(torch.eye(3).to_sparse())
    with pytest.raises(ndshm.InvalidArgument, match="float8"):
        from_tensor(torch.zeros(3, dtype=torch.float8_e5m2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_tensors_are_copied(dtype: str) -> None:
    tensor = torch.ones(2, 3).to(DTYPES[dtype])
    with pytest.raises(ndshm.InvalidArgument, match="copy=None"):
        from_tensor(tensor, copy=False)
    for source, order in ((tensor, "C"), (tensor.t(), "F"), (tensor[:, :2], "C"), (tensor[:, 0], "C"), (tensor.sum(), "C")):
        if dtype not in ("bool",) and source.dtype != DTYPES[dtype]:
            continue
        array = from_tensor(source)
        assert array.is_counted and array.order == order and array.shape == source.shape
        assert torch.equal(torch.from_dlpack(array), source)
    assert not tensor.is_shared()


def test_torchs_own_shared_tensors_are_copied_and_stay_theirs(strategy: str) -> None:
    tensor = torch.ones(3).share_memory_()
    before = tensor.untyped_storage().data_ptr()
    array = from_tensor(tensor)
    array[...] = 7
    assert tensor.sum() == 3 and tensor.untyped_storage().data_ptr() == before and tensor.is_shared()


def test_parts_and_other_views_of_an_array_are_copied(kind: str) -> None:
    array = make(kind, (4, 6), "complex64")
    tensor = as_tensor(array)
    tensor.fill_(1 + 2j)
    parts = (tensor[1:], tensor[:, :3], tensor[::2], tensor.conj(), torch.view_as_real(tensor).flatten()[1:], tensor.flatten()[:5])
    for part in parts:
        assert part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        with pytest.raises(ndshm.InvalidArgument):
            from_tensor(part, copy=False)
        copied = from_tensor(part)
        assert torch.equal(torch.from_dlpack(copied), part.resolve_conj())
    copied = from_tensor(tensor, copy=True)
    copied[...] = 0
    assert array[0, 0] == 1 + 2j


def test_whole_views_of_a_plain_array_are_the_array(name: str) -> None:
    array = make("plain", (4, 6), "int32")
    tensor = as_tensor(array)
    for view in (tensor.flatten(), tensor.t(), tensor.view(2, 2, 6), tensor.view(torch.float32), tensor.view(torch.uint8)):
        same = from_tensor(view, copy=False)
        assert same.name == name and same.shape == view.shape
        same[...] = 0
        view.fill_(1)
        assert (same[...] == 1).all()


def test_gradients_stay_with_torch(kind: str) -> None:
    array = make(kind)
    tensor = as_tensor(array).requires_grad_()
    (2 * tensor).sum().backward()  # type: ignore[no-untyped-call]
    assert tensor.grad is not None and tensor.grad.sum() == 50
    with torch.no_grad():
        tensor -= tensor.grad
    assert array[...].sum() == -50
    copied = from_tensor((tensor * 2).detach())
    assert copied[...].sum() == -100
    assert from_tensor(tensor)[...].sum() == -50
    assert from_tensor(tensor * 2)[...].sum() == -100  # not a leaf


def test_import_of_ndshm_does_not_import_torch() -> None:
    code = "import sys, ndshm; ndshm.torch.as_tensor; assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)
