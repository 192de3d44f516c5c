"""Shell commands in cells."""

from __future__ import annotations

import zipfile


def test_a_command_streams_in_order(context):
    """`!cmd` writes to the descriptors, between the prints before and after it."""
    outcome = context.run("print('one', end='')\n!echo two; echo three >&2\nprint('four')")
    assert [payload for _, payload in outcome.of("stream")] == [b"one", b"four\n"]
    assert (context.fd_out, context.fd_err) == ("two\n", "three\n")


def test_a_command_sees_variables_and_leaves_its_status(context):
    """Python variables are expanded; the exit status is in `_exit_code`; a failing command fails no cell."""
    context.run("name = 'Ada'")
    assert context.run("!echo hello {name} $name; exit 3").error is None
    assert context.fd_out == "hello Ada Ada\n"
    assert context.run("_exit_code").text == "3"
    context.run("!kill -9 $$")
    assert context.run("_exit_code").text == "-9"


def test_the_output_of_a_command_can_be_taken(context):
    """`x = !cmd` gives the lines."""
    assert context.run("x = !printf 'a\\nb\\n'\nlist(x)").text == "['a', 'b']"


def test_a_command_in_the_background(context):
    """A command that ends with & goes on after the cell."""
    context.run("!(read line < /tmp/fumehood_fifo_$PPID; echo $line) & true")
    assert context.run("1").text == "1"


def test_bash_cells(context):
    """%%bash streams its output; a failing script is an error."""
    assert context.run("%%bash\necho in bash; echo err >&2").error is None
    assert context.run("%%bash\nexit 3").error[0] == "CalledProcessError"


def test_the_working_directory(context):
    """%cd holds for commands and for Python."""
    context.run("%cd -q /usr")
    context.run("!pwd")
    assert context.fd_out == "/usr\n"
    assert context.run("import os; os.getcwd()").text == "'/usr'"


def test_pip_installs_for_this_interpreter(bare_zygote, tmp_path):
    """%pip and !pip mean the pip of the interpreter; what they install can be imported at once."""
    for name in ("fumehood_probe_one", "fumehood_probe_two"):
        write_wheel(tmp_path, name)

    home = tmp_path / "home"
    home.mkdir()
    context = bare_zygote.start(
        envs={"HOME": str(home), "PYTHONUSERBASE": str(home / ".local"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    )
    target = "import sys; sys.path.append('/tmp'); target = " + repr(str(tmp_path / "site"))
    context.run(target)
    options = f"--no-index --find-links {tmp_path} --target {{target}} -q"
    assert context.run(f"%pip install {options} fumehood_probe_one").error is None
    assert context.run(f"!pip install {options} fumehood_probe_two").error is None
    context.run("sys.path.append(target)")
    outcome = context.run("import fumehood_probe_one, fumehood_probe_two\nfumehood_probe_two.value")
    assert outcome.text == "'fumehood_probe_two'", context.fd_err
    assert context.close() == 0


def test_the_users_site_is_found_when_it_appears(bare_zygote, tmp_path):
    """A package that is installed into the user's site, which was not there before, can be imported."""
    context = bare_zygote.start(envs={"HOME": str(tmp_path)})
    context.run("import site, os\nfolder = site.getusersitepackages()")
    code = "os.makedirs(folder)\nopen(folder + '/appeared.py', 'w').write('value = 3')"

    if context.run("folder.startswith(os.environ['HOME'])").text == "True":
        context.run(code)
        assert context.run("import appeared\nappeared.value").text == "3"

    assert context.close() == 0


def write_wheel(folder, name):
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"value = {name!r}")
        wheel.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{name}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
