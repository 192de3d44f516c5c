"""Imports IPython 8 without what it needs for rare requests only: a terminal, jedi, profiles, highlighting.

Runs in the zygote, before anything else imports IPython. IPython 9 defers these imports by itself. IPython 8, the last
one for Python 3.9 and 3.10, does not, and there they take half of the start. While IPython is imported, a placeholder
for each of these modules is in `sys.modules`; later only the module that has imported it has it, and its first use, in
a context, imports the real one. Other code never sees a placeholder. The zygote must use none once it forks contexts,
nor may a fork before it is confined: the import could read files that guest code has written.
"""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Iterator, Mapping, Sequence

# The modules, and what IPython takes from each by name and only ever calls.
_MODULES: Dict[str, Sequence[str]] = {
    "cProfile": (),
    "jedi": (),
    "jedi.api": (),
    "jedi.api.classes": (),
    "jedi.api.helpers": (),
    "pexpect": (),
    "pstats": (),
    "pydoc": (),
    "pygments.formatters": ("HtmlFormatter",),
    "pygments.formatters.terminal256": ("Terminal256Formatter",),
    "pygments.lexers": ("PythonLexer",),
    "pygments.styles": ("get_style_by_name",),
    "stack_data": (),
    "urllib.request": ("Request", "urlopen"),
}
_EMBED = "IPython.terminal.embed"
# The modules of IPython that import those above.
_IMPORTERS = ("IPython.core.interactiveshell", "IPython.core.completer", "IPython.core.magics")


class _Placeholder(ModuleType):
    """Imports the module that it stands for at the first use of one of its attributes.

    Args:
        name: The module.
        called: Names of the module whose values the importer only calls.
    """

    def __init__(self, name: str, called: Sequence[str]) -> None:
        super().__init__(name)

        for attribute in called:
            setattr(self, attribute, _Deferred(name, attribute))

        if name == "jedi":
            # IPython sets an attribute of it at the import.
            self.settings = SimpleNamespace()

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        return getattr(_load(self.__name__), attribute)


class _LateModule(ModuleType):
    """A module that runs its code at the first use of one of its attributes."""

    _lock = RLock()
    _runs = False

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

        with self._lock:
            if type(self) is _LateModule and not self._runs:
                self._run()

        try:
            return vars(self)[attribute]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}") from None

    def _run(self) -> None:
        self._runs = True
        try:
            self.__spec__.loader.exec_module(self)  # type: ignore[union-attr]
        finally:
            del self._runs

        self.__class__ = ModuleType  # type: ignore[assignment]


class _Deferred:
    """Stands for a function or a class that is only called."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(_load(self._module), self._name)(*args, **options)


def import_ipython() -> None:
    """Imports IPython's shell; of IPython 8, without what it rarely needs."""
    if "IPython" in sys.modules or not _is_version_8():
        return

    placed = {name: _Placeholder(name, called) for name, called in _MODULES.items() if _can_defer(name)}
    placed[_EMBED] = _Placeholder(_EMBED, ("embed",))
    sys.modules.update(placed)
    try:
        for name in _IMPORTERS:
            import_module(name)
    finally:
        for name, placeholder in placed.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]

    _defer_terminal()


def _is_version_8() -> bool:
    spec = find_spec("IPython")

    if spec is None or spec.origin is None:
        return False

    # Its own module could only be imported with all of IPython.
    with open(os.path.join(os.path.dirname(spec.origin), "core", "release.py"), encoding="utf-8") as file:
        return re.search(r"^_version_major *= *8$", file.read(), re.MULTILINE) is not None


def _can_defer(name: str) -> bool:
    # IPython itself notices a package that is not installed.
    return name not in sys.modules and find_spec(name.partition(".")[0]) is not None


def _load(name: str) -> ModuleType:
    """Imports a deferred module, also for an importer that runs while placeholders are in `sys.modules`."""
    family = name.partition(".")[0]

    for known in list(_family(family)):
        del sys.modules[known]

    module = import_module(name)

    if family == "jedi":
        # As IPython does when it imports jedi.
        import_module("jedi").settings.case_insensitive_completion = False

    return module


def _family(package: str) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if type(module) is _Placeholder and name.partition(".")[0] == package:
            yield name


def _defer_terminal() -> None:
    """Has `IPython.embed` and the modules of `IPython.terminal` imported at their first use."""
    import IPython
    import IPython.terminal

    # Stays in `sys.modules`: these modules import one another in a circle, which must find this one begun.
    spec = find_spec(_EMBED)
    assert spec is not None
    embed = module_from_spec(spec)
    embed.__class__ = _LateModule
    sys.modules[_EMBED] = IPython.terminal.embed = embed
    # The function that is called must see the frame of its caller, so nothing can stand for it.
    del IPython.embed
    IPython.__getattr__ = _getter(IPython, {"embed": lambda: embed.embed})
    names = ("interactiveshell", "ipapp", "debugger")
    modules = {name: partial(import_module, f"IPython.terminal.{name}") for name in names}
    IPython.terminal.__getattr__ = _getter(IPython.terminal, modules)


def _getter(package: ModuleType, values: Mapping[str, Callable[[], Any]]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a package (PEP 562)."""

    def get(name: str) -> Any:
        if name not in values:
            raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")

        value = values[name]()
        setattr(package, name, value)
        return value

    return get
