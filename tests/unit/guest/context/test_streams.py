"""What is printed: frames, limits, descriptors, threads."""

from __future__ import annotations

import pytest


def frames(outcome, name="stdout"):
    return [payload.decode() for header, payload in outcome.of("stream") if header["name"] == name]


def test_a_line_is_a_frame(context):
    """Text is sent at each newline, and what is left at the end of the cell."""
    assert frames(
        context.run("print('a', 1, sep=' ')\nprint('b', end='')\nprint('c')\nprint('d', end='')")
    ) == ["a 1\n", "bc\n", "d"]


def test_a_line_is_sent_before_the_cell_ends(context):
    """A line reaches the host while the cell goes on."""
    seen = []

    def go_on(header, _payload):
        seen.append(header["type"])
        context.interrupt()

    outcome = context.run("print('now')\nimport time\ntime.sleep(60)", on_message=go_on)
    assert seen[0] == "stream"
    assert outcome.error[0] == "KeyboardInterrupt"


def test_flush_sends_a_part_of_a_line(context):
    """flush() sends what is there; 8 KiB are sent anyway."""
    assert frames(context.run("print('a', end='', flush=True)\nprint('b')")) == ["a", "b\n"]
    assert len(frames(context.run("import sys\nfor _ in range(20): sys.stdout.write('x' * 1000)"))) == 3


def test_stderr_and_warnings(context):
    """stderr, warnings and logging come on the stream of that name."""
    outcome = context.run(
        "import sys, warnings, logging\nprint('e', file=sys.stderr)\nwarnings.warn('w')\nlogging.warning('l')"
    )
    assert outcome.stderr.startswith("e\n")
    assert "UserWarning: w" in outcome.stderr
    assert "WARNING:root:l" in outcome.stderr
    assert outcome.stdout == ""


def test_the_stream_objects_are_like_files(context):
    """encoding, isatty, fileno, buffer, writelines, and a TypeError for what is no text."""
    outcome = context.run(
        "import sys\n"
        "sys.stdout.buffer.write('ä'.encode()[:1]); sys.stdout.buffer.write('ä'.encode()[1:] "
        "+ b'\\n')\n"
        "sys.stdout.writelines(['x', 'y\\n'])\nsys.stdout.close()\n"
        "[sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.fileno(), sys.stderr.fileno(), "
        "sys.stdout.writable(), sys.stdout.name]"
    )
    assert outcome.stdout == "ä\nxy\n"
    assert outcome.text == "['utf-8', False, 1, 2, True, '<stdout>']"
    assert context.run("sys.stdout.write(b'x')").error[0] == "TypeError"


def test_threads_may_print(context):
    """Lines of several threads are all there and whole."""
    outcome = context.run(
        "import threading\n"
        "def work(n):\n    for i in range(200): print(f'{n}-{i}')\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads];"
    )
    assert sorted(outcome.stdout.split()) == sorted(f"{n}-{i}" for n in range(4) for i in range(200))


def test_a_thread_may_print_after_the_cell(context):
    """What a thread prints later comes with the id of an execution that was."""
    context.run(
        "import threading\ngo = threading.Event()\ndef late():\n    go.wait()\n"
        "    print('late')\nt = threading.Thread(target=late); t.start()"
    )
    outcome = context.run("go.set(); t.join()")
    assert outcome.stdout + "".join(payload.decode() for _, payload in context.background) == "late\n"


def test_all_text_is_sent_whatever_the_limit(context):
    """The host keeps head and tail of what comes, so that the context leaves nothing out."""
    outcome = context.run("print('ä' * 600)\nprint('more')", stdout_bytes=1001)
    assert outcome.stdout == "ä" * 600 + "\nmore\n"
    assert outcome.reply["dropped"] == {"stdout": 0, "stderr": 0, "results": 0}


@pytest.mark.parametrize(
    "code",
    ["for _ in range(50_000): print('x' * 1000)", "s = 'x' * 1_000_000\nfor _ in range(50): print(s)"],
)
def test_a_flood_takes_no_memory(context, code):
    """50 MB are printed in flat memory."""
    context.run("print('x')")
    before = context.run("1").reply["peak_memory_bytes"]
    outcome = context.run(code)
    assert len(outcome.stdout) >= 50_000_000
    assert outcome.reply["peak_memory_bytes"] - before < 16 << 20


def test_children_write_to_the_descriptors(context):
    """The output of a child is on fd 1; the text that follows is marked as coming after it."""
    outcome = context.run(
        "import subprocess\nprint('one')\nsubprocess.run('echo two', shell=True)\nprint('three')"
    )
    first, second = outcome.of("stream")
    assert (first[1], second[1]) == (b"one\n", b"three\n")
    assert "unread_stdout" not in first[0]
    assert context.fd_out == "two\n"


def test_text_after_unread_bytes_is_marked(context):
    """The number of bytes that lie unread in the pipe is sent, and only then."""
    context.send("import os\nos.write(1, b'raw')\nprint('after')")
    # The driver reads the channel alone here, so that the pipe stays unread.
    fds, context.fds = context.fds, {}
    outcome = context.finish()
    context.fds = fds
    ((header, _),) = outcome.of("stream")
    assert header["unread_stdout"] == 3
    assert "unread_stderr" not in header
    assert context.fd_out == "raw"


def test_c_stdio_is_flushed(context):
    """What C code has printed is on fd 1 when the reply comes."""
    context.run("import ctypes\nctypes.CDLL(None).printf(b'from C')")
    assert context.fd_out == "from C"


def test_replaced_streams_come_back(context):
    """A cell that replaces or breaks sys.stdout does not silence the next one."""
    context.run("import sys\nsys.stdout = None\nsys.stderr = 5")
    assert context.run("print('back')").stdout == "back\n"
    outcome = context.run(
        "import io, contextlib\n"
        "with contextlib.redirect_stdout(io.StringIO()) as f: print('held')\nf.getvalue()"
    )
    assert (outcome.stdout, outcome.text) == ("", "'held\\n'")


def test_b15_a_flood_of_lines_is_sent_together(context):
    """Lines in quick succession share frames, but the first, which is sent at once; none is missing, in their order.

    A frame for each, of which 200,000 took 3.4 s, would be as many frames as lines.
    """
    outcome = context.run("for n in range(200_000): print(n)")
    sent = frames(outcome)
    assert outcome.stdout == "".join(f"{n}\n" for n in range(200_000))
    assert sent[0] == "0\n"
    # Some 220 on a quiet machine: one each 8 KiB, or each 5 ms.
    assert len(sent) < 5_000


def test_the_first_lines_of_a_burst_are_sent_each_by_itself(context):
    """A few lines are frames of their own, however quickly they come."""
    assert frames(context.run("for n in range(10): print(n)")) == [f"{n}\n" for n in range(10)]


def test_what_was_gathered_leaves_when_the_code_falls_silent(context):
    """The last line of a flood comes while the cell waits, without another line, and also while it computes."""
    for silence in ("threading.Event().wait(60)", "while True: pass"):
        seen = []

        def go_on(_header, payload, seen=seen):
            seen.append(payload.decode())

            if "2999\n" in "".join(seen):
                context.interrupt()

        outcome = context.run(
            f"import threading\nfor n in range(3000): print(n)\n{silence}", on_message=go_on
        )
        assert outcome.error[0] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run(['sh', '-c', 'echo between'])",
        "os.system('echo between')",
        "os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'echo between'], os.environ), 0)",
        "pid = os.fork() or (print('between'), os._exit(0)); os.waitpid(pid, 0)",
        "p = multiprocessing.get_context('fork').Process(target=print, args=('between',)); p.start(); p.join()",
    ],
)
def test_a_flood_is_sent_before_another_process_starts(context, start):
    """What was printed before a child is there before the child's output, and only once."""
    context.send(f"import os, subprocess, multiprocessing\nfor n in range(3000): print(n)\n{start}")
    # The driver reads the channel alone here: what comes first is what was sent first.
    fds, context.fds = context.fds, {}
    outcome = context.finish()
    context.fds = fds
    assert outcome.stdout == "".join(f"{n}\n" for n in range(3000))
    assert context.fd_out == "between\n"
    assert not any("unread_stdout" in header for header, _ in outcome.of("stream"))


def test_a_flood_on_both_streams_keeps_its_order(context):
    """Lines of both streams come in the order in which they were printed."""
    outcome = context.run(
        "import sys\nfor n in range(2000):\n    print(n)\n    if n % 10 == 0: print(n, file=sys.stderr)"
    )
    text = "".join(payload.decode() for _, payload in outcome.of("stream"))
    assert text == "".join(f"{n}\n" * (2 if n % 10 == 0 else 1) for n in range(2000))


_UNTIL_A_BURST = (
    "import sys, threading, time\n"
    "while 'write' not in vars(sys.stdout): print('x')\n"
    "sys.stdout.flush()\n"
    "while 'write' not in vars(sys.stdout): print('y')\n"
)


def lines_of(outcome):
    """What follows the lines that began the burst."""
    return "".join(line for line in outcome.stdout.splitlines(True) if line not in ("x\n", "y\n"))


def test_a_burst_is_taken_by_c_code(context):
    """Each print of it costs two calls of Python code less, and what it takes is what Python code would have taken."""
    outcome = context.run(
        _UNTIL_A_BURST + "kept = sys.stdout.write\n"
        "lone = chr(0xD800)\n"
        "print(type(kept).__name__, kept('äöü\\n'), 'ß', lone.encode('utf-8', 'surrogatepass'))\n"
        "try: kept(5)\nexcept TypeError as error: print('refused')\n"
        "sys.stderr.write('between\\n')\n"
        "kept('after')\n"
        "print(' it')"
    )
    whole = "".join(payload.decode() for _, payload in outcome.of("stream"))
    whole = whole.replace("x\n", "").replace("y\n", "")
    assert whole == "äöü\nbuiltin_function_or_method 4 ß b'\\xed\\xa0\\x80'\nrefused\nbetween\nafter it\n"


def test_an_unfinished_line_of_a_burst_stays_whole(context):
    """Lines of other threads come before it."""
    outcome = context.run(
        _UNTIL_A_BURST + "sys.stdout.write('left')\n"
        "while 'write' in vars(sys.stdout): time.sleep(0.001)\n"
        "other = threading.Thread(target=print, args=('other',))\n"
        "other.start(); other.join()\n"
        "print(' right')"
    )
    assert lines_of(outcome) == "other\nleft right\n"


@pytest.mark.parametrize("text", ["z", "z" * 100, "z" * 100_000])
def test_a_burst_without_a_newline_is_sent_in_pieces(context, text):
    """What it takes before it sends is bounded, and all of it arrives."""
    outcome = context.run(
        _UNTIL_A_BURST
        + f"for _ in range({3_000_000 // len(text) // 10}): sys.stdout.write({text[0]!r} * {len(text)})"
    )
    assert lines_of(outcome) == text[0] * (3_000_000 // len(text) // 10 * len(text))
    assert len(outcome.of("stream")) > 10


def test_several_threads_may_flood(context):
    """Gathered lines of several threads are all there and whole."""
    outcome = context.run(
        "import threading\n"
        "def work(n):\n    for i in range(5000): print(f'{n}-{i}')\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads];"
    )
    assert sorted(outcome.stdout.split()) == sorted(f"{n}-{i}" for n in range(4) for i in range(5000))


def test_a_thread_begins_no_burst(context):
    """A burst is of the main thread, while there is no other: two would write in the middle of each other's lines."""
    context.run("import sys, threading")
    outcome = context.run(
        "def work():\n"
        "    for _ in range(500): print('.'); found.append('write' in vars(sys.stdout))\n"
        "found = []\n"
        "for _ in range(20): other = threading.Thread(target=work); other.start(); other.join()\n"
        "len(found), any(found)"
    )
    assert outcome.text == "(10000, False)"


def test_a_line_that_is_unfinished_while_others_are_sent_stays_whole(context):
    """Sending gathered lines after a while takes no part of a line that a thread has begun."""
    outcome = context.run(
        "import sys, threading, time\n"
        "for n in range(40): print(n)\n"
        "sys.stdout.write('left')\n"
        "while sys.stdout._streams.gathering._lines: time.sleep(0.001)\n"
        "other = threading.Thread(target=print, args=('other',))\n"
        "other.start(); other.join()\n"
        "print(' right')"
    )
    assert outcome.stdout == "".join(f"{n}\n" for n in range(40)) + "other\nleft right\n"


def test_a_flood_leaves_no_thread_behind(context):
    """The thread that watches over a flood is gone when the cell has ended, and at each fork."""
    context.run("import os\nfor n in range(3000): print(n)")
    assert context.run("len(os.listdir('/proc/self/task'))").text == "1"
    outcome = context.run(
        "for n in range(3000): print(n)\n"
        "if pid := os.fork(): os.waitpid(pid, 0)\n"
        "else: print(len(os.listdir('/proc/self/task'))); os._exit(0)"
    )
    assert outcome.stdout == "".join(f"{n}\n" for n in range(3000))
    assert context.fd_out == "1\n"


def test_a_handler_that_forks_within_a_print(context):
    """A signal's handler may fork in the middle of a flood: nobody waits for ever, and nothing comes twice."""
    outcome = context.run(
        "import os, signal\n"
        "def ring(*_):\n    pid = os.fork() or os._exit(0)\n    os.waitpid(pid, 0)\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.001)\n"
        "signal.signal(signal.SIGALRM, ring)\nsignal.setitimer(signal.ITIMER_REAL, 0.001)\n"
        "for n in range(20_000): print(n)\n"
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)"
    )
    assert sorted(map(int, outcome.stdout.split())) == list(range(20_000))


# Each exception comes at a moment of chance within a flood of lines, to both streams where `{stream}` says so.
_RAISED_WITHIN_PRINTS = """
import signal, sys, threading
class Ring(Exception): pass
armed = False
def ring(*_):
    global armed
    if armed:
        armed = False
        raise Ring
{before}
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
n = rung = 0
while n < 30_000:
    try:
        armed = True
        while n < 30_000:
            {stream}.write(f"{{n}}\\n")
            n += 1
        armed = False
    except Ring:
        rung += 1
signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print("rung", rung)
{after}
"""


@pytest.mark.parametrize(
    "parts",
    [
        {"stream": "sys.stdout", "before": "", "after": ""},
        {"stream": "(sys.stdout, sys.stderr)[n // 100 % 2]", "before": "", "after": ""},
        {
            "stream": "sys.stdout",
            "before": "end = threading.Event(); other = threading.Thread(target=end.wait); other.start()",
            "after": "end.set(); other.join()",
        },
    ],
    ids=["alone", "both-streams", "beside-a-thread"],
)
def test_a_handler_that_raises_within_a_print_loses_nothing(context, parts):
    """What was printed before an exception comes from within a print, as an interrupt does, is sent whole."""
    outcome = context.run(_RAISED_WITHIN_PRINTS.format(**parts))
    *lines, (_, rung) = [line.split() for line in outcome.stdout.splitlines()]
    out = [int(line) for (line,) in lines]
    err = [int(line) for line in outcome.stderr.splitlines()]
    assert int(rung) > 3, "nothing was raised within the flood"
    assert out == sorted(out)
    assert err == sorted(err)
    # The code repeats a line whose print was interrupted.
    assert sorted({*out, *err}) == list(range(30_000))
    assert len(out) + len(err) <= 30_000 + int(rung)


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "ctypes.string_at(0)", "os._exit(1)"]
)
def test_a_sudden_end_takes_little_along(bare_zygote, end):
    """A process that ends without warning loses at most the last 8 KiB of a flood, and nothing of a few lines."""
    for lines in (10, 3000):
        context = bare_zygote.start()
        context.send(f"import ctypes, os, signal\nfor n in range({lines}): print(n)\n{end}")
        text = context.read_to_the_end()
        expected = "".join(f"{n}\n" for n in range(lines))
        assert expected.startswith(text)
        assert len(expected) - len(text) <= (0 if lines == 10 else 8 * 1024)
