"""Calls back after the import of a module, so that a library is set up when user code imports it, and not before.

Runs in a context and in the zygote. It loads nothing by itself, and finds modules through the finders that are there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any, Callable, Optional, Sequence


def call_after_import(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls `callback(module)` once the module has been imported; at once, if it is loaded."""
    module = sys.modules.get(name)

    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _ImportWatch(name, callback))


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Import hook that finds one module through the other finders, to call back after its import."""

    def __init__(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._callback = callback

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        """Returns the module's spec, with a loader that runs the callback after the module was executed."""
        if fullname != self._name:
            return None

        if self in sys.meta_path:
            sys.meta_path.remove(self)

        spec = importlib.util.find_spec(fullname)

        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._callback)

        return spec


class _CallingLoader(importlib.abc.Loader):
    """Loads as another loader does, and calls `callback` with the module after it was executed."""

    def __init__(self, loader: Any, callback: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        """Delegates to the original loader."""
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Delegates to the original loader, after restoring it in the module."""
        module.__loader__ = self._loader

        if module.__spec__ is not None:
            module.__spec__.loader = self._loader

        self._loader.exec_module(module)
        self._callback(module)
