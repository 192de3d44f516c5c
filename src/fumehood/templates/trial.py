"""A trial: one real sandbox of a template, in an engine of its own that ends with it.

Runs in the process of the user, for a build that is to count and for `fumehood doctor`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from fumehood.assemble import Settings, make_backend
from fumehood.errors import TemplateError
from fumehood.facade.portal import Portal, call
from fumehood.facade.sandbox import Sandbox
from fumehood.templates.preloads import LeftOut
from fumehood.templates.template import Template

_CODE = "6 * 7"
_RESULT = "42"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial has shown.

    Attributes:
        start_seconds: From nothing to a sandbox: what a template's first one takes.
        run_seconds: For a cell in it.
        level: The level of isolation that it reached.
        left_out: The modules of the preload list that are not preloaded.
    """

    start_seconds: float
    run_seconds: float
    level: str
    left_out: tuple[LeftOut, ...]


def try_template(template: Template) -> Trial:
    """Starts a sandbox and has it compute something.

    Raises:
        SandboxStartError: No sandbox starts from the template.
        TemplateError: It starts, and code in it does not do what it should.
    """
    portal = Portal()
    try:
        backend = make_backend(Settings(pool_size=0, max_sandboxes=1), portal)
        started = time.monotonic()

        with Sandbox(template, backend=backend) as sandbox:
            ready = time.monotonic()
            execution = sandbox.run_code(_CODE)
            done = time.monotonic()
            level = sandbox.get_info().isolation.level

        left_out = call(backend.left_out, template.name)
    finally:
        portal.close()

    if execution.error is not None or execution.text != _RESULT:
        found = execution.error or f"{_CODE} is {execution.text!r}"
        reason = f"the first code in a sandbox of it failed: {found}"
        raise TemplateError(template=template.name, reason=reason, hint="check what its requirements install")

    return Trial(start_seconds=ready - started, run_seconds=done - ready, level=level, left_out=left_out)
