"""What a user reads when something fails."""

import os
from pathlib import Path

from ndshm import _core

MESSAGES = Path(__file__).with_name("errors.txt")


def test_messages_of_all_kinds_are_as_written_down() -> None:
    """With NDSHM_TEST_WRITE_MESSAGES=1 the test writes the file."""
    messages = "".join(f"{type(error).__name__}: {error}\n" for error in _core.one_exception_of_each_kind())
    if "NDSHM_TEST_WRITE_MESSAGES" in os.environ:
        MESSAGES.write_text(messages, encoding="utf-8")
    assert messages == MESSAGES.read_text(encoding="utf-8")
