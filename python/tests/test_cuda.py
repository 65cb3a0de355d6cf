"""Without NVIDIA's driver: `ndshm.cuda` says what is missing. With a test double of the driver, `python/tests-cuda` says more."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

import ndshm


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has NVIDIA's driver")
def test_import_without_a_driver_says_what_is_missing() -> None:
    with pytest.raises(ImportError, match="ndshm.cuda cannot be used here: the CUDA driver is not installed.*install NVIDIA's driver"):
        import ndshm.cuda  # noqa: F401
    with pytest.raises(ImportError, match="install NVIDIA's driver"):  # again, not a half-made module
        import ndshm.cuda  # noqa: F401, F811


def test_package_does_not_load_the_driver() -> None:
    program = "import ndshm, sys; print('ndshm.cuda' in sys.modules, 'libcuda' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    assert issubclass(ndshm.CudaError, RuntimeError)
