"""A template that is made ready for languages: what is there, with versions, and what compilers have prepared."""

from __future__ import annotations

import os

import pytest

from fumehood import InvalidArgumentError, TemplateStoreError
from fumehood.api.sandbox import Sandbox
from fumehood.api.template_languages import languages_named, prepare_languages
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.portal import Portal
from fumehood.values.template import Template


def test_a_template_is_made_ready(tmp_path):
    """Versions, a header that the compiler takes in sandboxes, which see it read-only; a missing language is told."""
    folder = tmp_path / "languages"
    said = []
    found = prepare_languages(
        Template(preload=()), ["cpp", "sql", "swift"], str(folder), said.append, is_strict=False
    )
    assert list(found) == ["cpp", "sql"]
    assert all(version.partition(".")[0].isdigit() for version in found.values())
    assert said[0] == f"C++ {found['cpp']}"
    assert "not there: Swift; install `swiftc` in a place such as /usr/local" in said[2]
    assert said[3:] == ["preparing C++"]

    # As the builder does it.
    for top, _, names in os.walk(folder):
        os.chmod(top, 0o755)

        for name in names:
            os.chmod(os.path.join(top, name), 0o644)

    os.chmod(tmp_path, 0o755)
    portal = Portal()
    try:
        backend = make_backend(EngineSettings(pool_size=0, max_sandboxes=1), portal)

        template = Template(name="spoken", preload=(), languages=str(folder), language_versions=found)

        with Sandbox(template, backend=backend) as sandbox:
            assert sandbox.get_info().languages == found
            sandbox.files.write("main.cpp", "#include <bits/stdc++.h>\nint main() { std::cout << 42; }")
            compiled = sandbox.commands.run("g++ -std=c++17 -O2 -I/opt/languages/cpp -H main.cpp")
            assert compiled.stderr.startswith("! /opt/languages/cpp/bits/stdc++.h.gch")
            execution = sandbox.run_code(sandbox.files.read("main.cpp"), language="c++")
            assert execution.logs.stdout == ["42"]
            refused = sandbox.run_code("open('/opt/languages/cpp/x', 'w')").error
            assert refused.value.startswith("[Errno 30]")
    finally:
        portal.close()


def test_a_language_that_is_named_must_be_there(tmp_path):
    """With the way out; and names that are none are refused before anything is made."""
    with pytest.raises(TemplateStoreError, match="it has no Swift") as caught:
        prepare_languages(Template(preload=()), ["swift"], str(tmp_path / "a"), str, is_strict=True)

    assert "swift.org" in caught.value.hint
    assert languages_named(["js", "c++", "js"]) == ("javascript", "cpp")
    assert "haskell" in languages_named(["all"])

    with pytest.raises(InvalidArgumentError, match="abap"):
        languages_named(["abap"])

    with pytest.raises(InvalidArgumentError, match="a list"):
        languages_named("all")
