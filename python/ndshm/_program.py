"""The program `ndshm` that the wheel brings: where it is, and what only it can do."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from . import _core
from ._errors import NdshmError, Unsupported


def path() -> str | None:
    """Return the path of the program that was installed with this package, or None if there is none.

    It is found from the place of the package, not from the running Python: a venv need not be activated, and PATH is not searched.
    """
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    name, scripts = ("ndshm.exe", "Scripts") if sys.platform == "win32" else ("ndshm", "bin")
    # After `pip install --target` the scripts are beside the package. Otherwise it is in a place that pip knows, below a prefix.
    prefixes = [place]
    if sys.platform == "win32":
        if re.search(r"\\Lib\\site-packages$", place, re.IGNORECASE):
            prefixes.append(os.path.join(place, os.pardir, os.pardir))
    elif re.search(r"/lib[^/]*/python[^/]*/(site|dist)-packages$", place):
        prefixes.append(os.path.join(place, os.pardir, os.pardir, os.pardir))
    for prefix in prefixes:
        candidate = os.path.normpath(os.path.join(prefix, scripts, name))
        if os.path.isfile(candidate):
            return candidate
    return None


def choose_manager() -> None:
    """Let the program be the manager, which removes what killed processes leave, unless ``NDSHM_MANAGER`` says otherwise."""
    if os.environ.get("NDSHM_MANAGER", "").lower() in ("", "on", "yes", "true", "1"):
        _core.set_manager(path())


def doctor() -> dict[str, Any]:
    """Examine this machine: where arrays are, how much room is left, and what killed processes have left.

    Returns
    -------
    dict
        The report of ``ndshm doctor --json``.

    Raises
    ------
    Unsupported
        The program `ndshm` was not installed with this package.
    """
    import json
    import subprocess

    program = path()
    if program is None:
        raise Unsupported("the program `ndshm` is missing: it comes with the wheel; or run `ndshm doctor` of another installation")
    done = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise NdshmError(f"`{program} doctor` failed with status {done.returncode}: {done.stderr.strip()}") from None
    return report
