"""The native program in the wheel: the manager that the package starts, and the doctor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_fd_to_metric_families

import ndshm
from ndshm import _program

pytestmark = pytest.mark.program


def test_program_is_found_by_the_place_of_the_package() -> None:
    program = _program.path()
    assert program is not None and Path(program).parent == Path(sys.prefix, "bin")
    # A native program: it starts without a Python.
    assert Path(program).read_bytes()[:4] == b"\x7fELF"
    version = subprocess.run([program, "--version"], env={}, capture_output=True, text=True, check=True)
    assert version.stdout.startswith("ndshm ")


def test_doctor_returns_the_report_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    report = ndshm.doctor()
    assert report["healthy"] in (True, False) and any(check["name"] == "backend" for check in report["checks"])
    monkeypatch.setattr(_program, "path", lambda: None)
    with pytest.raises(ndshm.Unsupported, match="comes with the wheel"):
        ndshm.doctor()


def test_metrics_are_what_collectors_read(tmp_path: Path) -> None:
    program = _program.path()
    assert program is not None
    environment = {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(tmp_path / "shm")}
    odd = 'tissue "\\ é'
    make = f"import ndshm; ndshm.create({odd!r}, (1000,), 'u1')"
    subprocess.run([sys.executable, "-c", make], env=environment, check=True, timeout=60)
    file = tmp_path / "ndshm.prom"
    subprocess.run([program, "ls", f"--metrics={file}", "--names", "--backend", "emulated"], env=environment, check=True, timeout=60)
    with file.open() as text:
        families = {family.name: family for family in text_fd_to_metric_families(text)}
    (names,) = families["ndshm_names"].samples
    assert (names.labels, names.value) == ({"backend": "emulated", "kind": "array"}, 1)
    (each,) = families["ndshm_name_allocated_bytes"].samples
    assert each.labels["name"] == odd and each.value >= 1000 and families["ndshm_name_allocated_bytes"].unit == "bytes"
    assert families["ndshm_total_bytes"].samples[0].value >= families["ndshm_free_bytes"].samples[0].value > 0


def test_sweep_removes_what_a_killed_process_left_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import sys, time
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(sys.argv[1], create=True, size=5000)
resource_tracker.unregister(memory._name, "shared_memory")
print("ready", flush=True)
time.sleep(60)
"""
    names = [f"psm_ndshm-test-{os.getpid()}-{kind}" for kind in ("dead", "alive")]
    start = [sys.executable, "-c", code]
    with (
        subprocess.Popen([*start, names[0]], stdout=subprocess.PIPE) as dead,
        subprocess.Popen([*start, names[1]], stdout=subprocess.PIPE) as alive,
    ):
        try:
            for child in (dead, alive):
                assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            dead.kill()
            dead.wait()
            pattern = f"psm_ndshm-test-{os.getpid()}-*"
            young = ndshm.sweep(pattern)
            assert [file["finding"] for file in young["kept"]] == ["young", "young"]
            dry = ndshm.sweep(pattern, family="python", older_than=0, dry_run=True)
            assert [file["name"] for file in dry["removed"]] == names[:1] and Path("/dev/shm", names[0]).exists()
            report = ndshm.sweep(pattern, family=["python"], older_than=0)
            assert [file["name"] for file in report["removed"]] == names[:1] and not Path("/dev/shm", names[0]).exists()
            assert [file["holders"][0]["pid"] for file in report["kept"]] == [alive.pid]
            assert ndshm.sweep(older_than=0)["listed"] is True and Path("/dev/shm", names[1]).exists()
        finally:
            alive.kill()
            alive.wait()
            for name in names:
                Path("/dev/shm", name).unlink(missing_ok=True)
    for wrong in ("no such family", "semaphore"):
        with pytest.raises(ndshm.InvalidArgument, match=wrong):
            ndshm.sweep(family=wrong)
    with pytest.raises(ndshm.InvalidArgument, match="seconds"):
        ndshm.sweep(older_than=-1)
    with pytest.raises(ndshm.InvalidArgument):
        ndshm.sweep("[a")
    monkeypatch.setattr(_program, "path", lambda: None)
    with pytest.raises(ndshm.Unsupported, match="comes with the wheel"):
        ndshm.sweep("x")


@pytest.mark.parametrize(("value", "chosen"), [("", True), ("on", True), ("Yes", True), ("true", True), ("1", True), ("off", False), ("/x", False)])
def test_manager_that_is_switched_on_is_that_of_the_wheel(monkeypatch: pytest.MonkeyPatch, value: str, chosen: bool) -> None:
    given: list[str | None] = []
    monkeypatch.setattr(_program._core, "set_manager", given.append)
    monkeypatch.setenv("NDSHM_MANAGER", value)
    _program.choose_manager()
    assert given == ([_program.path()] if chosen else [])


def test_manager_frees_arrays_of_killed_processes(tmp_path: Path) -> None:
    """With an empty PATH and a Python that is no venv: the program is found all the same."""
    code = """
import sys, time
import numpy, ndshm
array = ndshm.share(numpy.ones(1000))
print(array.name, flush=True)
time.sleep(60)
"""
    environment = {"PYTHONPATH": str(Path(ndshm.__file__).parent.parent), "NDSHM_MANAGER_SOCKET": str(tmp_path / "socket"), "PATH": ""}
    python = os.path.realpath(sys.executable)
    with subprocess.Popen([python, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        array = Path("/dev/shm", name)
        try:
            assert array.exists()
            end = time.monotonic() + 30
            while not (tmp_path / "socket").exists() and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.5)  # until the process has announced itself
        finally:
            child.send_signal(signal.SIGKILL)
        child.wait()
        start = time.monotonic()
        while array.exists() and time.monotonic() < start + 30:
            time.sleep(0.01)
        assert not array.exists()
    program = _program.path()
    assert program is not None
    subprocess.run([program, "manager", "stop"], env=environment, check=True, capture_output=True)
