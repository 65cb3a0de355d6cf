"""A physicist with four jobs of a batch system that paint one field. The jobs know nothing of one another, and any of them may start last, or after
the end. Follows "Many processes paint one array" in docs/guide/python.md and docs/guide/rendering.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ndshm

#: What the guide shows, for a field of the physicist.
JOB = '''
import sys

import numpy

import ndshm

name, step = sys.argv[1:]
buffer = ndshm.RenderBuffer(name, (64, 32), (8, 32), "float32", fingerprint=f"heat, step {step}", exist_ok=True)
painted = 0
for claim in buffer.claims():
    with claim as x:
        x[...] = numpy.arange(claim.region[0].start, claim.region[0].stop)[:, None] * float(step)
    painted += 1
field = buffer.finish()
print(painted, float(field[63, 0]))
'''


def start(script: Path, name: str, step: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), name, str(step)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def painted(*jobs: subprocess.Popen[str]) -> int:
    """Wait for the end of all jobs, and return how many chunks they have painted."""
    ends = [(*job.communicate(timeout=120), job.returncode) for job in jobs]
    for out, err, code in ends:
        assert code == 0 and float(out.split()[1]) == 63, err
    return sum(int(out.split()[0]) for out, _, _ in ends)


def test_four_jobs_paint_one_field_and_one_starts_after_the_end(tmp_path: Path, name: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB, encoding="utf-8")
    jobs = [start(script, name) for _ in range(3)]
    assert painted(*jobs) == 8
    late = start(script, name)
    assert painted(late) == 0
    np.testing.assert_array_equal(ndshm.open(name)[:, 5], np.arange(64))

    # Another step under the same name is no accident of the batch system: it is an error that says what to do.
    other = start(script, name, step=2)
    _, err = other.communicate(timeout=120)
    assert other.returncode == 1
    assert "ndshm.Mismatch" in err.replace("ndshm._errors.", "ndshm.") and f'ndshm.unlink("{name}") removes it' in err, err


def test_job_that_was_killed_is_found_and_removed(tmp_path: Path, name: str) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB.replace("    painted += 1", "    painted += 1\n    sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script), name, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None and job.stdout.read(1) == b"x"
        with pytest.raises(ndshm.Mismatch, match="a process is attached"):
            ndshm.RenderBuffer(name, (64, 32), (8, 32), "float32", fingerprint="heat, step 2", replace=True)
        job.kill()
    [row] = [row for row in ndshm.ls(partial=True) if row.name == name]
    assert row.fingerprint == "heat, step 1" and row.progress == (1, 8) and not row.attached
    assert ndshm.unlink(name, partial=True)


#: Waits for a field of another program, as docs/guide/troubleshooting.md says: a missing name is `NotFound`.
VIEWER = """
import sys

import ndshm

try:
    print(ndshm.open(sys.argv[1]).shape)
except ndshm.NotFound as error:  # a loop would go on waiting
    print(type(error).__name__, error)
"""


def test_viewer_with_another_directory_is_told_where_the_field_is(tmp_path: Path, name: str) -> None:
    ndshm.create(name, (4, 4), "float32")
    for emulate, words in [("0", ["(4, 4)"]), ("1", ["Elsewhere", "there is one in /dev/shm", "EMULATE_SHM=0 chooses"])]:
        settings = {**os.environ, "EMULATE_SHM": emulate, "NDSHM_EMULATED_DIR": str(tmp_path / "emulated")}
        said = subprocess.run([sys.executable, "-c", VIEWER, name], env=settings, capture_output=True, text=True, check=True).stdout
        assert all(word in said for word in words), said
    with pytest.raises(ndshm.NotFound) as nowhere:
        ndshm.open(f"{name}-never")
    assert type(nowhere.value) is ndshm.NotFound
