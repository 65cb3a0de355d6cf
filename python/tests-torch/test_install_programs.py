"""Programs of torch learn the same with the line `import ndshm; ndshm.torch.install()` and without it.

The programs are in `programs/`. They do not know ndshm: the line is put in front of a copy. Each has a /dev/shm of its own.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from ways import each_way, run

PROGRAMS = Path(__file__).with_name("programs")

#: The line of each way. It comes after the imports of a program.
LINES = {
    "ndshm": "import ndshm; ndshm.torch.install()",
    "file_descriptor": "import torch.multiprocessing; torch.multiprocessing.set_sharing_strategy('file_descriptor')",
    "file_system": "import torch.multiprocessing; torch.multiprocessing.set_sharing_strategy('file_system')",
}


def with_line(program: str, line: str, directory: Path) -> Path:
    """Copy a program, and put a line before its first definition, so that it is a line of the module in every process."""
    text = (PROGRAMS / program).read_text(encoding="utf-8")
    imports, rest = text.split("\n\n\n", 1)
    copy = directory / program
    copy.write_text(f"{imports}\n{line}\n\n\n{rest}", encoding="utf-8")
    return copy


def losses(program: str, line: str, directory: Path, *arguments: object) -> list[list[float]]:
    """Run a program, and return the numbers that it prints."""
    directory.mkdir(exist_ok=True)
    printed = run(with_line(program, line, directory), *arguments, directory=directory, timeout=60)
    found = [[float(word) for word in text.split()[1:] if word[0].isdigit()] for text in printed.splitlines() if text.startswith("loss ")]
    assert found, printed
    return found


def compare(program: str, way: str, directory: Path, *arguments: object) -> list[list[float]]:
    """Run a program with the line and without it, and fail unless it learns the same."""
    plain = losses(program, "", directory / "plain", *arguments)
    own = losses(program, LINES[way], directory / "own", *arguments)
    assert len(own) == len(plain)
    for one, other in zip(own, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    return own


def write_mnist(directory: Path) -> None:
    """Write files of MNIST's format: each digit is a bar at its own place, with noise."""
    rng = np.random.default_rng(1)
    for name, length in (("train", 640), ("t10k", 200)):
        labels = rng.integers(0, 10, length).astype("u1")
        images = rng.integers(0, 60, (length, 28, 28)).astype("u1")
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 3 : 2 * label + 6, 4:24] = 220
        (directory / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, length, 28, 28) + images.tobytes())
        (directory / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, length) + labels.tobytes())


@each_way()
def test_mnist_learns_the_same(way: str, tmp_path: Path) -> None:
    write_mnist(tmp_path)
    found = compare("mnist.py", way, tmp_path, tmp_path)
    assert found[-1][0] < found[0][-1]


@each_way()
def test_hogwild_of_one_process_learns_the_same(way: str, tmp_path: Path) -> None:
    before, after = compare("hogwild.py", way, tmp_path, "--processes", 1)
    assert after[0] < 0.8 * before[0]


@each_way()
def test_hogwild_of_three_processes_learns(way: str, tmp_path: Path) -> None:
    """Without locks the losses are others each time."""
    before, after = losses("hogwild.py", LINES[way], tmp_path / "own", "--processes", 3)
    assert after[0] < 0.8 * before[0]


@each_way()
def test_loaders_of_lightning_learn_the_same(way: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="NOT RUN: lightning is not installed")
    compare("lightning_fit.py", way, tmp_path)
