"""Runs a program with a /dev/shm of its own that has 300 MiB, room for five arrays of 50 MiB."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from test_sharedmemory_module import private_mounts

#: How many times a loop sends its eight arrays. `scripts/test-python --all` does so 100 times.
ROUNDS = 100 if os.environ.get("NDSHM_TEST_ALL") else 4


def run(program: str, directory: Path) -> list[str]:
    """Run a program, in which ROUNDS is defined, and return the lines that it printed."""
    mounts = private_mounts()
    if mounts is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("NOT RUN: private mounts cannot be had")
    file = directory / "program.py"
    file.write_text(f"ROUNDS = {ROUNDS}\n{textwrap.dedent(program)}", encoding="utf-8")
    script = 'mount -t tmpfs -o size=300m none /dev/shm && exec "$0" "$1"'
    command = [*mounts, "--propagation", "private", "sh", "-e", "-c", script, sys.executable, str(file)]
    environment = {**os.environ, "NDSHM_MANAGER": "off", "TMPDIR": str(directory), "JOBLIB_TEMP_FOLDER": str(directory)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
