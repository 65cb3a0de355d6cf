"""The typed program, which mypy and pyright check beside the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_typed_program_runs_without_warnings(name: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("typed_program.py")
    done = subprocess.run([sys.executable, "-W", "error", str(program), name, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
