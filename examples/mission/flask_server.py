"""A web server that a model has built, run in a sandbox and asked from outside, through the port.

Runs in your process; Flask runs in the sandbox, which must have it: `pip install flask` beside fumehood, or one of
the ways that packages.py names. The model is scripted (scripted_model.py). The sandbox has no network: what comes in
through `get_url` is all that reaches it, and nothing goes out.
"""

from __future__ import annotations

import urllib.request

from fumehood import Sandbox
from fumehood.llm import Agent
from packages import require
from scripted_model import ScriptedModel, Step

QUESTION = 'Build a Flask server on port 8000 that says "Hello, World!", and start it.'

# What a model would write: a file, the server beside the cell, and a loop that connects until somebody is there.
CODE = '''
import socket, subprocess, sys

program = """
from flask import Flask

app = Flask(__name__)

@app.get("/")
def hello():
    return "Hello, World!"

app.run(port=8000)
"""
open("app.py", "w").write(program)
server = subprocess.Popen([sys.executable, "app.py"], stdout=open("server.log", "w"), stderr=subprocess.STDOUT)

while server.poll() is None and socket.socket().connect_ex(("127.0.0.1", 8000)):
    pass

print("listens" if server.poll() is None else open("server.log").read())
'''


def main() -> None:
    """Let it be built, then be its visitor."""
    model = ScriptedModel(
        Step(reads="port 8000", code=CODE),
        Step(reads="listens", writes="It listens on port 8000; app.py is its program."),
    )

    with Sandbox() as sandbox, Agent(model, sandbox=sandbox) as agent:
        require(sandbox, {"flask": "flask"})
        print("answer: ", agent.ask(QUESTION).text)

        with urllib.request.urlopen(sandbox.get_url(8000), timeout=30) as page:
            print("outside:", page.status, page.read().decode())

        print("its log:", sandbox.files.read("server.log").splitlines()[-1])


if __name__ == "__main__":
    main()
