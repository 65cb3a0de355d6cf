"""The program `ndshm` that the wheel brings: where it is, and what only it can do."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from . import _core
from ._errors import InvalidArgument, NdshmError, Unsupported


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


def sweep(*patterns: str, family: str | Iterable[str] = (), older_than: float = 600.0, dry_run: bool = False) -> dict[str, Any]:
    """Remove files that other programs left in /dev/shm, with the kernel's proof that no process has them open or mapped. Linux only.

    Symbolic links, files of other users and the arrays of this package stay. Without a pattern and a family, the files are only listed.

    Parameters
    ----------
    patterns
        Names to remove: ``*`` is any text, ``?`` any character, ``[a-c]`` one of a, b and c. Semaphores (``sem.*``), names of CloudVolume
        (``cloudvolume-*``), PostgreSQL (``PostgreSQL.*``) and boost are removed only by a pattern that begins like that.
    family
        Remove only names of these families: "python" (``SharedMemory``), "torch", "vllm", "sglang", "joblib", .., "other".
    older_than
        Keep what was changed within so many seconds: a process may be about to open it again.
    dry_run
        Only look what would be removed.

    Returns
    -------
    dict
        The report of ``ndshm gc --foreign --json``: ``removed``, ``kept``, each with its ``finding``, ``failed``, and ``bytes`` that were freed.

    Raises
    ------
    InvalidArgument
        A pattern, a family or the age is none.
    Unsupported
        The program `ndshm` was not installed with this package.

    Examples
    --------
    >>> report = ndshm.sweep(family="python", dry_run=True)
    >>> [file["name"] for file in report["removed"]]
    []
    """
    import json
    import math
    import subprocess

    program = path()
    if program is None:
        raise Unsupported("the program `ndshm` is missing: it comes with the wheel; or run `ndshm gc --foreign` of another installation")
    if not (math.isfinite(older_than) and older_than >= 0):
        raise InvalidArgument(f"older_than must be a number of seconds, not {older_than!r}")
    families = [family] if isinstance(family, str) else list(family)
    command = [program, "gc", "--foreign", "--json", f"--older-than={math.ceil(older_than)}"]
    command += [f"--family={name}" for name in families]
    if dry_run:
        command.append("--dry-run")
    done = subprocess.run([*command, "--", *patterns], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        raise InvalidArgument(done.stderr.partition("\n")[0].removeprefix("error: "))
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise NdshmError(f"`{program} gc --foreign` failed with status {done.returncode}: {done.stderr.strip()}") from None
    if "removed" not in report:
        raise NdshmError(": ".join([report["error"], *report["because"]]))
    return report
