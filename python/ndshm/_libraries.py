"""One call for every library that this package works inside of."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ._errors import InvalidType
from ._imports import hooks, importing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

# What is to be called when a module has been imported.
_waiting: dict[str, list[Callable[[], None]]] = {}


def install(enabled: bool = True) -> None:
    """Let other libraries use shared memory of this package from now on: those that this process has imported, and those that it imports later.

    | library | what is called |
    |---|---|
    | torch | `ndshm.torch.install` |
    | numpy | `ndshm.multiprocessing.install` |
    | CloudVolume | `ndshm.cloudvolume.install` |

    Call one of these alone for another setting, or for that library only.

    Parameters
    ----------
    enabled
        False: undo it, and each library's own ``install`` too.

    Raises
    ------
    Unsupported
        Not Linux, or a torch before 2.12. A library that is imported later raises it from its import.
    InvalidArgument
        ``NDSHM_PICKLE_GRACE`` or ``NDSHM_SHARING_STRATEGY`` has a wrong value.
    """
    refuse_all_but_bool(enabled)
    with importing("ndshm.torch", "ndshm.multiprocessing"):
        from . import multiprocessing, torch

    if enabled:
        when_imported("torch", torch.install)
        when_imported("numpy", multiprocessing.install)
        when_imported("cloudvolume", partial(_cloudvolume, "install"))
        return
    for name in ("torch", "numpy", "cloudvolume"):
        _waiting.pop(name, None)
    if "torch" in sys.modules:
        torch.install(False)
    multiprocessing.uninstall()
    if "ndshm.cloudvolume" in sys.modules:
        _cloudvolume("uninstall")


def refuse_all_but_bool(enabled: object) -> None:
    """Refuse what was meant as the name of a strategy, say."""
    if not isinstance(enabled, bool):
        raise InvalidType(f"enabled={enabled!r}: give True or False; there is no strategy to choose")


def _cloudvolume(function: str) -> None:
    with importing("ndshm.cloudvolume"):
        from . import cloudvolume

    getattr(cloudvolume, function)()


def when_imported(name: str, function: Callable[[], None]) -> None:
    """Call a function now if a module is imported, or else when its import has ended."""
    if name in sys.modules:
        function()
        return
    _waiting[name] = [*(known for known in _waiting.get(name, []) if known != function), function]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds no modules of its own. It lets the modules that are waited for be found by the others, and gives them a loader that calls."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Calling(spec.loader)
                return spec
        return None


class _Calling(importlib.abc.Loader):
    """A module's own loader. When it has executed the module, the functions are called that wait for it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        hooks.are_running = True
        try:
            for function in _waiting.pop(module.__name__, []):
                function()
        finally:
            hooks.are_running = False
