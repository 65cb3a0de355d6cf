"""A lock for imports that are made when they are first needed.

A child that is forked while another thread imports a module would wait for that import for ever. So a fork waits for this lock.
"""

from __future__ import annotations

import os
import threading

#: To be held while a function imports what may not be loaded yet: ``with importing: import numpy``.
importing = threading.RLock()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)
