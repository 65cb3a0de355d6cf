"""The programs in the pages about Python run without errors."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from conftest import counted_arrays, shared_files

ROOT = Path(__file__).parents[2]


def programs(page: str) -> list[str]:
    return [part.split("```", 1)[0] for part in (ROOT / page).read_text(encoding="utf-8").split("```python\n")[1:]]


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in ("docs/guide/python.md", "python/README.md") for number in range(len(programs(page)))],
)
def test_programs_of_the_guide_run_and_leave_nothing(page: str, number: int, tmp_path: Path) -> None:
    text = programs(page)[number]
    names = set(re.findall(r'(?:create|paint|open|RenderBuffer|SharedMemory|ChunkCache)\("([^"]+)"', text))
    assert names or re.search(r"ndshm\.(share|share_zeros|create_volume|multiprocessing\.install|SharedList)\(", text)
    # A file, because spawned processes import it.
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    before = counted_arrays()
    subprocess.run([sys.executable, "-W", "error", program], check=True, cwd=tmp_path, timeout=120)
    assert not {file for file in shared_files() if any(file.endswith(name) for name in names)}
    ndshm.gc()  # the end of `with multiprocessing.Pool()` kills workers, perhaps with an array
    assert counted_arrays() <= before


def test_program_of_the_readme_prints_its_element_and_leaves_nothing(name: str) -> None:
    program, _ = programs("README.md")
    assert "my-example" in program
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace("my-example", name)], check=True, capture_output=True, text=True
    )
    assert out.stdout == "42.0\n"
    with pytest.raises(ndshm.NotFound):
        ndshm.open(name)


def write_n5(path: Path, x: np.ndarray) -> None:
    """A volume of one raw block."""
    path.mkdir()
    attributes = {"dimensions": x.shape, "blockSize": x.shape, "dataType": "uint8", "compression": {"type": "raw"}}
    (path / "attributes.json").write_text(json.dumps(attributes))
    block = path.joinpath(*"0" * (x.ndim - 1))
    block.mkdir(parents=True)
    header = struct.pack(f">HH{x.ndim}I", 0, x.ndim, *x.shape)
    (block / "0").write_bytes(header + x.tobytes(order="F"))


KINDS = ("precomputed", "zarr", "zarr of four axes", "n5")


def volume_of(kind: str, place: Path) -> tuple[str, str, np.ndarray]:
    """A volume's URL, the URL of a copy, and its elements."""
    x = np.random.default_rng(1).integers(0, 256, (60, 50, 40), dtype="uint8")
    if kind == "precomputed":
        source = f"precomputed://{place / 'em'}"
        settings: dict[str, Any] = {"origin": (100, 200, -7), "resolution": (4, 4, 40), "encoding": "gzip"}
        ndshm.upload(ndshm.create_volume(source, x.shape, (32, 32, 16), x.dtype, **settings), x).result()
        return source, f"precomputed://{place / 'inverted'}", x
    if kind == "n5":
        write_n5(place / "em.n5", x)
        return f"n5://{place / 'em.n5'}", f"{place / 'inverted.zarr'}", x
    x = x[None] if "four" in kind else x
    chunk = (1, 32, 32, 32)[-x.ndim :]
    ndshm.upload(ndshm.create_volume(place / "em.zarr", x.shape, chunk, x.dtype, encoding="zstd"), x).result()
    return f"{place / 'em.zarr'}", f"{place / 'inverted.zarr'}", x


@pytest.mark.parametrize("kind", KINDS)
def test_way_of_the_readme_leads_through_many_processes(kind: str, tmp_path: Path) -> None:
    _, text = programs("README.md")
    assert len([line for line in text.splitlines() if line.strip()]) <= 14
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    before = counted_arrays()
    source, copy, x = volume_of(kind, tmp_path)
    command = [sys.executable, "-W", "error", program, source, copy]
    out = subprocess.run(command, check=True, cwd=tmp_path, timeout=120, capture_output=True, text=True).stdout
    assert "UploadReport" in out
    np.testing.assert_array_equal(np.squeeze(ndshm.download(copy).result()[...]), np.squeeze(255 - x))
    scales = [ndshm.info(url).scales[0] for url in (source, copy)]
    assert scales[0].chunk == scales[1].chunk
    if kind == "precomputed":
        assert (scales[0].origin, scales[0].resolution) == (scales[1].origin, scales[1].resolution)
    assert counted_arrays() <= before


def test_way_of_the_readme_leaves_nothing_after_an_exception(tmp_path: Path) -> None:
    _, text = programs("README.md")
    program = tmp_path / "program.py"
    program.write_text(text.replace("numpy.invert(", "numpy.no_such_function("), encoding="utf-8")
    before = counted_arrays()
    source, copy, _ = volume_of("precomputed", tmp_path)
    command = [sys.executable, program, source, copy]
    ended = subprocess.run(command, check=False, cwd=tmp_path, timeout=120, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "no_such_function" in ended.stderr
    assert counted_arrays() <= before
