"""The languages of E2B's own tests (`default_kernels`, `cwd`, `kernels`, `env_vars`), by its unmodified SDK."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b import SandboxException
from e2b_code_interpreter import Sandbox

needs_r = pytest.mark.skipif(not shutil.which("R"), reason="needs the program R: `make programs` installs it")
needs_java = pytest.mark.skipif(
    not shutil.which("javac"), reason="needs the program javac: `make programs` installs it"
)


@pytest.fixture(scope="module")
def shared(addresses) -> Iterator[Sandbox]:
    """One sandbox for all languages, with a variable of its own."""
    sandbox = Sandbox.create(timeout=600, envs={"OF_SANDBOX": "all"})
    yield sandbox
    sandbox.kill()


HELLO = [
    ("python", "print('Hello, World!')", ["Hello, World!\n"]),
    ("js", "console.log('Hello, World!')", ["Hello, World!\n"]),
    ("ts", "const message: string = 'Hello, World!'; console.log(message)", ["Hello, World!\n"]),
    pytest.param("r", "print('Hello, World!')", ['[1] "Hello, World!"\n'], marks=needs_r),
    pytest.param("java", 'System.out.println("Hello, World!");', ["Hello, World!", "\n"], marks=needs_java),
    ("bash", "echo 'Hello, World!'", ["Hello, World!\n"]),
]


@pytest.mark.parametrize(("language", "code", "printed"), HELLO)
def test_each_default_kernel_prints(shared, language, code, printed):
    """Lines are whole; Java's kernel at E2B sends the end of a line by itself."""
    assert shared.run_code(code, language=language).logs.stdout == printed


def test_javascript_has_modules_and_top_level_await(shared):
    """Static imports, and the value of an awaited promise without quotes."""
    code = "import { readFileSync } from 'fs'\nconsole.log(typeof readFileSync)"
    waits = "async function main() { return 'Hello World!' }\nawait main()"

    assert shared.run_code(code, language="js").logs.stdout == ["function\n"]
    assert shared.run_code(waits, language="js").text == "Hello World!"
    assert shared.run_code("type A = { n: number }; const a: A = { n: 1 }; a.n", language="ts").text == "1"


FOLDERS = [
    ("python", "import os; os.getcwd()", "/home/user"),
    ("js", "process.cwd()", "/home/user"),
    ("ts", "process.cwd()", "/home/user"),
    pytest.param("r", "getwd()", '[1] "/home/user"', marks=needs_r),
    pytest.param("java", 'System.getProperty("user.dir")', '"/home/user"', marks=needs_java),
]


@pytest.mark.parametrize(("language", "code", "shown"), FOLDERS)
def test_each_kernel_starts_in_the_home_directory(shared, language, code, shown):
    """Or in the folder of its context."""
    assert shared.run_code(code, language=language).text.strip('"') == shown.strip('"')
    context = shared.create_code_context(language=language, cwd="/tmp")
    assert "/tmp" in shared.run_code(code, context=context).text
    shared.remove_code_context(context)


VARIABLES = [
    ("python", "import os; os.getenv('{}')", "bar", None),
    ("js", "process.env.{}", "bar", None),
    ("ts", "process.env.{}", "bar", None),
    pytest.param("r", "Sys.getenv('{}')", '[1] "bar"', '[1] ""', marks=needs_r),
    pytest.param("java", 'System.getProperty("{}")', "bar", "null", marks=needs_java),
]


@pytest.mark.parametrize(("language", "code", "with_it", "without"), VARIABLES)
def test_variables_of_a_call_and_of_the_sandbox(shared, language, code, with_it, without):
    """Those of a call are undone; in Java both are system properties."""
    once = code.format("FOO")

    assert shared.run_code(once, language=language, envs={"FOO": "bar"}).text.strip('"') == with_it.strip('"')
    assert shared.run_code(once, language=language).text == without
    assert "all" in shared.run_code(code.format("OF_SANDBOX"), language=language).text


def test_variables_in_bash(shared):
    """As in the other languages."""
    code = "echo [$FOO] $OF_SANDBOX"

    assert shared.run_code(code, language="bash", envs={"FOO": "bar"}).logs.stdout == ["[bar] all\n"]
    assert shared.run_code(code, language="bash").logs.stdout == ["[] all\n"]


def test_kernels_are_independent_and_restart(shared):
    """Also two of one language."""
    context = shared.create_code_context(language="js")
    assert context.language == "javascript"
    shared.run_code("var x = 1", language="js")
    assert shared.run_code("typeof x", context=context).text == "undefined"
    shared.run_code("var x = 2", context=context)
    shared.restart_code_context(context)
    assert shared.run_code("typeof x", context=context).text == "undefined"
    assert shared.run_code("x", language="js").text == "1"
    shared.remove_code_context(context)


def test_the_default_context_of_javascript_is_listed(sandbox):
    """As at E2B, where it begins with the sandbox; its first use is by its id as well."""
    listed = {context.language: context for context in sandbox.list_code_contexts()}
    assert set(listed) == {"python", "javascript"}
    assert sandbox.run_code("let n = 1; n", context=listed["javascript"]).text == "1"
    assert sandbox.run_code("n + 1", language="js").text == "2"
    assert len(sandbox.list_code_contexts()) == 2


def test_the_folder_of_a_context_is_made(shared):
    """E2B takes one that is not there, and root's home, which is the user's here."""
    for given, there in (
        ("/home/user/not/yet", "/home/user/not/yet"),
        ("/root/it", "/home/user/it"),
        ("/root", "/home/user"),
    ):
        context = shared.create_code_context(cwd=given)
        assert shared.run_code("import os; os.getcwd()", context=context).text == context.cwd == there
        shared.remove_code_context(context)


def test_deno_is_a_kernel_and_is_refused_by_name_where_it_is_not(shared):
    """E2B's tests have it too. `make test-languages` installs it, beside the Python of the tests."""
    code = "Deno.env.get('FOO') ?? Deno.cwd()"

    if not (Path(sys.executable).parent / "deno").exists():
        with pytest.raises(SandboxException, match="no kernel spec 'deno'"):
            shared.run_code(code, language="deno")

        return

    context = shared.create_code_context(language="deno")
    assert context.language == "deno"
    assert shared.run_code(code, context=context, envs={"FOO": "bar"}).text == "bar"
    assert shared.run_code(code, language="Deno").text == "/home/user"
    assert "deno" in {one.language for one in shared.list_code_contexts()}
