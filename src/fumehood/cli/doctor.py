"""`fumehood doctor`: every layer of isolation on this machine, there or missing, why, and how to get it.

It asks the runtime what is there, and then starts one real sandbox of the default template: packages of the environment
can prevent what the machine allows. `doctor_report` words what was found. With `--attack` the scorecard takes over.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig

from fumehood.cli.doctor_report import WARM_RUNS, full_report, is_lacking, short_report
from fumehood.cli.parser import Command, Option, Options
from fumehood.cli.terminal import patience


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

    with patience("trying each layer, and a first sandbox"):
        layers = doctor()

        # Without a required layer no sandbox starts; the line of that layer gives the better reason.
        if not any(map(is_lacking, layers)):
            layers += _first_sandbox()

    layers.append(_warm_runs())

    if options.json:
        print(json.dumps(layers, indent=2))
    else:
        print(full_report(layers) if options.all else short_report(layers))

    return int(any(map(is_lacking, layers)))


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
    """Returns the row about compiled bytecode of packages; an installer such as uv may leave sources alone.

    Without bytecode, sources are compiled at each start of a template: a sandbox cannot write into the environment.
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

    try:
        processes = warm_processes()
    except OSError as error:
        return _line(
            WARM_RUNS, "missing", "advice", str(error), "let XDG_RUNTIME_DIR name a folder of your own"
        )

    if processes:
        numbers = ", ".join(map(str, processes))
        what = "process" if len(processes) == 1 else "processes"
        why = f"{what} {numbers}: sandboxes kept ready for `fumehood run`; `fumehood run --stop-daemon` ends this"
        return _line(WARM_RUNS, "there", "advice", why, "")

    if idle_seconds() <= 0:
        return _line(WARM_RUNS, "missing", "advice", "turned off by FUMEHOOD_DAEMON", "unset FUMEHOOD_DAEMON")

    return _line(
        WARM_RUNS,
        "missing",
        "advice",
        "no process keeps sandboxes ready",
        "the first `fumehood run` starts one",
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


DOCTOR = Command(
    "doctor",
    run,
    brief="what this machine allows",
    about="Try every layer of isolation, start one sandbox, and compute something in it. Print what is missing or "
    "weaker than it could be, why, and how to get it. The exit code is 0 when the sandbox has worked, 1 when a "
    "required layer is missing or no sandbox starts.",
    params=[
        Option(
            ["--all"],
            is_flag=True,
            help="print every layer, as --json does, and not only what is missing or weaker",
        ),
        Option(["--json"], is_flag=True, help="print a list of objects"),
        Option(
            ["--attack"],
            is_flag=True,
            help="try harmless attacks on sandboxes of this machine, and print the scorecard; half a minute",
        ),
    ],
)
