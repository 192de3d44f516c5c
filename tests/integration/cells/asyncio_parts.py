"""asyncio: child processes, servers on the loopback, unix sockets, threads, timeouts, and task groups."""

import asyncio
import sys


async def echo(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def ask(reader, writer):
    writer.write(b"hello\n")
    answer = await reader.read()
    writer.close()
    return answer


async def main():
    for host in ("127.0.0.1", "::1", "localhost"):
        async with await asyncio.start_server(echo, host, 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert await ask(*await asyncio.open_connection(host, port)) == b"HELLO\n"

    async with await asyncio.start_unix_server(echo, "/tmp/echo.sock"):
        assert await ask(*await asyncio.open_unix_connection("/tmp/echo.sock")) == b"HELLO\n"

    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "print(input() * 2)",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await child.communicate(b"ab\n"))[0] == b"abab\n"
    shell = await asyncio.create_subprocess_shell("exit 3")
    assert await shell.wait() == 3

    assert sum(await asyncio.gather(*(asyncio.to_thread(pow, 2, n) for n in range(10)))) == 1023

    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    except TimeoutError:
        print("works")


if __name__ == "__main__":
    asyncio.run(main())
