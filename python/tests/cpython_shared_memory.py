"""Runs CPython's tests of ``multiprocessing.shared_memory`` with `ndshm.SharedMemory` in the place of its class: `python ... METHOD`.

METHOD is a start method. ``ShareableList`` and ``SharedMemoryManager`` build on our class here. test_shared_memory.py starts this.
"""

from __future__ import annotations

import sys
import unittest
from multiprocessing import shared_memory
from typing import Any

import ndshm

# At the top level, so that spawned children do the same.
setattr(shared_memory, "SharedMemory", ndshm.SharedMemory)  # noqa: B010

#: The cases that do not apply, and why. test_shared_memory.py has their other claims.
DESELECTED = {
    "test_shared_memory_basics": "replaces the private function `_make_filename`, and derives a class with other private `_flags`",
    "test_shared_memory_recreate": "replaces the private function `_make_filename`",
    "test_shared_memory_cleaned_after_process_termination": "expects the resource tracker to remove the block, and to print a warning",
}


def main(method: str) -> bool:
    from test import _test_multiprocessing

    module: dict[str, Any] = {"__name__": __name__}
    _test_multiprocessing.install_tests_in_module_dict(module, method, only_type="processes")
    cases = module["WithProcessesTestSharedMemory"]
    names = unittest.TestLoader().getTestCaseNames(cases)
    assert set(DESELECTED) <= set(names), f"renamed: {set(DESELECTED) - set(names)}"
    for name, reason in DESELECTED.items():
        print(f"deselected: {name}: it {reason}")
    module["setUpModule"]()
    suite = unittest.TestSuite(cases(name) for name in names if name not in DESELECTED)
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(suite)
    module["tearDownModule"]()
    print(f"passed: {result.testsRun - len(result.skipped) if result.wasSuccessful() else 0}")
    return result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
