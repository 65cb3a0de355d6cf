"""Descriptors with a lease of their own, for libraries that map an array by themselves, and what is done without torch."""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import ndshm
import ndshm.torch
from ndshm import _core, _program


def listed(name: str) -> bool:
    program = _program.path()
    assert program is not None
    done = subprocess.run([program, "ls", "--json", name], capture_output=True, text=True, check=True)
    return '"attached": true' in done.stdout


def receiver(name: str) -> subprocess.Popen[str]:
    """Start a process that receives a descriptor at a socket, maps its file, and says the first byte for each line that it gets."""
    code = """
import mmap, socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    (number,) = socket.recv_fds(client, 1, 1)[1]
view = mmap.mmap(number, 16)
for _ in sys.stdin:
    print(view[0], flush=True)
"""
    return subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def look(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("look\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.program
@pytest.mark.parametrize("is_counted", [False, True])
def test_lent_array_is_attached_in_each_process_that_has_the_descriptor(name: str, is_counted: bool, tmp_path: Path) -> None:
    array = ndshm.share_zeros(16, "u1") if is_counted else ndshm.create(name, 16, "u1")
    array[0] = 7
    name = array.name
    number, loan = array._leased_descriptor()
    assert (loan is not None) == is_counted
    view = mmap.mmap(number, 16)  # duplicates the descriptor, as torch does
    os.close(number)
    array.close()
    assert ndshm.attached(name) and listed(name) and name not in ndshm.gc(in_flight=True) and view[0] == 7

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        with receiver(str(tmp_path / "socket")) as process, server.accept()[0] as peer:
            numbers = [int(entry) for entry in os.listdir("/proc/self/fd") if leads_to(entry, name)]
            assert len(numbers) == 1
            socket.send_fds(peer, [b"x"], numbers)
            assert look(process) == "7"
            view.close()
            assert loan is None or not loan.settle()
            assert ndshm.attached(name) and listed(name) and name not in ndshm.gc(in_flight=True)
            process.kill()
    assert not ndshm.attached(name)
    if loan is not None:
        assert loan.settle() and not Path("/dev/shm", name).exists()
        assert loan.settle()  # there is nothing more to do


def leads_to(entry: str, name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{entry}") == f"/dev/shm/{name}"
    except FileNotFoundError:  # the listing's own
        return False


def test_nameless_array_is_lent_and_leaves_nothing() -> None:
    before = set(os.listdir("/dev/shm"))
    array = ndshm.share_zeros(16, "u1", strategy="file_descriptor")
    number, loan = array._leased_descriptor()
    assert loan is not None and loan.settle()
    array[3] = 7
    array.close()
    with mmap.mmap(number, 16) as view:
        os.close(number)
        assert view[3] == 7
    assert not {file for file in set(os.listdir("/dev/shm")) - before if file.startswith(f"py-{os.getpid()}")}


def test_array_that_gets_its_name_while_it_is_lent_is_removed_after_the_loan() -> None:
    array = ndshm.share_zeros(16, "u1", strategy="file_descriptor")
    number, loan = array._leased_descriptor()
    same = pickle.loads(pickle.dumps(array))
    name = same.name
    ndshm.in_flight.clear()
    array.close()
    same.close()
    assert loan is not None and not loan.settle() and name in os.listdir("/dev/shm")
    os.close(number)
    assert loan.settle() and name not in os.listdir("/dev/shm")


def test_unlinked_array_is_lent_through_its_descriptor_only(name: str) -> None:
    array = ndshm.create(name, 16, "u1")
    array.unlink()
    with pytest.raises(ndshm.Unlinked):
        array._leased_descriptor()
    array = ndshm.create(name, 16, "u1", keep_fd=True)
    array.unlink()
    os.close(array._leased_descriptor()[0])
    array.close()
    with pytest.raises(ValueError, match="closed"):
        array._leased_descriptor()


def test_identity_is_that_of_the_file(name: str) -> None:
    array = ndshm.create(name, 16, "u1")
    facts = os.stat(f"/dev/shm/{name}")
    assert array._file_id == (facts.st_dev, facts.st_ino)


class Box(list[mmap.mmap]):
    """Freed after its weak references died, as a storage of torch is."""


@pytest.mark.parametrize("soon", [False, True])
def test_call_comes_when_the_memory_is_freed(name: str, soon: bool) -> None:
    """Other than that of an ordinary weak reference."""
    number, _ = ndshm.create(name, 16, "u1")._leased_descriptor()
    box = Box([mmap.mmap(number, 16)])
    os.close(number)
    lent: list[bool] = []

    def call(*_: object) -> None:
        lent.append(any(leads_to(entry, name) for entry in os.listdir("/proc/self/fd")))

    reference = weakref.ref(box, _core.Soon(call) if soon else call)
    del box
    for _ in range(10):
        pass  # the interpreter makes pending calls in loops
    assert lent == [not soon] and reference() is None


def test_no_call_is_lost() -> None:
    """The interpreter has room for 32 pending calls."""
    marks: list[str] = []
    boxes = [Box() for _ in range(100)]
    references = [weakref.ref(box, _core.Soon(lambda: marks.append("called"))) for box in boxes]
    boxes.clear()
    for _ in range(10):
        pass
    assert len(marks) == len(references) == 100


def test_without_torch_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    array = ndshm.share_zeros(3, "f4")
    with pytest.raises(ImportError, match=r"ndshm\.torch needs torch"):
        ndshm.torch.as_tensor(array)
    with pytest.raises(ImportError, match=r"ndshm\.torch needs torch"):
        ndshm.torch.from_tensor(array)
