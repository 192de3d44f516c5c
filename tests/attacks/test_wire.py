"""H01 to H05, H07, H11: a guest that speaks the wire itself, on the very socket of its context.

Whatever it sends, the host answers with a typed error, ends that sandbox and nothing else, and holds no more memory or
descriptors than before. The control is the harmless message: sent by the same means, it is delivered.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import time

import pytest
from tests.waiting import until

from fumehood import Limits, ProtocolViolationError, SandboxError
from fumehood.api.handle import default_backend
from fumehood.values.questions import CompleteCode
from fumehood_wire.frames import CODES

MIB = 1 << 20
SPEAKER = """
import array, gc, json, os, socket, struct
channel = socket.socket(fileno=os.dup(3))
channel.setblocking(True)

def raw(*pieces):
    try:
        for piece in pieces: channel.sendall(piece)
    except OSError: pass

def frame(header, payload=b''):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack('!II', len(text), len(payload)) + text + payload

def current():
    found = [one.id for one in gc.get_objects() if type(one).__name__ == 'GuestExecution' and hasattr(one, 'id')]
    return next(name for name in found if name[-1:].isdigit())

def stream(text=b'forged', **changes):
    return frame({'type': 'stream', 'id': current(), 'name': 'stdout', 'at': 1.0, **changes}, text)

def reply(**changes):
    return frame({'type': 'execute_reply', 'id': current(), 'at': 1.0, 'status': 'ok', 'execution_count': 1,
        'user_cpu_seconds': 0.0, 'system_cpu_seconds': 0.0, 'peak_memory_bytes': 0,
        'dropped': {'stdout': 0, 'stderr': 0, 'results': 0}, **changes})

def comm(content=b'{"data":{},"metadata":{}}', **changes):
    header = {'type': 'comm_msg', 'id': current(), 'at': 1.0, 'comm_id': 'c', 'buffers': []}
    return frame({**header, **changes}, content)

def earlier():
    prefix, _, count = current().rpartition('-')
    return f'{prefix}-{int(count) - 1}'
"""


@pytest.fixture
def speaker(make):
    """A sandbox whose context can speak the wire."""
    mine = make(limits=Limits(grace_seconds=0.1))
    mine.run(SPEAKER)
    return mine


def test_h04_a_legal_message_is_delivered(speaker):
    """The control: the same means carry a message that is right, so the others fail for what they say."""
    execution = speaker.sandbox.run_code("raw(stream(b'by hand'))")
    assert "".join(execution.logs.stdout) == "by hand"
    assert execution.error is None


def run_twice(speaker, attempt):
    """Runs code that breaks the wire; a breach that comes after the reply is noticed by the next call."""
    speaker.sandbox.run_code(attempt, timeout=60)
    speaker.sandbox.run_code("1")


BREACHES = {
    # H01: size
    "header of 2 GiB": ("raw(struct.pack('!II', 1 << 31, 0))", "header_size"),
    "header of 4 GiB": ("raw(b'\\xff' * 8)", "header_size"),
    "payload of 4 GiB": ("raw(struct.pack('!II', 2, 0xffffffff), b'{}')", "payload_size"),
    "no frame at all": ("raw(b'GET / HTTP/1.1\\r\\n\\r\\n')", "header_size"),
    "a gigabyte of it": ("[raw(b'\\xfe' * (1 << 20)) for _ in range(1024)]", "header_size"),
    # H02: nesting and nodes
    "deep": ("raw(frame(b'[' * 100_000 + b']' * 100_000))", "depth"),
    "deep objects": ("raw(frame(b'{\"a\":' * 5000 + b'1' + b'}' * 5000))", "depth"),
    "many values": ("raw(frame(b'{\"type\":\"stream\",\"x\":[' + b'1,' * 400_000 + b'1]}'))", "nodes"),
    "many keys": (
        "raw(frame(json.dumps({str(n): 1 for n in range(60_000)} | {'type': 'x'}).encode()))",
        "unknown_type",
    ),
    "a key twice": ('raw(frame(b\'{"type":"stream","type":"status"}\'))', "duplicate_key"),
    # H03: encoding and numbers
    "no UTF-8": ('raw(frame(b\'{"type":"\\xff\\xfe"}\'))', "encoding"),
    "no JSON": ("raw(frame(b'not json'))", "syntax"),
    "not an object": ("raw(frame(b'[]'))", "not_object"),
    "no type": ("raw(frame(b'{}'))", "type"),
    "unknown type": ("raw(frame({'type': 'shutdown_everything'}))", "unknown_type"),
    "a type of the other direction": ("raw(frame({'type': 'shutdown_request'}))", "unknown_type"),
    "a message of init": (
        "raw(frame({'type': 'event', 'event': 'process_exit', 'pid': 2, 'exit_code': 0}))",
        "unknown_type",
    ),
    "not a number": ('raw(frame(b\'{"type":"stream","at":NaN}\'))', "number"),
    "infinity": ('raw(frame(b\'{"type":"stream","at":1e999}\'))', "number"),
    "a long integer": ("raw(frame(b'{\"type\":\"stream\",\"at\":' + b'9' * 100_000 + b'}'))", "number"),
    "bool for a number": ("raw(stream(at=True))", "field"),
    "wrong type": ("raw(stream(name=7))", "field"),
    "missing field": ("raw(frame({'type': 'stream'}))", "field"),
    "unknown field": ("raw(stream(extra=1))", "field"),
    "negative count": ("raw(reply(execution_count=-1))", "field"),
    "negative parts": (
        "raw(frame({'type': 'display_data', 'id': current(), 'at': 1.0, 'metadata': {}, 'parts': [['a/b', -1]]}))",
        "field",
    ),
    "parts that do not add up": (
        "raw(frame({'type': 'display_data', 'id': current(), 'at': 1.0, 'metadata': {}, 'parts': [['a/b', 9]]}, b'x'))",
        "payload",
    ),
    "text that is none": ("raw(stream(b'\\xff'))", "encoding"),
    "a traceback that is none": (
        "raw(frame({'type': 'error', 'id': current(), 'at': 1.0, 'ename': 'E', 'evalue': ''}, b'{}'))",
        "payload",
    ),
    # H04: order
    "an id of nobody": ("raw(stream(id='0123456789abcdef-1'))", "order"),
    "an id to come": ("raw(stream(id=current() + '0'))", "order"),
    "an id in other digits": ("raw(stream(id=earlier().replace('-', '-0')))", "order"),
    "a reply to an earlier one": ("raw(reply(id=earlier()))", "order"),
    "a result of an earlier one": (
        "raw(frame({'type': 'error', 'id': earlier(), 'at': 1.0, 'ename': 'E', 'evalue': ''}, b'[]'))",
        "order",
    ),
    "two replies": ("raw(reply(), reply())", "order"),
    "output that comes first after the end": ("one = reply(); raw(one, one)", "order"),
    "ready again": ("raw(frame({'type': 'status', 'state': 'ready', 'pid': 2}))", "order"),
    # Answers that nobody has asked for, and comms that are none
    "an answer to no question": (
        "raw(frame({'type': 'complete_reply', 'id': current(), 'cursor_start': 0, 'cursor_end': 0}, b'[]'))",
        "order",
    ),
    "a description of nothing": (
        "raw(frame({'type': 'inspect_reply', 'id': current(), 'parts': []}))",
        "order",
    ),
    "a comm without its text": ("raw(comm(b''))", "syntax"),
    "a comm with other fields": ('raw(comm(b\'{"data":{},"metadata":{},"more":1}\'))', "payload"),
    "buffers that are not there": ("raw(comm(b'{}', buffers=[1 << 40]))", "payload"),
    "a thousand buffers": ("raw(comm(b'{}', buffers=[0] * 1000))", "field"),
    "a comm as the host says it": ("raw(comm(b'{}', stdout_bytes=1))", "field"),
    "a comm of nobody": ("raw(comm(b'{\"data\":{},\"metadata\":{}}', id='0123456789abcdef-1'))", "order"),
    "a question that may not be asked": (
        "raw(frame({'type': 'input_request', 'id': current(), 'at': 1.0, 'password': False}, b'password?'))",
        "order",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_h01_h02_h03_h04_a_breach_is_a_typed_error(breach, speaker, host_memory):
    """The sandbox has ended, every later call says why, and the others go on."""
    attempt, rule = BREACHES[breach]
    assert rule in CODES
    before = host_memory()
    started = time.monotonic()

    with pytest.raises(ProtocolViolationError) as caught:
        run_twice(speaker, attempt)

    # Not by the clock.
    assert time.monotonic() - started < 30
    assert f"({rule})" in str(caught.value)
    assert host_memory() - before < 32 * MIB
    assert not speaker.sandbox.is_running()

    with pytest.raises(ProtocolViolationError):
        speaker.sandbox.files.list()


def test_h04_nothing_forged_reaches_another_call(make, speaker):
    """While one sandbox forges replies for everybody, a neighbour's executions have their own results."""
    neighbour = make()

    with pytest.raises(SandboxError):
        run_twice(speaker, "[raw(reply(id=f'{current()[:16]}-{n}')) for n in range(100)]")

    for number in range(10):
        assert neighbour.sandbox.run_code(f"{number} + 1").text == str(number + 1)


STALLS = {
    "half a frame": "raw(struct.pack('!II', 1000, 0) + b'{')\nimport time; time.sleep(60)",
    "half a prefix": "raw(b'\\0')\nimport time; time.sleep(60)",
    "a byte at a time": (
        "import time\nfor byte in stream(b'x' * 1000):\n    raw(bytes([byte]))\n    time.sleep(0.05)"
    ),
    "a stopped reader": "import time\nos.kill(os.getpid(), 19)",
    "no reply": "os.close(3); channel.close()\nimport time; time.sleep(60)",
    "half closed": "channel.shutdown(socket.SHUT_WR)\nimport time; time.sleep(60)",
}


@pytest.mark.parametrize("stall", STALLS)
def test_h05_a_stall_ends_by_the_clock(stall, speaker):
    """Half of something and then silence: the time limit decides, and the sandbox stays or ends with a typed error."""
    started = time.monotonic()
    try:
        execution = speaker.sandbox.run_code(STALLS[stall], timeout=0.3)
        assert execution.error is not None
        assert execution.error.kind in {"time_limit", "context_died"}
        assert speaker.run("print(1)") == "1\n"
    except SandboxError:
        assert not speaker.sandbox.is_running()

    assert time.monotonic() - started < 30


def test_h05_a_host_that_is_not_read_does_not_hang(speaker):
    """Code larger than any buffer, sent to a context that has stopped reading."""
    pid = speaker.run("print(os.getpid())").strip()
    speaker.sandbox.commands.run(["kill", "-STOP", pid])
    until(lambda: speaker.sandbox.commands.run(f"grep '^State:.*stopped' /proc/{pid}/status; true").stdout)
    execution = speaker.sandbox.run_code("#" * (8 * MIB), timeout=0.5)
    assert execution.error is not None
    assert execution.error.kind == "time_limit"
    assert speaker.run("print(1)") == "1\n"


@pytest.mark.parametrize("count", [1, 100, 253])
def test_h07_passed_descriptors_are_never_taken(count, speaker, host_descriptors):
    """On a legal message and on every kind of it, many times; the host's count stays as it was."""
    speaker.run("1")
    before = host_descriptors()
    execution = speaker.sandbox.run_code(
        f"null = os.open('/dev/null', os.O_RDONLY)\n"
        f"fds = array.array('i', [null] * {count}).tobytes()\n"
        f"refused = 0\n"
        f"for number in range(100):\n"
        f"    try: channel.sendmsg([stream(b'.')], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])\n"
        f"    except OSError: refused += 1\n"
        f"print(refused)\n"
    )
    assert execution.error is None, execution.error
    assert "." * (100 - int(execution.logs.stdout[-1])) in "".join(execution.logs.stdout) or count == 253
    # As many as sandboxes that are kept ready may have taken meanwhile, and fewer than were sent.
    assert host_descriptors() < before + 64


def test_h07_a_descriptor_that_is_slow_to_close_does_not_hold_the_host(speaker, make):
    """A connection with unsent bytes that lingers for a minute when it is closed: given to the host to close."""
    neighbour = make()
    started = time.monotonic()
    refused = speaker.run(
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "full = socket.create_connection(listener.getsockname())\n"
        "full.setblocking(False)\n"
        "try:\n"
        "    while True: full.send(bytes(1 << 16))\n"
        "except BlockingIOError: pass\n"
        "try: full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 60))\n"
        "except OSError as error: print(error.strerror)\n"
        "fds = array.array('i', [full.fileno()]).tobytes()\n"
        "try: channel.sendmsg([stream(b'')], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])\n"
        "except OSError: pass\n"
        "os.close(full.detach())\n"
    )
    assert neighbour.run("print(1)") == "1\n"
    assert refused == "Operation not permitted\n"
    assert time.monotonic() - started < 10


def test_h07_who_closes_a_lingering_socket_last_waits():
    """The control: outside, the same close takes as long as whoever made the socket wants."""
    listener = socket.create_server(("127.0.0.1", 0))
    full = socket.create_connection(listener.getsockname())
    full.setblocking(False)

    with pytest.raises(BlockingIOError):
        send_without_end(full)

    full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
    started = time.monotonic()
    full.close()
    assert time.monotonic() - started > 0.5
    listener.close()


def send_without_end(sock):
    while True:
        sock.send(bytes(1 << 16))


ANSWERS = {
    "one": ("{'cursor_start': 0, 'cursor_end': 3}, b'[\"match\"]'", None),
    "outside of the code": ("{'cursor_start': 0, 'cursor_end': 4}, b'[]'", "field"),
    "backwards": ("{'cursor_start': 3, 'cursor_end': 2}, b'[]'", "field"),
    "not a list": ("{'cursor_start': 0, 'cursor_end': 0}, b'{}'", "payload"),
    "a long match": ("{'cursor_start': 0, 'cursor_end': 0}, json.dumps(['x' * 2000]).encode()", "payload"),
    "many matches": ("{'cursor_start': 0, 'cursor_end': 0}, json.dumps(['x'] * 2000).encode()", "payload"),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_h04_a_forged_answer_is_held_against_its_question(answer, speaker):
    """Code that is looked at answers in place of the context; the control is the answer that could be one."""
    content, rule = ANSWERS[answer]
    speaker.run(
        "class Liar:\n"
        "    def __dir__(self):\n"
        "        prefix, _, count = current().rpartition('-')\n"
        "        header = {'type': 'complete_reply', 'id': f'{prefix}-{int(count) + 1}'}\n"
        "        def answered(fields, payload): raw(frame({**header, **fields}, payload))\n"
        f"        answered({content})\n"
        "        os._exit(0)\n"
        "it = Liar()\n"
    )
    asking = default_backend().ask(speaker.sandbox.id, CompleteCode(code="it.", cursor=3))

    if rule is None:
        assert asyncio.run(asking).matches == ("match",)
        return

    with pytest.raises(ProtocolViolationError) as caught:
        asyncio.run(asking)

    assert f"({rule})" in str(caught.value)
    assert not speaker.sandbox.is_running()


def test_h05_a_look_that_cannot_be_interrupted_ends_by_the_clock(speaker):
    """It blocks SIGINT and never returns: the answer is empty in bounded time, and the context a fresh one."""
    speaker.run(
        "import signal\n"
        "class Deaf:\n"
        "    def __dir__(self):\n"
        "        signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "        while True: pass\n"
        "it = Deaf()\n"
    )
    started = time.monotonic()
    answer = asyncio.run(default_backend().ask(speaker.sandbox.id, CompleteCode(code="it.", cursor=3)))
    assert answer.matches == ()
    assert time.monotonic() - started < 30
    assert speaker.run("print('it' in globals())") == "False\n"


def test_h07_credentials_and_odd_control_messages_do_no_harm(speaker, host_descriptors):
    """Credentials of one's own pass unseen, those of others are refused by the kernel; wrong lengths too."""
    before = host_descriptors()
    said = speaker.run(
        "import errno\n"
        "for kind, content in 100 * ((2, struct.pack('3i', os.getpid(), 1000, 1000)),\n"
        "                            (2, struct.pack('3i', 1, 0, 0)),\n"
        "                            (1, b'x'), (1, struct.pack('i', -1)), (99, b'abcd')):\n"
        "    try: channel.sendmsg([stream(b' ')], [(socket.SOL_SOCKET, kind, content)]); print('ok')\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
    ).split()
    assert said[0] == "ok"
    assert "ok" not in said[1:2]
    assert said[3] == "EBADF"
    assert speaker.run("print(1)") == "1\n"
    assert host_descriptors() < before + 64


def test_h07_a_socket_gives_its_descriptors_to_who_asks(tmp_path):
    """The control: between ordinary processes the same message carries the descriptor over."""
    near, far = socket.socketpair()
    socket.send_fds(near, [b"x"], [near.fileno()])
    _, fds, _, _ = socket.recv_fds(far, 1, 1)
    assert len(fds) == 1

    for fd in fds:
        os.close(fd)

    near.close()
    far.close()


def test_what_comes_between_executions_is_bounded(speaker, host_memory):
    """Large displays of an execution that has ended: kept up to a few megabytes, then dropped."""
    speaker.run(
        "import threading\n"
        "mine = current()\n"
        "def flood():\n"
        "    payload = b'x' * (10 << 20)\n"
        "    parts = [['text/plain', len(payload)]]\n"
        "    header = {'type': 'display_data', 'id': mine, 'at': 1.0, 'parts': parts, 'metadata': {}}\n"
        "    ended.wait()\n"
        "    raw(*[frame(header, payload)] * 40)\n"
        "    open('flooded', 'w').close()\n"
        "ended = threading.Event()\n"
        "threading.Thread(target=flood, daemon=True).start()\n"
        "threading.Timer(0.05, ended.set).start()\n"
    )
    before = host_memory()
    until(lambda: speaker.sandbox.files.exists("flooded"))
    assert host_memory() - before < 96 * MIB
    assert speaker.run("print(1)").endswith("1\n")


@pytest.mark.parametrize("seed", range(24))
def test_h11_mutated_frames_end_in_a_typed_error_or_nothing(seed, speaker, host_memory, host_descriptors):
    """Real messages with bytes flipped, cut out, doubled and moved: never another exception, never a hang."""
    choices = random.Random(seed)
    before, open_before = host_memory(), host_descriptors()
    code = (
        f"import random, time\n"
        f"choices = random.Random({seed})\n"
        f"common = {{'id': current(), 'at': 1.0}}\n"
        f"seeds = [stream(b'text'), reply(status='error'),\n"
        f"    frame({{'type': 'clear_output', 'wait': True, **common}}),\n"
        f"    frame({{'type': 'display_data', 'metadata': {{}}, 'parts': [['a/b', 2]], **common}}, b'xy'),\n"
        f"    frame({{'type': 'error', 'ename': 'E', 'evalue': 'v', **common}}, b'[\"line\"]')]\n"
        f"for _ in range({choices.randrange(1, 200)}):\n"
        f"    data = bytearray(choices.choice(seeds))\n"
        f"    for _ in range(choices.randrange(4)):\n"
        f"        place = choices.randrange(len(data))\n"
        f"        kind = choices.randrange(4)\n"
        f"        if kind == 0: data[place] ^= 1 << choices.randrange(8)\n"
        f"        elif kind == 1: del data[place:place + choices.randrange(8)]\n"
        f"        elif kind == 2: data[place:place] = data[:choices.randrange(16)]\n"
        f"        else: data[place] = choices.randrange(256)\n"
        f"    raw(bytes(data))\n"
    )
    try:
        speaker.sandbox.run_code(code, timeout=1)
        speaker.sandbox.run_code("1", timeout=1)
    except SandboxError:
        assert not speaker.sandbox.is_running()

    assert host_memory() - before < 64 * MIB
    assert host_descriptors() < open_before + 32
