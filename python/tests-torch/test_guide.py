"""The programs about torch in the guide run without errors, and leave nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from peers import files

GUIDE = Path(__file__).parents[2] / "docs/guide/python.md"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_programs_of_the_guide(method: str, tmp_path: Path) -> None:
    texts = [part.split("```", 1)[0] for part in GUIDE.read_text(encoding="utf-8").split("```py\n")[1:]]
    programs = [text for text in texts if "cuda" not in text]
    assert len(programs) == 2
    for text in programs:
        program = tmp_path / "program.py"
        program.write_text(text.replace("torch.multiprocessing.Process", f'torch.multiprocessing.get_context("{method}").Process'))
        subprocess.run([sys.executable, "-W", "error", program], check=True, timeout=120)
        assert files() == []
