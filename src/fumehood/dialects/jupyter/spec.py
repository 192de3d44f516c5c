"""Kernel specs: one for each available language of contexts, and one for each named template.

A spec determines the template and the language of a kernel; the names of templates are the host's, and a template that
has the name of a language is not offered here.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fumehood.assemble import template_store
from fumehood.errors import InvalidArgumentError, TemplateStoreError
from fumehood.values.languages import CONTEXT_LANGUAGES, PYTHON, STATEFUL_LANGUAGES, ContextLanguage

DEFAULT_SPEC = "python3"
LOGO_NAME = "logo-svg.svg"
LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><path d="M8 8h48v28H8z" fill="none" '
    'stroke="#2a6f6f" stroke-width="5"/><path d="M4 56h56M16 36v20M48 36v20" stroke="#2a6f6f" '
    'stroke-width="5"/><path d="M20 28l8-7-8-7M32 28h10" fill="none" stroke="#2a6f6f" stroke-width="4"/></svg>'
)
_DEFAULT_TEMPLATE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """A kernel spec.

    Attributes:
        name: Its name in requests.
        language: A language of contexts.
        template: The template of its sandbox.
        version: The version of its Python; empty if it is not known, or for another language.
    """

    name: str
    language: str = "python"
    template: str = _DEFAULT_TEMPLATE
    version: str = ""

    def model(self) -> dict[str, Any]:
        """Returns its model in the REST API."""
        return {
            "name": self.name,
            "spec": {
                # A client cannot start a kernel by itself.
                "argv": [],
                "env": {},
                "display_name": self._display_name(),
                "language": self.language,
                "interrupt_mode": "signal",
                "metadata": {"debugger": False},
            },
            "resources": {"logo-svg": f"/kernelspecs/{self.name}/{LOGO_NAME}"},
        }

    def language_info(self) -> dict[str, Any]:
        """Returns the description of the language for editors and exporters."""
        spoken = CONTEXT_LANGUAGES[self.language]
        info: dict[str, Any] = {
            "name": spoken.name,
            "version": self.version,
            "mimetype": spoken.mimetype,
            "file_extension": spoken.suffixes[0],
            "pygments_lexer": spoken.lexer or spoken.name,
            "codemirror_mode": spoken.editor_mode or spoken.name,
        }

        if spoken is PYTHON:
            info["codemirror_mode"] = {"name": spoken.editor_mode, "version": 3}
            info["nbconvert_exporter"] = "python"

        return info

    def _display_name(self) -> str:
        return display_name(self.language, "" if self.template == _DEFAULT_TEMPLATE else self.template)


def display_name(language: str, template: str = "") -> str:
    """Returns the name that clients show for a kernel; without a template, that of the default one."""
    title = "Python 3" if language == PYTHON.name else CONTEXT_LANGUAGES[language].title
    return f"{title} ({template or 'sandbox'})"


def all_specs() -> dict[str, KernelSpec]:
    """Returns all kernel specs by name; it reads the folder of the templates."""
    specs = {
        DEFAULT_SPEC: KernelSpec(name=DEFAULT_SPEC, version=platform.python_version()),
        **{
            name: KernelSpec(name=name, language=name)
            for name, language in STATEFUL_LANGUAGES.items()
            if language is not PYTHON and _is_here(language)
        },
    }

    for spec in _template_specs():
        specs.setdefault(spec.name, spec)

    return specs


def find_spec(name: str | None) -> KernelSpec:
    """Returns the spec of that name, the default one for None.

    Raises:
        InvalidArgumentError: The kernel spec does not exist.
    """
    specs = all_specs()
    spec = specs.get(name or DEFAULT_SPEC)

    if spec is None:
        raise InvalidArgumentError(field="kernel name", value=name, allowed=", ".join(specs))

    return spec


def _is_here(language: ContextLanguage) -> bool:
    """Whether this machine seems to have what the default template needs for a language."""
    if not language.needs or shutil.which(language.program):
        return True

    return bool(language.package) and importlib.util.find_spec(language.package) is not None


def _template_specs() -> Iterable[KernelSpec]:
    store = template_store()

    for name in store.names():
        try:
            record = store.record(name)
        except TemplateStoreError:
            # A damaged one is not offered; a request for it by another way gets the reason.
            continue

        if record is not None:
            yield KernelSpec(name=name, template=name, version=record.info.python)
