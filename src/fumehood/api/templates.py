"""The verbs of named templates: build, list, remove, prune.

Runs in the process of the user, over the template builder and the store that the settings name. A template that was
built is tested by a real sandbox, in an engine of its own that ends with the test.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from urllib.parse import quote

from fumehood.api.sandbox import Sandbox
from fumehood.api.template_languages import ALL, languages_named, preparation
from fumehood.assemble import (
    ask_server,
    make_backend,
    read_settings,
    registry_logins,
    server_lines,
    template_store,
)
from fumehood.engine.settings import EngineSettings
from fumehood.errors import HostUnavailableError, InvalidArgumentError, TemplateError, TemplateStoreError
from fumehood.portal import Portal, call, check_callbacks
from fumehood.templates.builder import build
from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.image_template import base_of
from fumehood.templates.images.source import ImageOrder, dockerfile_text
from fumehood.templates.images.workbench import Base
from fumehood.templates.recipe import LanguageOrder, Recipe, Say, SkippedModule, Source
from fumehood.templates.requirements import RequirementsSource
from fumehood.templates.store import TemplateInfo, TemplateStore, hint_of_names
from fumehood.tracebacks import ending_at_caller
from fumehood.values.codec import read_value
from fumehood.values.display import DISPLAY, with_display
from fumehood.values.network import Network
from fumehood.values.start_command import StartCommand, read_start
from fumehood.values.template import Template

_PATH = "/v1/templates"


@ending_at_caller
def build_template(
    name: str,
    *,
    requirements: str | Sequence[str] = (),
    python: str | None = None,
    preload: Sequence[str] = (),
    files: str | None = None,
    envs: Mapping[str, str] | None = None,
    own_interpreter: bool | None = None,
    image: str | None = None,
    dockerfile: str | None = None,
    context: str | None = None,
    steps: Sequence[str] = (),
    apt: Sequence[str] = (),
    build_args: Mapping[str, str] | None = None,
    builder: str | None = None,
    network: Network | None = None,
    start: str | None = None,
    ready: str = "",
    ready_timeout: float = 60.0,
    display: bool = False,
    languages: Sequence[str] = (),
    force: bool = False,
    on_progress: Say | None = None,
    url: str | None = None,
    api_key: str | None = None,
) -> TemplateInfo:
    """Build a named template, from which `Sandbox(name)` starts in every process of this user.

    It is built once, and built again only if one of its inputs has changed. The environment is made by uv
    where it is installed, and by pip otherwise. A sandbox is started from it as a test before it is stored; if a step
    fails, an earlier template of this name stays as it is.

    Args:
        name: Letters, digits, '.', '_' and '-'; and an optional tag after a colon, as in `data:v2`, which is a template
            of its own.
        requirements: The path of a requirements file, or a list of requirements.
        python: A version such as 3.12, or the path of an interpreter; None is the Python of this process.
        preload: Modules that are imported once for all sandboxes. One whose import leaves threads running is left
            out: `TemplateInfo.left_out` lists it, and sandboxes import it where they use it.
        files: A folder whose content each sandbox finds in its home directory.
        envs: Environment variables of its sandboxes.
        own_interpreter: Whether to start an interpreter for each sandbox, so that hash seed and addresses differ. None:
            only for images with their own Python, since code that it loads can reach every sandbox made from it. False
            shares the interpreter: sandboxes start in milliseconds, and the image's makers can reach all sandboxes of
            the template.
        image: A container image in place of this machine's system: a name such as `python:3.12-slim`,
            `oci:FOLDER[:TAG]` or `docker-archive:FILE`. Code runs in the image's own CPython 3.9 or newer, or else in a
            private copy of this process's; `requirements` and `python` cannot be combined with it.
        dockerfile: The path of a Dockerfile that builds the image. No container tool is used.
        context: The folder from which its COPY and ADD take files; None: the folder of the Dockerfile.
        steps: Instructions as in a Dockerfile, which are carried out on `image`.
        apt: Debian packages to install on `image`, before `steps`.
        build_args: Values of the Dockerfile's ARGs.
        builder: `buildah`, or its absolute path: builds the Dockerfile in place of fumehood, for Dockerfiles that
            fumehood refuses. Its steps run in buildah's containers with the rights, the settings and the network of
            this user.
        network: The network that the steps of a build may reach, through the egress proxy; None: all public addresses.
        start: A shell command that runs in each of its sandboxes from their creation on, such as a server. It gets the
            environment variables of the template, not those of a sandbox's caller.
        ready: The check that the command is ready: `port:8000`, `url:http://localhost:8000/health`, `file:/tmp/ready`
            or `command:LINE`. Sandboxes are handed out when it succeeds; empty: as soon as the command has started.
        ready_timeout: How long the check may take to succeed, in seconds.
        display: Give its sandboxes a display of 1280 by 800 pixels (DISPLAY), which `Sandbox.screenshot()` shows. The
            image, or this machine, must have Xvfb (Debian's package xvfb).
        languages: Names of languages to prepare it for, or `["all"]` for all installed ones: their versions are
            recorded, and slow work of their compilers is done in advance, such as precompiling the header
            `bits/stdc++.h` of C++. A named language that is missing is an error. Not for a server.
        force: Whether to build it even if nothing has changed.
        on_progress: Called with a line of text for each step.
        url: The address of a server that builds and uses it; None: this machine, even if FUMEHOOD_URL is set. A server
            accepts the lines of a requirements file and of a Dockerfile, but no `files`, `context` or `network`;
            `python` is a version or a path on the server.
        api_key: The token of that server's owner; None: FUMEHOOD_API_KEY.

    Raises:
        InvalidArgumentError: An argument cannot work; nothing was done.
        TemplateStoreError: A step of the build failed.
        ImageError: A container image could not be fetched, or is refused.
    """
    _check_kinds(requirements=requirements, preload=preload, files=files, envs=envs)
    check_callbacks(on_progress=on_progress)
    say = on_progress or _say_nothing
    # A string is a path to `RequirementsSource`; here it would be a list of letters.
    modules = (preload,) if isinstance(preload, str) else tuple(preload)
    order = ImageOrder(
        image=image,
        dockerfile=dockerfile,
        context=context,
        steps=tuple(steps),
        apt=tuple(apt),
        build_args=dict(build_args or {}),
        network=network or Network(internet=True),
        builder=builder,
    )
    spoken = _language_order(languages, is_at_server=url is not None)
    started = read_start(start, ready, ready_timeout)
    _check_fits(order, requirements or python, network)

    if url is not None:
        _check_local(files=files, context=context, network=network, builder=builder)
        asked = {
            "name": name,
            "requirements": _requirement_lines(requirements),
            "python": python,
            "preload": list(modules),
            "envs": dict(envs or {}),
            "own_interpreter": own_interpreter,
            "start": start,
            "ready": ready,
            "ready_timeout": ready_timeout,
            "display": display,
            "image": image,
            "dockerfile": None if dockerfile is None else dockerfile_text(dockerfile),
            "steps": order.steps,
            "apt": order.apt,
            "build_args": order.build_args,
            "force": force,
        }
        return _build_at_server(url, api_key, asked, say)

    store = template_store()
    recipe = Recipe(
        name=name,
        source=_image(order, store) if order.is_given else RequirementsSource(requirements, python, say),
        preload=modules,
        files=None if files is None else os.path.abspath(files),
        envs={**({"DISPLAY": DISPLAY} if display else {}), **(envs or {})},
        own_interpreter=own_interpreter,
        start=with_display(started) if display else started,
        languages=spoken,
    )
    return _build_here(recipe, store, order, force=force, say=say)


def _image(order: ImageOrder, store: TemplateStore) -> Source:
    """Returns the source of an image, fetched with this user's registry logins."""
    return order.source(store.layers, registry_logins())


def build_image_template(
    name: str,
    order: ImageOrder,
    *,
    start: StartCommand | None = None,
    logins: RegistryLogins | None = None,
    force: bool = False,
    say: Say,
) -> TemplateInfo:
    """Builds a template from an image, for the template builds of the server's dialects.

    Args:
        name: Its name.
        order: Its image, or the template on which it is based.
        start: The command that its sandboxes run.
        logins: The registry logins; None: those of this user.
        force: Whether to build it even if nothing has changed.
        say: Called with each step.

    Raises:
        InvalidArgumentError: The order cannot work.
        TemplateStoreError: A step failed.
        ImageError: An image could not be fetched.
    """
    store = template_store()
    source = order.source(store.layers, logins or registry_logins())
    recipe = Recipe(name=name, source=source, start=start, limits=order.limits)
    return _build_here(recipe, store, order, force=force, say=say)


def template_to_build_upon(name: str) -> tuple[Base, StartCommand | None]:
    """Returns the image of a template, and the start command of its sandboxes.

    Raises:
        TemplateStoreError: The template is not made from an image.
    """
    record = template_store().record(name)

    if record is None or record.image is None:
        reason = f"{name!r} is no template that was made from an image"
        raise TemplateStoreError(template=name, operation="read", reason=reason)

    return base_of(record.image), record.info.start


def _build_here(
    recipe: Recipe, store: TemplateStore, order: ImageOrder, *, force: bool, say: Say
) -> TemplateInfo:
    # What is made of an image stays until a record names it.
    with store.layers.in_use() if order.is_given else nullcontext():
        return build(recipe, store, _try_out, force=force, say=say)


def _language_order(languages: Sequence[str], *, is_at_server: bool) -> LanguageOrder | None:
    """Returns the languages to prepare a template for; None if there are none."""
    names = languages_named(languages)

    if not names:
        return None

    if is_at_server:
        allowed = "none at a server: build it on the server's machine"
        raise InvalidArgumentError(field="languages", value=list(languages), allowed=allowed)

    return LanguageOrder(names=names, prepare=preparation(names, is_strict=ALL not in languages))


def _check_fits(order: ImageOrder, packages: object, network: Network | None) -> None:
    """Checks that the arguments about an image are compatible with the others."""
    if order.builder is not None and network is not None:
        allowed = "None with a builder: its steps have the network that it gives them"
        raise InvalidArgumentError(field="network", value=network.level, allowed=allowed)

    if not order.is_given:
        for field in ("steps", "apt", "context", "build_args", "builder"):
            if value := getattr(order, field):
                allowed = "a value beside an image or a Dockerfile only; packages of Python are given as requirements"
                raise InvalidArgumentError(field=field, value=value, allowed=allowed)

        return

    if packages:
        allowed = "none with an image, which has its own: install more with RUN pip install"
        raise InvalidArgumentError(field="requirements", value=packages, allowed=allowed)


def _check_local(**values: object) -> None:
    """Checks that no argument is given that a server does not accept."""
    for field, value in values.items():
        if value is not None:
            allowed = "None at a server: build it on the server's machine"
            raise InvalidArgumentError(field=field, value=value, allowed=allowed)


@ending_at_caller
def prune_templates() -> tuple[int, int]:
    """Delete the layers of container images that no template of this user uses.

    This includes layers of failed builds and of images that were replaced. Layers are kept as long as
    sandboxes are made from them.

    Returns:
        How many layers were deleted, and how many bytes they had.

    Raises:
        TemplateStoreError: A template is being built from an image right now.
    """
    return template_store().prune()


def _requirement_lines(requirements: str | Sequence[str]) -> list[str]:
    """Returns requirements one by one; raises InvalidArgumentError for a file that includes others."""
    if not isinstance(requirements, (str, os.PathLike)):
        return list(requirements)

    try:
        with open(requirements, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise InvalidArgumentError(
            field="requirements",
            value=str(requirements),
            allowed=f"a file that can be read: {error.strerror}",
        ) from None

    wanted = [line for line in lines if line and not line.startswith("#")]

    if local := [
        line for line in wanted if line.startswith(("-r", "-c", "-e", "--requirement", "--constraint"))
    ]:
        raise InvalidArgumentError(
            field="requirements",
            value=local[0],
            allowed="packages alone at a server, which has no files of this machine",
        )

    return wanted


def _build_at_server(url: str, api_key: str | None, asked: Mapping[str, object], say: Say) -> TemplateInfo:
    for line in server_lines(url, api_key, "POST", _PATH, json=dict(asked)):
        if line.get("type") == "step":
            say(str(line.get("text", "")))
        elif line.get("type") == "finished":
            return read_value(TemplateInfo, line.get("template"))

    raise HostUnavailableError(
        host=url, reason="it broke off before the template was built", outcome_unknown=True
    )


@ending_at_caller
def list_templates(*, url: str | None = None, api_key: str | None = None) -> tuple[TemplateInfo, ...]:
    """Describe the named templates of this user, sorted by name.

    Args:
        url: The address of a server, to describe its templates; None: this machine.
        api_key: The token of the server; None: FUMEHOOD_API_KEY.
    """
    if url is not None:
        found = ask_server(url, api_key, "GET", _PATH)
        return tuple(read_value(TemplateInfo, item) for item in found["items"])

    store = template_store()
    store.sweep()
    records = (store.record(name) for name in store.names())
    return tuple(record.info for record in records if record is not None)


@ending_at_caller
def remove_template(name: str, *, url: str | None = None, api_key: str | None = None) -> bool:
    """Remove a named template. Living sandboxes made from it are not affected.

    Args:
        name: Its name.
        url: The address of a server, to remove it there; None: this machine.
        api_key: The token of that server's owner; None: FUMEHOOD_API_KEY.

    Returns:
        Whether its files were deleted. False while processes use them: a later call of a function for templates deletes
            them when they are unused.

    Raises:
        TemplateStoreError: No template has this name, or it is being built.
    """
    if url is not None:
        answer = ask_server(url, api_key, "DELETE", f"{_PATH}/{quote(str(name), safe='')}")
        return bool(answer["is_deleted"])

    store = template_store()

    if name not in store.names():
        raise TemplateStoreError(
            template=str(name),
            operation="remove",
            reason="no template has this name",
            hint=hint_of_names(str(name), store.names()),
        )

    return store.remove(name)


def _check_kinds(*, requirements: object, preload: object, files: object, envs: object) -> None:
    _check_kind("requirements", requirements, Iterable, "the path of a file, or a list of requirements")
    _check_kind("preload", preload, Iterable, "a list of modules")
    _check_kind("files", "" if files is None else files, (str, os.PathLike), "the path of a folder, or None")
    _check_kind("envs", {} if envs is None else envs, Mapping, "a mapping of text to text")


def _check_kind(field: str, value: object, kind: type | tuple[type, ...], allowed: str) -> None:
    if not isinstance(value, kind):
        raise InvalidArgumentError(field=field, value=value, allowed=allowed)


def _say_nothing(_text: str) -> None:
    return


def _try_out(template: Template) -> tuple[SkippedModule, ...]:
    """Starts a sandbox from a template; returns the modules that are left out because their import starts threads."""
    left_out = try_template(template).left_out
    wrong = next((one for one in left_out if one.cause != "threads"), None)

    if wrong is None:
        return left_out

    if wrong.cause == "error":
        raise TemplateError(
            template=template.name,
            reason=f"the preload module {wrong.module!r} cannot be imported: {wrong.reason}",
            hint="check what the requirements install, or take it off the preload list",
            logged="a preload module cannot be imported",
        )

    raise TemplateError(
        template=template.name,
        reason=f"the preload module {wrong.module!r} is not in its environment",
        hint="add the package that has it to the requirements, or take it off the preload list",
        logged="a preload module is not in its environment",
    )


_CODE = "6 * 7"
_RESULT = "42"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of a test of a template.

    Attributes:
        start_seconds: The start time of a template's first sandbox, in seconds.
        run_seconds: The time of a cell in it, in seconds.
        level: The level of isolation that it reached.
        left_out: The modules of the preload list that are not preloaded.
    """

    start_seconds: float
    run_seconds: float
    level: str
    left_out: tuple[SkippedModule, ...]


def try_template(template: Template) -> Trial:
    """Starts a sandbox and runs a computation in it.

    Raises:
        SandboxStartError: No sandbox starts from the template.
        TemplateError: The sandbox starts, but code in it gives a wrong result.
    """
    portal = Portal()
    try:
        allowed = read_settings().template_memory_bytes
        settings = EngineSettings(pool_size=0, max_sandboxes=1, template_memory_bytes=allowed)
        backend = make_backend(settings, portal)
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
        raise TemplateError(
            template=template.name,
            reason=reason,
            hint="check what its requirements install",
            logged="the first code in a sandbox of it failed",
        )

    return Trial(start_seconds=ready - started, run_seconds=done - ready, level=level, left_out=left_out)
