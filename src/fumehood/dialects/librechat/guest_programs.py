"""The guest programs for code that calls tools: a broker, and the functions by which code reaches it.

This module has their source as text: none of it runs in the server. The broker is the program that the server starts.
It runs the user's code as its child, and writes on its standard output, one JSON object a line, which tools are called,
and how the code ended; the results come as lines on its standard input. The user's code has the same rights as the
broker, so its output is trusted no more than the code.
"""

from __future__ import annotations

FOLDER = "/tmp/.tools"  # noqa: S108 - inside a sandbox of its own

BROKER = '''\
import json, os, socket, subprocess, sys, threading

FOLDER, MAX_BYTES, QUIET_SECONDS = "/tmp/.tools", 1 << 20, 0.03
changed = threading.Condition()
arrived, replies = [], {}
count = 0


def serve(connection):
    """One connection: a line of calls, then a line of their results."""
    global count
    with connection, connection.makefile("rwb") as stream:
        calls = json.loads(stream.readline())
        ids = []
        with changed:
            for call in calls:
                count += 1
                ids.append("call_%03d" % count)
                arrived.append({"id": ids[-1], "name": call["name"], "input": call["input"]})
            changed.notify_all()
            changed.wait_for(lambda: all(i in replies for i in ids))
            results = [replies.pop(i) for i in ids]
        stream.write(json.dumps(results).encode() + b"\\n")
        stream.flush()


def accept(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


def drain(pipe, kept):
    while piece := os.read(pipe.fileno(), 65536):
        kept += piece[: max(0, MAX_BYTES - len(kept))]


def wait(child):
    child.wait()
    with changed:
        changed.notify_all()


def say(message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()


def take_calls(child):
    """The calls that wait, when no more come; none when the code has ended."""
    with changed:
        changed.wait_for(lambda: arrived or child.returncode is not None)
        known = -1
        while arrived and known != len(arrived):
            known = len(arrived)
            changed.wait(QUIET_SECONDS)
        calls, arrived[:] = list(arrived), []
    return [] if child.returncode is not None else calls


listener = socket.socket(socket.AF_UNIX)
listener.bind(FOLDER + "/socket")
listener.listen(128)
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
streams = {"stdout": bytearray(), "stderr": bytearray()}
drains = [
    threading.Thread(target=drain, args=(getattr(child, name), kept), daemon=True) for name, kept in streams.items()
]
for thread in (*drains, threading.Thread(target=wait, args=(child,), daemon=True),
               threading.Thread(target=accept, args=(listener,), daemon=True)):
    thread.start()
while calls := take_calls(child):
    say({"calls": calls})
    results = json.loads(sys.stdin.readline())
    with changed:
        replies.update(results)
        changed.notify_all()
for thread in drains:
    thread.join(1)
say({"exit": child.returncode, **{name: kept.decode("utf-8", "replace") for name, kept in streams.items()}})
os._exit(0)
'''

CALLING = '''\
import json, socket


class ToolError(RuntimeError):
    """A tool has failed, or there was none."""


def exchange(calls):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("/tmp/.tools/socket")
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(calls, default=str).encode() + b"\\n")
            stream.flush()
            line = stream.readline()
    if not line:
        raise ToolError("the tools are gone")
    return json.loads(line)


def value(reply):
    if reply.get("is_error"):
        raise ToolError(reply.get("error_message") or "the tool failed")
    return reply.get("result")
'''

PYTHON_RUNNER = '''\
import ast, asyncio, inspect, json, linecache, os, sys, traceback, types

sys.path.insert(0, "/tmp/.tools")
import calling

waiting = []


def flush():
    entries, waiting[:] = list(waiting), []
    loop = asyncio.get_running_loop()
    done = loop.run_in_executor(None, calling.exchange, [call for call, _ in entries])

    def deliver(done):
        for index, (_, future) in enumerate(entries):
            if future.done():
                continue
            try:
                future.set_result(calling.value(done.result()[index]))
            except Exception as error:
                future.set_exception(error)

    done.add_done_callback(deliver)


async def awaited(call):
    """Waits for a result. Calls that begin in the same turn of the loop go out together."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    waiting.append((call, future))
    if len(waiting) == 1:
        loop.call_soon(loop.call_soon, flush)
    return await future


def tool(identifier, name):
    def call(*args, **kwargs):
        if len(args) == 1 and isinstance(args[0], dict) and not kwargs:
            kwargs, args = args[0], ()
        if args:
            raise TypeError(identifier + "() takes keyword arguments only")
        asked = {"name": name, "input": kwargs}
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # Code cannot await here: the result itself.
            return calling.value(calling.exchange([asked])[0])
        return awaited(asked)

    call.__name__ = call.__qualname__ = identifier
    return call


space = sys.modules["__main__"].__dict__
with open("/tmp/.tools/tools.json", encoding="utf-8") as file:
    tools = {identifier: tool(identifier, name) for identifier, name in json.load(file).items()}
with open("/tmp/.tools/main.py", encoding="utf-8") as file:
    text = file.read()
names = {"__name__": "__main__", "__file__": "main.py", "asyncio": asyncio, "json": json, **tools}
module = types.ModuleType("__main__")
module.__dict__.update(names)
sys.modules["__main__"] = module
sys.path[0] = os.getcwd()
sys.argv = ["main.py"]
linecache.cache["main.py"] = (len(text), None, text.splitlines(True), "main.py")
try:
    code = compile(text, "main.py", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(types.FunctionType(code, module.__dict__)())
    else:
        exec(code, module.__dict__)
except SystemExit:
    raise
except BaseException as error:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != "main.py":
        frames = frames.tb_next
    sys.stdout.flush()
    traceback.print_exception(type(error), error, frames)
    sys.exit(1)
'''

BASH_CALL = """\
import json, sys

sys.path.insert(0, "/tmp/.tools")
import calling

with open("/tmp/.tools/tools.json", encoding="utf-8") as file:
    name = json.load(file)[sys.argv[1]]
given = sys.argv[2] if len(sys.argv) > 2 and sys.argv[2].strip() else "{}"
try:
    given = json.loads(given)
except ValueError:
    pass
try:
    result = calling.value(calling.exchange([{"name": name, "input": given}])[0])
except calling.ToolError as error:
    sys.exit(sys.argv[1] + ": " + str(error))
print(json.dumps(result, ensure_ascii=False, separators=(",", ":")))
"""


def bash_functions(identifiers: list[str]) -> str:
    """Returns the functions by which Bash calls tools; identifiers are made of letters, digits and `_`."""
    return "\n".join(
        f'{identifier}() {{ python3 -I -S {FOLDER}/call.py {identifier} "$@"; }}'
        for identifier in identifiers
    )
