"""Clients of agents: smolagents' and AutoGen's own code, and the exact requests of Open WebUI."""

from __future__ import annotations

import asyncio
import json
import uuid

import aiohttp
import pytest
import requests
import websocket
import websockets

from .conftest import SECONDS

FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('drawn')"


class TestSmolagents:
    """What `DockerExecutor`, `ModalExecutor` and `BlaxelExecutor` do with the Jupyter server that they have started."""

    @pytest.fixture
    def executor(self, server):
        remote = pytest.importorskip(
            "smolagents.remote_executors", reason="needs smolagents: the dependency group `clients`"
        )
        from smolagents.monitoring import AgentLogger, LogLevel

        class SandboxExecutor(remote.RemotePythonExecutor):
            """What the guide shows."""

            def __init__(self, url: str, token: str) -> None:
                super().__init__([], AgentLogger(level=LogLevel.OFF))
                self.url = url
                self.token = token
                self.kernel_id = remote._create_kernel_http(f"{url}/api/kernels?token={token}", self.logger)
                self.installed_packages = []

            def run_code_raise_errors(self, code):
                path = f"{self.url.replace('http', 'ws', 1)}/api/kernels/{self.kernel_id}/channels"
                socket = websocket.create_connection(f"{path}?token={self.token}")
                try:
                    return remote._websocket_run_code_raise_errors(code, socket, self.logger)
                finally:
                    socket.close()

            def cleanup(self) -> None:
                requests.delete(
                    f"{self.url}/api/kernels/{self.kernel_id}?token={self.token}", timeout=SECONDS
                )

        assert (
            requests.get(f"{server.url}/api/kernelspecs?token={server.token}", timeout=SECONDS).status_code
            == 200
        )
        made = SandboxExecutor(server.url, server.token)
        yield made
        made.cleanup()

    def test_code_runs_and_state_lasts(self, executor):
        executor.run_code_raise_errors("x = 20")
        output = executor.run_code_raise_errors("print('logged')\nx + 1")
        assert (output.output, output.logs, output.is_final_answer) == ("21", "logged\n", False)

    def test_variables_are_sent(self, executor):
        executor.send_variables({"numbers": [1, 2, 3], "name": "ada"})
        assert executor("print(sum(numbers), name)").logs == "6 ada\n"

    def test_errors_are_raised(self, executor):
        from smolagents.utils import AgentError

        with pytest.raises(AgentError, match="ZeroDivisionError"):
            executor("1 / 0")

    def test_tools_run_inside_and_the_final_answer_comes_out(self, executor):
        from smolagents.default_tools import FinalAnswerTool

        executor.send_tools({"final_answer": FinalAnswerTool()})
        output = executor("final_answer({'total': 6})")
        assert output.is_final_answer
        assert output.output == {"total": 6}


class TestAutoGen:
    """`DockerJupyterCodeExecutor` takes any Jupyter server, not only the one that it starts in Docker."""

    def test_code_blocks_run_with_state_and_figures(self, server, tmp_path):
        pytest.importorskip(
            "autogen_ext.code_executors.docker_jupyter",
            reason="needs autogen-ext: the dependency group `clients`",
        )
        outputs = asyncio.run(self._run(server, tmp_path))
        first, second, failed, after = outputs

        assert (first.exit_code, first.output) == (0, "")
        assert second.exit_code == 0
        assert second.output.splitlines()[:4] == ["<Figure size 640x480 with 1 Axes>", "drawn", "", "42"]
        assert [path.suffix for path in second.output_files] == [".png"]
        assert second.output_files[0].read_bytes().startswith(b"\x89PNG")
        assert failed.exit_code == 1
        assert "ZeroDivisionError" in failed.output
        assert "NameError" in after.output

    async def _run(self, server, folder):
        from autogen_core import CancellationToken
        from autogen_core.code_executor import CodeBlock
        from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor
        from autogen_ext.code_executors.docker_jupyter._jupyter_server import JupyterConnectionInfo

        host, _, port = server.url.removeprefix("http://").partition(":")
        info = JupyterConnectionInfo(host=host, use_https=False, port=int(port), token=server.token)
        outputs = []

        async with DockerJupyterCodeExecutor(info, timeout=SECONDS, output_dir=folder) as executor:
            for code in ("x = 42", f"{FIGURE}\nx", "1 / 0"):
                outputs.append(
                    await executor.execute_code_blocks([CodeBlock(code, "python")], CancellationToken())
                )

            await executor.restart()
            outputs.append(
                await executor.execute_code_blocks([CodeBlock("x", "python")], CancellationToken())
            )

        return outputs


class TestOpenWebUI:
    """Its `JupyterCodeExecuter`, request for request: a kernel for each piece of code, with a token or a password."""

    @pytest.mark.parametrize("secret", ["token", "password"])
    def test_code_is_run_in_a_kernel_of_its_own(self, server, secret):
        stdout, stderr, result = asyncio.run(self._execute(server, f"{FIGURE}\n40 + 2", secret))

        assert (stdout, stderr) == ("drawn", "")
        assert result[0].startswith("data:image/png;base64,iVBOR")
        assert result[1] == "42"

    def test_errors_come_as_stderr(self, server):
        _, stderr, result = asyncio.run(self._execute(server, "1 / 0", "token"))
        assert "ZeroDivisionError: division by zero" in stderr
        assert result == []

    async def _execute(self, server, code, secret):
        params = {}
        headers = {}

        async with aiohttp.ClientSession(trust_env=True, base_url=f"{server.url}/") as session:
            if secret == "password":
                async with session.get("login") as response:
                    response.raise_for_status()
                    xsrf = response.cookies["_xsrf"].value
                    session.cookie_jar.update_cookies(response.cookies)
                    session.headers.update({"X-XSRFToken": xsrf})

                form = {"_xsrf": xsrf, "password": server.token}
                async with session.post("login", data=form, allow_redirects=False) as response:
                    response.raise_for_status()
                    session.cookie_jar.update_cookies(response.cookies)

                cookies = "; ".join(f"{cookie.key}={cookie.value}" for cookie in session.cookie_jar)
                headers = {"Cookie": cookies, **session.headers}
            else:
                params["token"] = server.token

            async with session.post(url="api/kernels", params=params) as response:
                response.raise_for_status()
                kernel_id = (await response.json())["id"]

            query = "?" + "&".join(f"{key}={value}" for key, value in params.items())
            url = f"{server.url.replace('http', 'ws', 1)}/api/kernels/{kernel_id}/channels"

            async with websockets.connect(
                url + (query if len(query) > 1 else ""), additional_headers=headers
            ) as socket:
                outcome = await self._execute_on(socket, code)

            async with session.delete(f"api/kernels/{kernel_id}", params=params) as response:
                response.raise_for_status()

            return outcome

    async def _execute_on(self, socket, code):
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": "execute_request",
            "username": "user",
            "session": uuid.uuid4().hex,
            "date": "",
            "version": "5.3",
        }
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
        }
        await socket.send(json.dumps(message))
        stdout, stderr, result = "", "", []

        while True:
            data = json.loads(await asyncio.wait_for(socket.recv(), SECONDS))

            if data.get("parent_header", {}).get("msg_id") != msg_id:
                continue

            match data.get("msg_type"):
                case "stream" if data["content"]["name"] == "stdout":
                    stdout += data["content"]["text"]
                case "stream":
                    stderr += data["content"]["text"]
                case "execute_result" | "display_data":
                    shown = data["content"]["data"]
                    picture = shown.get("image/png")
                    result.append(f"data:image/png;base64,{picture}" if picture else shown["text/plain"])
                case "error":
                    stderr += "\n".join(data["content"]["traceback"])
                case "status" if data["content"]["execution_state"] == "idle":
                    return stdout.strip(), stderr.strip(), result
