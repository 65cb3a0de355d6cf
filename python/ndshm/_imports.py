"""A lock for imports that are made when they are first needed.

A child that is forked while another thread imports a module would wait for that import for ever. So a fork waits for this lock.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from . import _core

_lock = threading.RLock()
_free: AbstractContextManager[object] = nullcontext()


class _Hooks(threading.local):
    """Whether this thread runs what waits for a module, as the last step of importing that. Others may wait for the module under the lock."""

    are_running = False


hooks = _Hooks()


def importing(*modules: str) -> AbstractContextManager[object]:
    """Return what is to be held while a function imports modules that may not be loaded yet: ``with importing("numpy"): import numpy``.

    Without a name it is always the lock, for calls of libraries that import what they need.
    """
    return _free if hooks.are_running or modules and all(map(_is_loaded, modules)) else _lock


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


if hasattr(os, "register_at_fork"):
    # Native functions: what a hook raises is printed and lost, and Python may raise at any line of its own code.
    os.register_at_fork(before=partial(_core.acquire_for_fork, _lock), after_in_parent=_lock.release, after_in_child=_lock.release)
    os.register_at_fork(after_in_parent=_core.interrupt_again)
