"""`fumehood cluster`: many machines behind one server.

`up` and `join` start the node agent of this machine in the background, and print its progress; the others ask the
server of the cluster.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fumehood.cli.extras import require_extra
from fumehood.cli.options import Seconds
from fumehood.cli.parser import Argument, Command, Option, Options, Verbs
from fumehood.cli.saved import SERVER_OPTIONS
from fumehood.cli.terminal import note, write_table
from fumehood.cluster.ray_settings import DEFAULT_PORT
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.node_agent.plan import LOOPBACK, STATE_NAME, Plan, check_address, check_label
from fumehood.setting_fields import state_path
from fumehood.values.sandbox import Capacity

_COLUMNS = ("MACHINE", "STATE", "SANDBOXES", "READY", "CPU", "LOAD", "MEMORY FREE", "VERSION", "LABELS")
_GIB = 1 << 30
_LOOK_SECONDS = 0.1
_START_SECONDS = 180.0
_END_SECONDS = 120.0


def _up(options: Options) -> int:
    """Start a cluster on this machine, and return the exit code."""
    folder = _folder(options)
    host = options.address or LOOPBACK
    plan = Plan(
        state=str(folder),
        head=check_address("--address", f"{host}:{options.port}"),
        # Without an address given, no other machine is served, and none of Ray's ports listens on the network.
        node_address=host,
        labels=dict(map(check_label, options.label)),
        **_host(options),
        server_address="" if options.no_server else check_address("--listen", options.listen),
    )
    if options.token_file:
        _take_token(plan, options.token_file)
    else:
        _write_token(plan.token_file, secrets.token_hex(32))

    return _start(plan, options)


def _join(options: Options) -> int:
    """Add this machine to a cluster, and return the exit code."""
    folder = _folder(options)
    plan = Plan(
        state=str(folder),
        head=check_address("ADDRESS", options.head),
        is_head=False,
        node_address=options.address or "",
        labels=dict(map(check_label, options.label)),
        **_host(options),
        server_address=check_address("--listen", options.listen) if options.listen else "",
    )
    _take_token(plan, options.token_file)
    return _start(plan, options)


def _host(options: Options) -> dict[str, Any]:
    """Return the host daemon's part of a plan; a running daemon is asked for its name."""
    if not options.host_socket:
        return {"has_host": not options.no_host}

    socket = os.path.abspath(options.host_socket)
    return {"has_host": False, "host_socket": socket, "host_id": _capacity_at(socket).host_id}


def _folder(options: Options) -> Path:
    require_extra("cluster", "ray", "fastapi", "uvicorn", command="cluster")
    # Imported late: `status` needs no web framework.
    from fumehood.server.state_files import own_folder

    return own_folder("--state-folder", state_path(options.state_folder or "", STATE_NAME))


def _take_token(plan: Plan, path: str) -> None:
    """Store the content of the given file as the cluster token of this machine.

    Raises:
        InvalidArgumentError: The file is empty.
        OSError: The token file cannot be read.
    """
    token = Path(path).read_text(encoding="ascii").strip()

    if not token:
        raise InvalidArgumentError(
            field="--token-file", value=path, allowed="a file with a token; this one is empty"
        )

    plan.token_file.unlink(missing_ok=True)
    _write_token(plan.token_file, token)


def _write_token(path: Path, token: str) -> None:
    from fumehood.server.state_files import make_once

    make_once(path, token.encode())


def _start(plan: Plan, options: Options) -> int:
    from fumehood.node_agent.run import node_agent_pid, run_node_agent

    if (pid := node_agent_pid(plan.folder)) is not None:
        raise InvalidArgumentError(
            field="--state-folder",
            value=plan.state,
            allowed=f"one that is not in use: process {pid} uses it, and `fumehood cluster leave` ends it",
        )

    plan.save()

    if options.foreground:
        return run_node_agent(plan, os.environ)

    with open(plan.folder / "node_agent.log", "ab") as log:
        argv = [sys.executable, "-P", "-m", "fumehood", "cluster", "keep", "--state-folder", plan.state]
        agent = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )

    note(f"files, logs and the token of this machine: {plan.folder}")
    code = _wait_started(plan, agent)

    if code == 0:
        _say_next(plan)

    return code


def _wait_started(plan: Plan, agent: subprocess.Popen[bytes]) -> int:
    """Print each part as it starts, and return the exit code."""
    from fumehood.node_agent.run import read_status

    said: set[str] = set()
    wanted = ["host"] * plan.has_host + ["ray"] + ["server"] * bool(plan.server_address)
    deadline = time.monotonic() + _START_SECONDS

    while len(said) < len(wanted):
        for name, state in read_status(plan.folder).items():
            if name in wanted and name not in said and state["state"] == "running":
                note(_started(plan, name, state["pid"]))
                said.add(name)

        if agent.poll() is not None or time.monotonic() > deadline:
            late = ", ".join(name for name in wanted if name not in said)
            note(
                f"not started: {late}; see {plan.folder}/*.log; `fumehood cluster leave` ends what was started"
            )
            return 1

        time.sleep(_LOOK_SECONDS)

    return 0


def _started(plan: Plan, name: str, pid: int) -> str:
    return {
        "host": f"host daemon: {plan.socket} (process {pid}); it owns the sandboxes of this machine",
        "ray": f"Ray: {'head at' if plan.is_head else 'joined'} {plan.head} (process {pid}), with a token",
        "server": f"server: http://{plan.server_address} (process {pid}), token in {plan.server_token_file}",
    }[name]


def _say_next(plan: Plan) -> None:
    if plan.is_head and plan.node_address == LOOPBACK:
        note(
            "others can join when it is started with --address: until then Ray listens on the loopback alone"
        )
    elif plan.is_head:
        note(f"on another machine, with a copy of {plan.token_file}:")
        note(f"  fumehood cluster join {plan.head} --token-file FILE")
        note("only these machines may reach their TCP ports, except for the server's")


def _keep(options: Options) -> int:
    """Run the node agent of this machine's parts until its end, and return the exit code."""
    from fumehood.node_agent.run import run_node_agent

    return run_node_agent(Plan.read(Path(options.state_folder)), os.environ)


def _status(options: Options) -> int:
    """Print the machines of a cluster, and return the exit code."""
    while True:
        page = _asked(options, "GET", "/v1/machines")

        if options.json:
            print(json.dumps(page) if options.watch else json.dumps(page, indent=2), flush=True)
        else:
            _show(page)

        if not options.watch:
            return 0

        time.sleep(options.every)


def _show(page: dict[str, Any]) -> None:
    write_table(_COLUMNS, [_row(one) for one in page["items"]], sys.stdout)
    note(f"stateless runs at this server: {page['runs_running']} running, {page['runs_waiting']} waiting")


def _row(machine: dict[str, Any]) -> list[str]:
    labels = " ".join(f"{name}={value}" for name, value in sorted(machine["labels"].items()))
    capacity = machine["capacity"]

    if capacity is None:
        return [machine["host_id"], f"absent: {machine['reason']}", *["-"] * 6, labels]

    return [
        machine["host_id"],
        machine["state"],
        f"{capacity['sandboxes']}/{capacity['max_sandboxes']}",
        str(capacity["pool_ready"]),
        f"{capacity['cpu_cores']:g}",
        f"{capacity['load']:.1f}",
        f"{capacity['memory_available_bytes'] / _GIB:.1f} of {capacity['memory_total_bytes'] / _GIB:.1f} GiB",
        capacity["version"],
        labels,
    ]


def _drain(options: Options) -> int:
    """Drain a machine, or undo that; return the exit code."""
    path = f"/v1/machines/{options.machine}/draining"
    _asked(options, "PUT", path, json={"is_draining": not options.undo})

    if options.undo:
        note(f"{options.machine} makes sandboxes again")
        return 0

    note(f"{options.machine} makes no new sandboxes")

    while options.wait and (left := _sandboxes_of(options)):
        note(f"{left} sandboxes live there")
        time.sleep(options.every)

    return 0


def _sandboxes_of(options: Options) -> int:
    found = _asked(options, "GET", "/v1/machines")["items"]
    capacity = next((one["capacity"] for one in found if one["host_id"] == options.machine), None)
    return capacity["sandboxes"] if capacity else 0


def _leave(options: Options) -> int:
    """End what `up` or `join` has started on this machine; return the exit code."""
    from fumehood.node_agent.run import node_agent_pid

    plan = Plan.read(state_path(options.state_folder or "", STATE_NAME))
    pid = node_agent_pid(plan.folder)

    if pid is None:
        note("nothing of a cluster runs here")
        return 0

    # A host daemon that has a unit of its own lives on.
    if plan.has_host and not options.force and (living := _living(plan)):
        raise InvalidArgumentError(
            field="--force",
            value=...,
            allowed=f"given to end the {living} sandboxes of this machine; or drain it first",
        )

    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _END_SECONDS

    while node_agent_pid(plan.folder) is not None:
        if time.monotonic() > deadline:
            note(f"process {pid} still runs: see {plan.folder / 'node_agent.log'}")
            return 1

        time.sleep(_LOOK_SECONDS)

    note("this machine has left; its state folder and its token are kept")
    return 0


def _living(plan: Plan) -> int:
    """Return the number of living sandboxes on this machine; 0 if its host daemon does not answer."""
    try:
        return _capacity_at(str(plan.socket)).sandboxes
    except FumehoodError:
        return 0


def _capacity_at(socket: str) -> Capacity:
    import asyncio

    from fumehood.client.backend import connect_to_host

    async def asked() -> Capacity:
        backend = connect_to_host(socket)
        try:
            return await backend.capacity()
        finally:
            await backend.aclose()

    return asyncio.run(asked())


def _asked(options: Options, method: str, path: str, **body: Any) -> Any:
    """Ask the server that the options or the environment name, else the server of this machine; return its answer."""
    from fumehood.assemble import ask_server

    url, api_key = options.url, options.api_key

    if not url and "FUMEHOOD_URL" not in os.environ:
        with suppress(FumehoodError, OSError):
            plan = Plan.read(state_path("", STATE_NAME))

            if plan.server_address:
                url = f"http://{plan.server_address}"
                api_key = api_key or plan.server_token_file.read_text(encoding="ascii")

    return ask_server(url, api_key, method, path, **body)


_STATE = Option(
    ["--state-folder"],
    metavar="FOLDER",
    help="where its files lie (default: ~/.local/state/fumehood-cluster)",
)
_JSON = Option(["--json"], is_flag=True, help="print what the server says, as JSON")
_EVERY = Option(
    ["--every"], type=Seconds(), default=2.0, metavar="SECONDS", help="how often it is asked (default: 2)"
)
_MACHINE_OPTIONS = (
    Option(
        ["--address"],
        metavar="ADDRESS",
        help="the address by which other machines reach this one (default of `up`: none does)",
    ),
    Option(
        ["--label"],
        multiple=True,
        metavar="NAME=VALUE",
        help="a label of this machine, such as zone=a; may be repeated",
    ),
    Option(["--no-host"], is_flag=True, help="no sandboxes on this machine"),
    Option(
        ["--host-socket"],
        metavar="PATH",
        help="the socket of a `fumehood host` that runs here already, as under a unit of its own",
    ),
    Option(
        ["--foreground"],
        is_flag=True,
        help="stay in the foreground, until Ctrl-C or SIGTERM, as a container does",
    ),
    _STATE,
)
CLUSTER = Verbs(
    "cluster",
    [
        Command(
            "up",
            _up,
            brief="start a cluster, with this machine as its head",
            about="Start a cluster: the host daemon, Ray and a server on this machine, in the background, and print "
            "how others join. What ends is started again. Settings of host daemon and server are taken from the "
            "environment, as by `fumehood host` and `fumehood serve`.",
            params=[
                Option(
                    ["--port"],
                    type=int,
                    default=DEFAULT_PORT,
                    metavar="PORT",
                    help="the port of Ray's head (default: 6379)",
                ),
                Option(
                    ["--listen"],
                    default="127.0.0.1:8765",
                    metavar="HOST:PORT",
                    help="where the server listens (default: 127.0.0.1:8765)",
                ),
                Option(["--no-server"], is_flag=True, help="no server on this machine"),
                Option(
                    ["--token-file"],
                    metavar="FILE",
                    help="a token for the cluster that you have made (default: one is made)",
                ),
                *_MACHINE_OPTIONS,
            ],
        ),
        Command(
            "join",
            _join,
            brief="add this machine to a cluster",
            about="Add this machine to a cluster: the host daemon and Ray, in the background. What ends is "
            "started again.",
            params=[
                Argument("head", metavar="ADDRESS", about="HOST:PORT of the cluster's head"),
                Option(
                    ["--token-file"],
                    required=True,
                    metavar="FILE",
                    help="the cluster's token, as `up` has made it",
                ),
                Option(
                    ["--listen"], metavar="HOST:PORT", help="start a server here as well, which listens there"
                ),
                *_MACHINE_OPTIONS,
            ],
        ),
        Command(
            "status",
            _status,
            brief="show the machines of a cluster",
            about="Show the machines of a cluster: their sandboxes, their room, what is draining.",
            params=[
                Option(["--watch"], is_flag=True, help="show them again and again"),
                _EVERY,
                *SERVER_OPTIONS,
                _JSON,
            ],
        ),
        Command(
            "drain",
            _drain,
            brief="empty a machine",
            about="Have a machine make no new sandboxes, other than forks of its own. Those that live there live on.",
            params=[
                Argument("machine", metavar="MACHINE", about="its name, as `status` shows it"),
                Option(["--undo"], is_flag=True, help="have it make sandboxes again"),
                Option(["--wait"], is_flag=True, help="wait until no sandbox lives there"),
                _EVERY,
                *SERVER_OPTIONS,
            ],
        ),
        Command(
            "leave",
            _leave,
            brief="take this machine out of its cluster",
            about="End what `up` or `join` has started on this machine. Its sandboxes end with it.",
            params=[_STATE, Option(["--force"], is_flag=True, help="also while sandboxes live here")],
        ),
        Command(
            "keep",
            _keep,
            brief="run the parts of this machine; `up` and `join` start it",
            params=[_STATE],
        ),
    ],
    brief="many machines behind one server",
)
