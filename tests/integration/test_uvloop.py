"""A program that uses uvloop: its policy makes the loops of that program, and the engine's thread has its own.

Each program is a child process, as the policy belongs to the whole process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

_POLICY = """
import asyncio

import uvloop

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
"""


def _start(program: str) -> subprocess.Popen[str]:
    """Starts a Python with uvloop's policy set that runs this program."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _POLICY + textwrap.dedent(program)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _output(program: str) -> str:
    """Runs it to its end: it succeeds, and prints nothing on standard error."""
    process = _start(program)
    stdout, stderr = process.communicate(timeout=100)
    assert (process.returncode, stderr) == (0, "")
    return stdout


def test_synchronous_calls_print_nothing_of_their_own():
    """Of code, commands and files, with a callback."""
    stdout = _output(
        """
        from fumehood import Sandbox

        with Sandbox() as sandbox:
            print(sandbox.run_code("print(6 * 7)", on_stdout=lambda output: print("heard", output)).logs)
            print(sandbox.commands.run("echo hello").stdout)
            sandbox.files.write("a.txt", "text")
            print(sandbox.files.read("a.txt"))
        """
    )
    assert stdout == "heard 42\n\n42\n\nhello\n\ntext\n"


def test_coroutines_given_to_synchronous_calls_run_on_a_loop_of_uvloop():
    """A tool is code of the program, and may start processes as its loop does."""
    stdout = _output(
        """
        from fumehood import Sandbox

        async def said(word: str) -> str:
            assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
            process = await asyncio.create_subprocess_exec("echo", word, stdout=asyncio.subprocess.PIPE)
            return (await process.communicate())[0].decode().strip()

        with Sandbox() as sandbox:
            print(sandbox.run_code("await said(word='hello')", tools={"said": said}).text)
        """
    )
    assert stdout == "'hello'\n"


def test_an_interrupt_cancels_the_call():
    """Ctrl-C while a cell runs: the code is interrupted, KeyboardInterrupt is raised, the next call works."""
    process = _start(
        """
        from fumehood import Sandbox

        with Sandbox() as sandbox:
            try:
                sandbox.run_code(
                    "import time; print('begun'); time.sleep(90)", on_stdout=lambda output: print("begun", flush=True)
                )
            except KeyboardInterrupt:
                print("interrupted")

            print(sandbox.run_code("6 * 7").text)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (0, "interrupted\n42\n", "")


def test_asynchronous_calls_work_on_a_loop_of_uvloop():
    """With several at once, output on the way, commands, checkpoints and forks."""
    stdout = _output(
        """
        from fumehood import AsyncSandbox

        async def main():
            assert isinstance(asyncio.get_running_loop(), uvloop.Loop)

            async with await AsyncSandbox.create() as one, await AsyncSandbox.create() as other:
                seen = []
                await asyncio.gather(*(
                    sandbox.run_code("for i in range(100): print(i)", on_stdout=lambda output: seen.append(str(output)))
                    for sandbox in (one, other)
                ))
                print(sorted("".join(seen).split(), key=int) == sorted([str(i) for i in range(100)] * 2, key=int))
                print((await one.commands.run("echo hello")).stdout)
                await one.run_code("x = 1")
                before = await one.checkpoint()
                await one.run_code("x = 2")
                await one.rollback(before)
                fork = await one.fork()
                print((await fork.run_code("x")).text)
                await fork.kill()

                begun = asyncio.Event()
                code = "import time; print('begun'); time.sleep(90)"
                running = asyncio.create_task(other.run_code(code, on_stdout=lambda output: begun.set()))
                await begun.wait()
                running.cancel()
                await asyncio.wait([running])
                print(running.cancelled(), (await other.run_code("6 * 7")).text)

        asyncio.run(main())
        """
    )
    assert stdout == "True\nhello\n\n1\nTrue 42\n"
