"""Runs CPython's tests of ``multiprocessing.shared_memory`` with `ndshm.SharedMemory` in the place of its class: `python ... METHOD`.

They are those of the Python that runs this, all of them. METHOD is a start method. ``ShareableList`` and ``SharedMemoryManager`` build on our class here. test_shared_memory.py starts this.
"""

from __future__ import annotations

import sys
import unittest
from multiprocessing import shared_memory
from typing import Any

import ndshm

# At the top level, so that spawned children do the same.
setattr(shared_memory, "SharedMemory", ndshm.SharedMemory)  # noqa: B010


def main(method: str) -> bool:
    from test import _test_multiprocessing

    module: dict[str, Any] = {"__name__": __name__}
    _test_multiprocessing.install_tests_in_module_dict(module, method, only_type="processes")
    cases = module["WithProcessesTestSharedMemory"]
    suite = unittest.TestLoader().loadTestsFromTestCase(cases)
    module["setUpModule"]()
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(suite)
    module["tearDownModule"]()
    print(f"passed: {result.testsRun - len(result.skipped) if result.wasSuccessful() else 0} of {result.testsRun}")
    return result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
