"""`fumehood kernel`: kernels for JupyterLab, Notebook, VS Code and nbclient, which run notebooks in sandboxes.

Runs in the user's terminal, and as the kernel's process, which a client of Jupyter starts by the spec that `install`
has written. Each process has one sandbox; it ends with the process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fumehood.bounds import BOUNDS
from fumehood.cli.extras import require_extra
from fumehood.cli.options import open_sandbox, sandbox_arguments, sandbox_options
from fumehood.cli.parser import Argument, Command, OneOf, Option, Options, PathWord, Verbs
from fumehood.cli.terminal import note, patience, write_table
from fumehood.errors import InvalidArgumentError
from fumehood.text import visible_line
from fumehood.values.languages import PYTHON, STATEFUL_LANGUAGES

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpecManager

    from fumehood.dialects.jupyter.spec import KernelSpec

_DEFAULT_TEMPLATE = "default"
_COLUMNS = ("NAME", "SHOWN AS", "FOLDER")
# Marks the specs that are ours, in their metadata.
_MARK = "fumehood"


def run_install(options: Options) -> int:
    """Write the kernel spec where Jupyter's clients look for it; return the exit code."""
    manager = _manager("kernel install")
    places = [name for name in ("user", "prefix", "sys_prefix") if getattr(options, name)]

    if len(places) > 1:
        chosen = " ".join("--" + name.replace("_", "-") for name in places)
        raise InvalidArgumentError(
            field="place", value=chosen, allowed="one of --user, --prefix, --sys-prefix"
        )

    # Wrong options are reported now, and not to the client that starts the kernel later.
    sandbox_arguments(options)
    template = "" if options.template == _DEFAULT_TEMPLATE else options.template
    name = options.name or "-".join(["fumehood", *([template] if template else []), *_language(options)])

    with tempfile.TemporaryDirectory() as folder:
        _write_spec(Path(folder), options, _shown_name(options, template))

        try:
            written = manager.install_kernel_spec(
                folder,
                name,
                user=not (options.prefix or options.sys_prefix),
                prefix=sys.prefix if options.sys_prefix else options.prefix,
            )
        except ValueError:
            allowed = "letters, digits, dots, hyphens and underscores"
            raise InvalidArgumentError(field="--name", value=name, allowed=allowed) from None

    note(f"kernel {name} is in {written}; choose it in JupyterLab, Notebook or VS Code")
    return 0


def run_list(options: Options) -> int:
    """Print the kernel specs that start sandboxes; return the exit code."""
    found = _installed(_manager("kernel list"))

    if options.json:
        print(json.dumps([{"name": name, **entry} for name, entry in found.items()], indent=2))
        return 0

    rows = [
        (name, visible_line(str(entry["spec"].get("display_name", ""))), entry["resource_dir"])
        for name, entry in found.items()
    ]
    write_table(_COLUMNS, rows, sys.stdout)
    return 0


def run_remove(options: Options) -> int:
    """Remove a kernel spec; return the exit code."""
    manager = _manager("kernel remove")
    found = _installed(manager)

    if options.name not in found:
        raise InvalidArgumentError(
            field="NAME", value=options.name, allowed=", ".join(found) or "no name: none is installed"
        )

    shutil.rmtree(found[options.name]["resource_dir"])
    note(f"kernel {options.name} is removed; kernels that run go on")
    return 0


def run_start(options: Options) -> int:
    """Run as a kernel until the client ends it; return the exit code."""
    require_extra("kernel", "zmq", command="kernel start")
    # Imported late: only a kernel needs an engine and sockets.
    import asyncio

    from fumehood.dialects.jupyter.process import Sockets, parent_of_kernel, read_connection, serve
    from fumehood.dialects.jupyter.shell import CELL_RESULTS, CELL_SECONDS

    # Before the sandbox is started: the client may end meanwhile.
    parent = parent_of_kernel(os.environ)
    # A notebook's cell may take as long as its sandbox lives, unless a time is asked for.
    options.timeout = options.timeout or CELL_SECONDS
    # First: clients connect at once, and what they send waits.
    sockets = Sockets(read_connection(options.connection_file))

    with patience("starting a sandbox"):
        sandbox = open_sandbox(options, result_count=min(CELL_RESULTS, int(BOUNDS["result_count"].high)))

    with sandbox:
        # Imported late, as above.
        from fumehood.cli.renewal import kept_alive

        with kept_alive(sandbox):
            backend = sandbox._async._sandbox_handle.backend
            asyncio.run(serve(sockets, backend, sandbox.id, _spec(options), parent=parent))

    return 0


def _language(options: Options) -> list[str]:
    return [] if options.language == PYTHON.name else [options.language]


def _shown_name(options: Options, template: str) -> str:
    # Imported late: only a kernel that is installed needs it.
    from fumehood.dialects.jupyter.spec import display_name

    return str(options.display_name or display_name(options.language, template))


def _spec(options: Options) -> KernelSpec:
    """Return the spec of the kernel to start, with the version of its Python if that is known."""
    from fumehood.dialects.jupyter.spec import DEFAULT_SPEC, KernelSpec, all_specs

    if options.language != PYTHON.name:
        return KernelSpec(name=options.language, language=options.language, template=options.template)

    known = DEFAULT_SPEC if options.template == _DEFAULT_TEMPLATE else options.template
    return all_specs().get(known) or KernelSpec(name=known, template=options.template)


def _write_spec(folder: Path, options: Options, display_name: str) -> None:
    # Imported late: only its logo is needed.
    from fumehood.dialects.jupyter.spec import LOGO, LOGO_NAME

    words = ["kernel", "start", "--connection-file", "{connection_file}", *_given_words(options)]
    spec = {
        # -P: files of the notebook's folder are not imported in place of modules.
        "argv": [sys.executable, "-P", "-m", "fumehood", *words],
        "display_name": display_name,
        "language": options.language,
        "interrupt_mode": "message",
        "metadata": {_MARK: True, "debugger": False},
    }
    (folder / "kernel.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
    (folder / LOGO_NAME).write_text(LOGO, encoding="utf-8")


def _given_words(options: Options) -> list[str]:
    """Return the given options as words of the command line that will start the kernel."""
    words: list[str] = []

    for option in (_language_option(), *sandbox_options()):
        value = getattr(options, str(option.name))

        if option.name == "file":
            # The kernel starts in the folder of the notebook.
            value = [os.path.abspath(one) for one in value]

        if option.is_flag:
            words += [option.opts[0]] if value else []
        elif option.multiple:
            words += [word for one in value for word in (option.opts[0], one)]
        elif value is not None and value != option.default:
            words += [option.opts[0], str(value)]

    return words


def _manager(command: str) -> KernelSpecManager:
    require_extra("kernel", "jupyter_client", "zmq", command=command)
    # Imported late: it takes a third of a second to import.
    from jupyter_client.kernelspec import KernelSpecManager

    return KernelSpecManager()


def _installed(manager: KernelSpecManager) -> dict[str, dict[str, Any]]:
    """Return the specs that are ours, by name."""
    return {
        name: entry
        for name, entry in sorted(manager.get_all_specs().items())
        if isinstance(entry["spec"].get("metadata"), dict) and entry["spec"]["metadata"].get(_MARK)
    }


def _language_option() -> Option:
    return Option(
        ["--language"],
        type=OneOf(list(STATEFUL_LANGUAGES)),
        default=PYTHON.name,
        help="what its cells are written in (default: python)",
    )


KERNEL = Verbs(
    "kernel",
    [
        Command(
            "install",
            run_install,
            brief="add one to JupyterLab, Notebook, VS Code and nbclient",
            about="Write a kernel spec, so that JupyterLab, Notebook, VS Code and nbclient offer a kernel that runs in "
            "a sandbox. Nothing else has to be started: each notebook that uses it has a sandbox of its own, with the "
            "options that are given here.",
            params=[
                Option(
                    ["--name"], metavar="NAME", help="its name (default: fumehood, and the template's name)"
                ),
                Option(["--display-name"], metavar="TEXT", help="what clients show"),
                Option(["--user"], is_flag=True, help="for this user (the default)"),
                Option(
                    ["--prefix"],
                    type=PathWord(is_folder=True),
                    metavar="DIR",
                    help="for the Python environment in that folder",
                ),
                Option(["--sys-prefix"], is_flag=True, help="for the environment of this Python"),
                _language_option(),
                *sandbox_options(),
            ],
        ),
        Command(
            "list",
            run_list,
            brief="those that are installed",
            about="List the installed kernels that run in sandboxes.",
            params=[Option(["--json"], is_flag=True, help="print a list of objects")],
        ),
        Command(
            "remove",
            run_remove,
            brief="remove one",
            about="Remove the spec of a kernel. Kernels that run go on.",
            params=[Argument("name", metavar="NAME", about="its name")],
        ),
        Command(
            "start",
            run_start,
            brief="be one; clients of Jupyter start this",
            about="Be a kernel until its client ends it. Clients of Jupyter start this, by the spec that "
            "`fumehood kernel install` has written.",
            params=[
                Option(
                    ["-f", "--connection-file"],
                    required=True,
                    type=PathWord(),
                    metavar="FILE",
                    help="where it listens, as the client has written it",
                ),
                _language_option(),
                *sandbox_options(),
            ],
        ),
    ],
    brief="kernels for JupyterLab and VS Code that run in sandboxes",
    about="Kernels for JupyterLab, Notebook, VS Code and nbclient, which run notebooks in sandboxes.",
)
