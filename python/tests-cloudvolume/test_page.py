"""The programs in the page about CloudVolume run without errors, and leave nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/guide/cloudvolume.md"
PROGRAMS = [part.split("```", 1)[0] for part in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_program_runs_and_leaves_nothing(program: str, tmp_path: Path) -> None:
    text = program.replace("/tmp/ndshm-guide", str(tmp_path))
    before = set(os.listdir("/dev/shm"))
    # CloudVolume itself gives warnings.
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning:ndshm", "-c", text], check=True, cwd=tmp_path, timeout=120)
    assert not [file for file in set(os.listdir("/dev/shm")) - before if file.startswith(("guide-", ".ndshm-"))]
