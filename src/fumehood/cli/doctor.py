"""`fumehood doctor`: every layer of isolation on this machine, there or missing, why, and how to get it.

Runs in the user's terminal. It prints what the runtime found, and then starts one real sandbox of the default
template: packages of the environment can prevent what the machine allows. With `--attack` it hands over to the
scorecard.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig

from fumehood.cli.parser import Command, Option, Options
from fumehood.cli.terminal import patience
from fumehood.text import visible_line


def run(options: Options) -> int:
    """Examine this machine and return the exit code."""
    # Imported late: it names the whole engine.
    from fumehood.assemble import require_linux

    require_linux()

    if options.attack:
        # Imported late: attacks are a part of their own, which nothing else needs.
        from fumehood.cli.attacks import attack

        return attack(as_json=options.json)

    # Imported late: it asks the kernel, which no other command needs.
    from fumehood.runtimes.namespaces.runtime import doctor

    with patience("examining this machine"):
        layers = doctor()

    # Without a required layer no sandbox starts; the line of that layer gives the better reason.
    if not any(_is_lacking(layer) for layer in layers):
        with patience("starting a sandbox"):
            layers += _first_sandbox()

    layers.append(_warm_runs())
    lacking = [layer for layer in layers if _is_lacking(layer)]

    if options.json:
        print(json.dumps(layers, indent=2))
        return int(bool(lacking))

    _print_table(layers)
    again = " Run `fumehood doctor` again after each change." if lacking else ""
    print(f"\n{_verdict(layers, lacking)}{again}")
    return int(bool(lacking))


def _is_lacking(layer: dict[str, str]) -> bool:
    return layer["state"] == "missing" and layer["need"] == "required"


def _first_sandbox() -> list[dict[str, str]]:
    """Starts a real sandbox of the default template; returns the report lines, in the format of the layers."""
    # Imported late: it is the whole engine.
    from fumehood.api.templates import try_template
    from fumehood.assemble import read_settings
    from fumehood.errors import FumehoodError
    from fumehood.values.template import Template

    modules = read_settings().preload

    try:
        trial = try_template(Template(preload=modules))
    except FumehoodError as error:
        reason = str(error).partition("\n")[0]
        return [_line("first sandbox", "missing", "required", reason, error.hint)]

    took = f"started in {trial.start_seconds:.1f} s, computed 6 * 7 in {trial.run_seconds * 1000:.0f} ms"
    sandbox = _line("first sandbox", "there", "required", f"level {trial.level}: {took}", "")

    if not trial.left_out:
        preload = _line("preload", "there", "advice", ", ".join(modules), "")
    else:
        is_slim = all(one.cause == "missing" for one in trial.left_out)
        way = (
            "pip install 'fumehood[data]'" if is_slim else "nothing has to be done: sandboxes can import them"
        )
        preload = _line("preload", "degraded", "advice", "; ".join(map(str, trial.left_out)), way)

    return [sandbox, preload, _bytecode(modules)]


def _bytecode(modules: tuple[str, ...]) -> dict[str, str]:
    """Returns the row of what a sandbox's packages are read from; an installer such as uv may leave sources alone.

    A sandbox cannot write into the environment, so that it compiles them again at each start.
    """
    packages = dict.fromkeys(["IPython", *(module.partition(".")[0] for module in modules)])
    found = {name: spec for name in packages if (spec := importlib.util.find_spec(name)) and spec.cached}
    sources = [name for name, spec in found.items() if not os.path.exists(spec.cached or "")]

    if not sources:
        return _line("bytecode", "there", "advice", f"{', '.join(found)}: compiled once", "")

    why = f"{', '.join(sources)}: compiled at each start of a template, which takes seconds"
    way = f"{sys.executable} -m compileall -q {sysconfig.get_path('purelib')}"
    return _line("bytecode", "missing", "advice", why, way)


def _warm_runs() -> dict[str, str]:
    """Returns the row of the processes that keep sandboxes ready for `fumehood run`."""
    # Imported late, as all that only this command needs.
    from fumehood.cli.warm import idle_seconds
    from fumehood.cli.warm_processes import warm_processes

    name = "warm runs"

    try:
        processes = warm_processes()
    except OSError as error:
        return _line(name, "missing", "advice", str(error), "let XDG_RUNTIME_DIR name a folder of your own")

    if processes:
        numbers = ", ".join(map(str, processes))
        what = "process" if len(processes) == 1 else "processes"
        why = f"{what} {numbers}: sandboxes kept ready for `fumehood run`; `fumehood run --stop-daemon` ends this"
        return _line(name, "there", "advice", why, "")

    if idle_seconds() <= 0:
        return _line(name, "missing", "advice", "turned off by FUMEHOOD_DAEMON", "unset FUMEHOOD_DAEMON")

    return _line(
        name, "missing", "advice", "no process keeps sandboxes ready", "the first `fumehood run` starts one"
    )


def _line(name: str, state: str, need: str, why: str, how_to_get_it: str) -> dict[str, str]:
    return {
        "name": name,
        "state": state,
        "need": need,
        "why": why,
        "how_to_get_it": how_to_get_it,
        "cause": "",
    }


def _verdict(layers: list[dict[str, str]], lacking: list[dict[str, str]]) -> str:
    if not lacking:
        return "Sandboxes can start here."

    if any(layer["name"] == "first sandbox" for layer in lacking):
        return "No sandbox starts here, though no layer is missing."

    names = ", ".join(layer["name"] for layer in lacking if not layer["cause"])
    is_weaker = any(layer["name"] == "isolation level" and layer["state"] == "degraded" for layer in layers)
    way = " Weaker ones can, for those who name that level: --isolation landlock-only." if is_weaker else ""
    return f"No sandbox can start here without: {names}.{way}"


def _print_table(layers: list[dict[str, str]]) -> None:
    columns = ("name", "state", "need")
    widths = [max((len(layer[column]) for layer in layers), default=0) for column in columns]

    for layer in layers:
        cells = [layer[column].ljust(width) for column, width in zip(columns, widths, strict=True)]
        print("  ".join([*cells, visible_line(layer["why"], max_characters=1000)]).rstrip())

        # If a layer is missing only because of another one, the remedy is printed with the other one.
        if layer["state"] != "there" and layer["how_to_get_it"] and not layer["cause"]:
            way_out = visible_line(layer["how_to_get_it"], max_characters=1000)
            print("  ".join([*(" " * width for width in widths), f"-> {way_out}"]))


DOCTOR = Command(
    "doctor",
    run,
    brief="what this machine allows",
    about="Print every layer of isolation: whether it is there, why not, and how to get it. Then start one sandbox, "
    "and compute something in it. The exit code is 0 when that has worked, 1 when a required layer is missing or no "
    "sandbox starts.",
    params=[
        Option(["--json"], is_flag=True, help="print a list of objects"),
        Option(
            ["--attack"],
            is_flag=True,
            help="try harmless attacks on sandboxes of this machine, and print the scorecard; half a minute",
        ),
    ],
)
