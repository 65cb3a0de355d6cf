"""`ndshm.sweep` beside real programs: what killed ones leave is removed, and living ones never notice."""

from __future__ import annotations

import os
from pathlib import Path

import small_shm

# Rounds of killing: `scripts/test-python --all` does 100.
ROUNDS = 100 if os.environ.get("NDSHM_TEST_ALL") else 4

DRIVER = '''
import os, random, signal, subprocess, sys, time
from pathlib import Path
import ndshm

FAMILIES = ["python", "joblib"]
os.environ["JOBLIB_TEMP_FOLDER"] = "/dev/shm"  # as where it is large
SHM = Path("/dev/shm")
# A pid in a name says something in the first pid namespace only.
FIRST = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"

MEMORY = """
import os, sys
from multiprocessing import get_context, shared_memory
def add(name):
    memory = shared_memory.SharedMemory(name)
    memory.buf[1] = memory.buf[0] + 1
    memory.close()
if __name__ == "__main__":
    with get_context("fork").Pool(2) as pool:
        while True:
            memory = shared_memory.SharedMemory(create=True, size=100_000)
            memory.buf[0] = 5
            pool.apply(add, (memory.name,))
            assert memory.buf[1] == 6
            memory.close()
            memory.unlink()
            print("turn", flush=True)
"""
JOBLIB = """
import numpy
from joblib import Parallel, delayed
def total(x):
    return float(x.sum())
if __name__ == "__main__":
    x = numpy.random.default_rng(5).random(50_000)  # the workers map its file
    with Parallel(n_jobs=2, max_nbytes=1000) as parallel:
        while True:
            assert parallel(delayed(total)(x) for _ in range(4)) == [total(x)] * 4
            print("turn", flush=True)
"""
PROGRAMS = {}
for name, text in (("memory", MEMORY), ("joblib", JOBLIB)):
    PROGRAMS[name] = f"{name}_program.py"
    Path(PROGRAMS[name]).write_text(text)

def start(name, errors=subprocess.DEVNULL):
    program = subprocess.Popen([sys.executable, PROGRAMS[name]], stdout=subprocess.PIPE, stderr=errors, start_new_session=True, text=True)
    assert program.stdout.readline() == "turn\\n"
    return program

def end(program):
    os.killpg(program.pid, signal.SIGKILL)
    program.communicate()
    while any(Path("/proc", pid, "stat").exists() and Path("/proc", pid, "stat").read_text().rsplit(")", 1)[1].split()[3] == str(program.pid)
              for pid in os.listdir("/proc") if pid.isdigit()):
        time.sleep(0.01)  # processes of its session that are ending

def living(program):
    # What it has printed so far is read, and then one turn more: it goes on.
    os.set_blocking(program.stdout.fileno(), False)
    while program.stdout.buffer.read1(1 << 16):
        pass
    os.set_blocking(program.stdout.fileno(), True)
    return program.poll() is None and program.stdout.buffer.readline().endswith(b"turn\\n")

stays = {name: start(name, errors=None) for name in PROGRAMS}
stopped = start("memory")
removed = dict.fromkeys(PROGRAMS, 0)
for turn in range(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS):
    name = list(PROGRAMS)[turn % 2]
    before = set(os.listdir(SHM))
    program = start(name)
    if turn == 1:
        os.killpg(stopped.pid, signal.SIGSTOP)
    time.sleep(random.random() * 0.2)
    end(program)
    time.sleep(1.1)
    report = ndshm.sweep(family=FAMILIES, older_than=1)
    gone = [file["name"] for file in report["removed"]]
    removed[name] += any(file.startswith("psm_") for file in gone) if name == "memory" else any(str(program.pid) in file.split("_") for file in gone)
    assert not report["failed"], report["failed"]
    assert all(living(program) for program in stays.values()), (turn, name, gone)
    # What it left is gone. A living program's names come and go meanwhile.
    left = ndshm.sweep(family=FAMILIES, older_than=1, dry_run=True)
    assert not left["removed"], [file["name"] for file in left["removed"]]
    dead = [file for file in left["kept"] if str(program.pid) in file["name"].split("_")]
    assert not dead or not FIRST, [(file["name"], file["finding"]) for file in dead]
os.killpg(stopped.pid, signal.SIGCONT)
assert living(stopped)
for program in (*stays.values(), stopped):
    end(program)
time.sleep(1.1)
ndshm.sweep(family=FAMILIES, older_than=1)
names = [name for name in os.listdir(SHM) if FIRST or not name.startswith("joblib")]
print(removed["joblib"] > 0 or not FIRST, [name for name in names if not name.startswith("sem.")])
'''


def test_killed_programs_leave_nothing_and_living_ones_go_on(tmp_path: Path) -> None:
    assert small_shm.run(DRIVER.replace("TURNS", str(ROUNDS)), tmp_path) == ["True []"]
