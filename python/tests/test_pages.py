"""The programs in the pages about Python run without errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ndshm
from conftest import shared_files

ROOT = Path(__file__).parents[2]


def programs(page: str) -> list[str]:
    return [part.split("```", 1)[0] for part in (ROOT / page).read_text(encoding="utf-8").split("```python\n")[1:]]


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in ("docs/guide/python.md", "python/README.md") for number in range(len(programs(page)))],
)
def test_programs_of_the_guide_run_and_leave_nothing(page: str, number: int, tmp_path: Path) -> None:
    text = programs(page)[number]
    names = set(re.findall(r'(?:create|paint|open|RenderBuffer|SharedMemory)\("([^"]+)"', text))
    assert names or re.search(r"ndshm\.(share|share_zeros|multiprocessing\.install|SharedList)\(", text)
    # A file, because spawned processes import it.
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    before = shared_files()
    subprocess.run([sys.executable, "-W", "error", program], check=True, cwd=tmp_path, timeout=120)
    assert not {file for file in shared_files() if any(file.endswith(name) for name in names)}
    assert not {file for file in shared_files() - before if re.fullmatch(r"ndshm-[0-9a-f]+", file)}


def test_program_of_the_readme_changes_the_array(name: str) -> None:
    program, _ = programs("README.md")
    assert "my-example" in program
    array = ndshm.create(name, (10, 10, 10), "f4")
    array[1, 2, 3] = 42
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace("my-example", name)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.stdout == "43.0\n"
    assert array[1, 2, 3] == 43


def test_way_of_the_readme_leads_through_many_processes(name: str, tmp_path: Path) -> None:
    _, text = programs("README.md")
    assert '"em"' in text and len([line for line in text.splitlines() if line.strip()]) <= 15
    program = tmp_path / "program.py"
    program.write_text(text.replace('"em"', repr(name)), encoding="utf-8")
    x = np.random.default_rng(1).integers(0, 256, (80, 70, 60)).astype("uint8")
    ndshm.upload(ndshm.create_volume(tmp_path / "em", x.shape, (32, 32, 32), x.dtype), x).result()
    out = subprocess.run(
        [sys.executable, "-W", "error", program, tmp_path / "em"], check=True, cwd=tmp_path, timeout=120, capture_output=True, text=True
    ).stdout
    assert "UploadReport" in out
    np.testing.assert_array_equal(ndshm.download(tmp_path / "inverted.zarr").result()[...], 255 - x[:64])
