"""Code of each language for `jupyter_kernel_test`, the tests that Jupyter's developers have for kernels.

Bases of test classes, which add the kernel that is tested: one of `fumehood kernel`, or one of the gateway.
"""

from __future__ import annotations

import shutil
from typing import ClassVar

import pytest

needs_r = pytest.mark.skipif(not shutil.which("R"), reason="needs the program R: `make programs` installs it")
needs_java = pytest.mark.skipif(
    not shutil.which("javac"), reason="needs the program javac: `make programs` installs it"
)


class Python:
    """Code of Python."""

    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples: ClassVar = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_generate_error = "raise RuntimeError('x')"
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "6"}]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))", "mime": "text/html"}
    ]
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    # `zip?` prints its text as output: pages are a payload that Jupyter has deprecated.
    test_pager = None
    supported_history_operations = ("tail", "range", "search")
    code_history_pattern = "1?2*"


class _WithoutExtras:
    """What kernels of languages other than Python and bash do not have."""

    test_clear_output = test_history = test_inspect = test_pager = None


class JavaScript(_WithoutExtras):
    """Code of JavaScript."""

    language_name = "javascript"
    file_extension = ".js"
    code_hello_world = "console.log('hello, world')"
    code_stderr = "console.error('test')"
    completion_samples: ClassVar = [{"text": "JSO", "matches": {"JSON"}}]
    complete_code_samples: ClassVar = ["1", "function f() {\n  return 1\n}"]
    incomplete_code_samples: ClassVar = ["function f() {", "`hello"]
    invalid_code_samples: ClassVar = ["let = )"]
    code_generate_error = "throw new Error('x')"
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "6"}]
    code_display_data: ClassVar = [{"code": "display.html('<b>t</b>')", "mime": "text/html"}]


class R(_WithoutExtras):
    """Code of R."""

    language_name = "r"
    file_extension = ".r"
    code_hello_world = "cat('hello, world\\n')"
    code_stderr = "message('test')"
    completion_samples: ClassVar = [{"text": "is.data.f", "matches": {"is.data.frame"}}]
    complete_code_samples: ClassVar = ["1", "f <- function() {\n  1\n}"]
    incomplete_code_samples: ClassVar = ["f <- function() {", "'hello"]
    invalid_code_samples: ClassVar = ["x <- )"]
    code_generate_error = "stop('x')"
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "[1] 6"}]
    code_display_data: ClassVar = [{"code": "plot(1)", "mime": "image/png"}]


class Java(_WithoutExtras):
    """Code of Java."""

    language_name = "java"
    file_extension = ".java"
    code_hello_world = 'System.out.println("hello, world");'
    code_stderr = 'System.err.println("test");'
    completion_samples: ClassVar = [{"text": "Syst", "matches": {"System"}}]
    complete_code_samples: ClassVar = ["1", "int f() {\n  return 1;\n}"]
    incomplete_code_samples: ClassVar = ["int f() {"]
    invalid_code_samples: ClassVar = ["int = );"]
    code_generate_error = 'throw new RuntimeException("x");'
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "6"}]
    code_display_data: ClassVar = [{"code": 'Display.html("<b>t</b>");', "mime": "text/html"}]


class TypeScript(JavaScript):
    """Code of TypeScript."""

    language_name = "typescript"
    file_extension = ".ts"
    code_execute_result: ClassVar = [{"code": "const n: number = 1+2+3; n", "result": "6"}]


class Bash(_WithoutExtras):
    """Code of bash."""

    # A line has no value, nothing but text is shown, and nothing is completed.
    test_completion = test_display_data = test_execute_result = None
    language_name = "bash"
    file_extension = ".sh"
    code_hello_world = "echo hello, world"
    code_stderr = "echo test >&2"
    complete_code_samples: ClassVar = ["ls", "if true; then\n  ls\nfi"]
    incomplete_code_samples: ClassVar = ["if true; then", "echo 'hello"]
    invalid_code_samples: ClassVar = ["fi"]
    code_generate_error = "false"
