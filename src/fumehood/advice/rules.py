"""The rules of the scan as data: their ids, their messages, and the names, modules, methods and paths they concern.

No code but tables and patterns over text; a path of hostile code is only parsed. For another rule, add a line here and
a test beside it.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Literal

from fumehood.values.guest_paths import DATA_PATH, HOME_PATH

_WORKSPACE = (HOME_PATH, DATA_PATH, "/tmp")  # noqa: S108
_HARMLESS = frozenset({"/dev/null", "/dev/zero", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/urandom"})
_MAX_PATH_CHARACTERS = 4096

SENSITIVE_PATH = re.compile(
    r"/etc/(?:passwd|shadow|gshadow|sudoers|crontab|ssh)\b|/proc/(?:\d{1,10}|self|thread-self)/"
    r"(?:environ|mem|maps|fd|root|cwd|cmdline|ns|auxv|task|mountinfo|mounts|status|exe)\b|/proc/(?:kcore|kallsyms|sysrq-trigger|kmsg)"
    r"|/sys/(?:kernel|firmware)\b|/dev/(?:mem|kmem|port|kvm|sd[a-z]|nvme)"
    r"|\.ssh/|\bid_(?:rsa|ed25519|ecdsa)\b|\.aws/credentials|\.netrc\b|\.kube/config|\.docker/config|\.git-credentials"
    r"|docker\.sock|containerd\.sock|/run/secrets\b|/var/run/secrets\b|/root/\.(?:bash_history|config|netrc)"
)
METADATA_ADDRESS = re.compile(
    r"(?<![\d.])169\.254\.(?:169\.254|170\.(?:2|23))(?!\d)|metadata\.google\.internal|\bfd00:ec2::254\b|(?<![\d.])100\.100\.100\.200(?!\d)"
    r"|(?<!\d)2852039166(?!\d)|\b0xa9fea9fe\b|\b0xa9\.0xfe\.0xa9\.0xfe\b|\b0251\.0376\.0251\.0376\b|::ffff:a9fe:a9fe",
    re.IGNORECASE,
)
METADATA_NUMBER = 0xA9FEA9FE


def outside_workspace(path: str) -> str:
    """Return the path as the sandbox would resolve it, if it is outside of the workspace; else an empty text."""
    if not path or len(path) > _MAX_PATH_CHARACTERS or "\0" in path:
        return ""

    path = path.removeprefix("file://")

    if "://" in path:
        return ""

    if path.startswith("~"):
        user, _, rest = path[1:].partition("/")
        path = f"/home/{user or 'user'}/{rest}" if user != "root" else f"/root/{rest}"

    whole = posixpath.normpath(posixpath.join(HOME_PATH, path))
    # Two slashes at the front are kept by POSIX and mean nothing here.
    whole = f"/{whole.lstrip('/')}"
    is_inside = any(whole == root or whole.startswith(f"{root}/") for root in _WORKSPACE)
    return "" if is_inside or whole in _HARMLESS else whole


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """One rule: its subject, and its severity unless a finding has its own."""

    severity: Literal["info", "warning", "danger"]
    summary: str


def words(text: str) -> list[str]:
    """Return the words of a table's line."""
    return text.split()


RULES = {
    "unparsable": AdviceRule(
        "danger", "cannot be read: broken, too large, too deep, or in a language that is unknown here"
    ),
    "hidden-text": AdviceRule(
        "danger", "characters that a reader does not see, or that reorder what is seen"
    ),
    "lookalike-name": AdviceRule("danger", "a name in letters that look like others"),
    "hidden-name": AdviceRule(
        "danger", "the name of a function or module is put together, or looked up, at run time"
    ),
    "hidden-code": AdviceRule("danger", "code that was encoded is run"),
    "remote-code": AdviceRule("danger", "code that was fetched from the network is run"),
    "dynamic-code": AdviceRule("warning", "text is run as code"),
    "encoded-blob": AdviceRule("warning", "a long piece of encoded text"),
    "introspection": AdviceRule("warning", "reaches for the insides of the interpreter"),
    "native": AdviceRule("warning", "calls native code, past everything that Python checks"),
    "process": AdviceRule("warning", "starts or signals programs"),
    "bomb": AdviceRule("danger", "starts processes or threads without end"),
    "huge-value": AdviceRule("warning", "makes a value that fits in no memory"),
    "network": AdviceRule("warning", "uses the network"),
    "install": AdviceRule("warning", "installs packages"),
    "metadata-address": AdviceRule("danger", "an address where clouds give out credentials"),
    "reverse-shell": AdviceRule("danger", "connects a shell to the network"),
    "outside-workspace": AdviceRule("warning", "a file outside of /home/user, /mnt/data and /tmp"),
    "sensitive-path": AdviceRule("danger", "a file that holds credentials, or the insides of the system"),
    "destructive": AdviceRule("danger", "deletes or overwrites everything"),
    "privileges": AdviceRule("warning", "tries to gain privileges or to change namespaces"),
    "deserialise": AdviceRule("info", "turns bytes into objects, which can run code"),
    "environment": AdviceRule("info", "reads environment variables"),
    "secret": AdviceRule("danger", "a secret stands in the code"),
}

_PROCESS = words(
    "os.system os.popen os.fork os.forkpty os.kill os.killpg os.execl os.execle os.execlp "
    "os.execlpe os.execv "
    "os.execve os.execvp os.execvpe os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv "
    "os.spawnve os.spawnvp "
    "os.spawnvpe os.posix_spawn os.posix_spawnp os.startfile asyncio.create_subprocess_exec "
    "asyncio.create_subprocess_shell asyncio.subprocess platform.popen signal.pthread_kill"
)
_INTROSPECTION = words(
    "sys._getframe sys.settrace sys.setprofile sys.addaudithook sys._current_frames gc.get_objects "
    "gc.get_referrers "
    "inspect.currentframe inspect.stack threading.settrace"
)
_PRIVILEGES = words(
    "os.setuid os.setgid os.seteuid os.setegid os.setresuid os.setresgid os.setgroups os.chroot "
    "os.unshare os.setns "
    "os.mknod os.initgroups"
)
_NATIVE = words(
    "ctypes.CDLL ctypes.PyDLL ctypes.cdll ctypes.pydll ctypes.pythonapi ctypes.memmove "
    "ctypes.memset ctypes.string_at "
    "ctypes.cast ctypes.CFUNCTYPE ctypes.PYFUNCTYPE ctypes.LibraryLoader cffi.FFI"
)

# Name -> rule and, if it differs from the rule's own, severity.
NAMES: dict[str, tuple[str, Literal["info", "warning", "danger"] | None]] = {
    **dict.fromkeys(_PROCESS, ("process", None)),
    **dict.fromkeys(_INTROSPECTION, ("introspection", None)),
    **dict.fromkeys(_PRIVILEGES, ("privileges", None)),
    **dict.fromkeys(_NATIVE, ("native", "danger")),
    "types.CodeType": ("introspection", None),
    "types.FunctionType": ("introspection", None),
    "os.environ": ("environment", None),
    "os.environb": ("environment", None),
    "os.getenv": ("environment", None),
    "eval": ("dynamic-code", None),
    "exec": ("dynamic-code", None),
    "compile": ("dynamic-code", None),
    "code.InteractiveInterpreter": ("dynamic-code", None),
    "code.InteractiveConsole": ("dynamic-code", None),
    "runpy.run_path": ("dynamic-code", None),
    "runpy.run_module": ("dynamic-code", None),
    "timeit.timeit": ("dynamic-code", "info"),
    "pip.main": ("install", None),
    **dict.fromkeys(("get_ipython().system", "get_ipython().getoutput"), ("process", None)),
    **dict.fromkeys(
        words("get_ipython().run_cell get_ipython().ex get_ipython().ev"), ("dynamic-code", None)
    ),
    "asyncio.open_connection": ("network", None),
    "asyncio.start_server": ("network", None),
    "pickle.loads": ("deserialise", None),
    "pickle.load": ("deserialise", None),
    "pickle.Unpickler": ("deserialise", None),
    "pandas.read_pickle": ("deserialise", None),
    "joblib.load": ("deserialise", None),
    "torch.load": ("deserialise", None),
    "yaml.load": ("deserialise", None),
    "yaml.unsafe_load": ("deserialise", "warning"),
    "marshal.loads": ("deserialise", "warning"),
    "marshal.load": ("deserialise", "warning"),
    "dill.loads": ("deserialise", None),
    "cloudpickle.loads": ("deserialise", None),
    "shelve.open": ("deserialise", None),
}

_NETWORK_MODULES = words(
    "socket ssl requests urllib.request urllib3 httpx httpx2 aiohttp http.client http.server ftplib "
    "smtplib imaplib "
    "poplib nntplib telnetlib paramiko fabric websocket websockets pycurl boto3 botocore xmlrpc "
    "socketserver grpc "
    "scapy dns asyncssh pysftp zmq wget yt_dlp tornado.httpclient twisted selenium playwright"
)

# Module -> rule. Everything in it counts, and importing it.
MODULES: dict[str, str] = {
    **dict.fromkeys(_NETWORK_MODULES, "network"),
    **dict.fromkeys(("subprocess", "pty", "pexpect", "sh", "plumbum"), "process"),
    **dict.fromkeys(("ctypes", "cffi", "_cffi_backend"), "native"),
    **dict.fromkeys(("pip", "ensurepip"), "install"),
    **dict.fromkeys(("codeop",), "dynamic-code"),
}

# Modules whose functions an attacker would hide: an unknown name in one of them is reported.
GUARDED = frozenset({"os", "subprocess", "builtins", "sys", "socket", "ctypes", "pty", "shutil", "importlib"})
# The same module under another name.
SAME_MODULE = {
    "posix": "os",
    "nt": "os",
    "_io": "io",
    "_socket": "socket",
    "_ctypes": "ctypes",
    "_posixsubprocess": "subprocess",
    "_pickle": "pickle",
    "__builtins__": "builtins",
    "__builtin__": "builtins",
    "cPickle": "pickle",
}

DANGEROUS_ATTRIBUTES = frozenset(
    words(
        "__subclasses__ __globals__ __builtins__ f_globals f_builtins f_back f_locals gi_frame cr_frame "
        "ag_frame tb_frame "
        "__code__ co_code __closure__ __reduce_ex__ __loader__"
    )
)

DECODERS = frozenset(
    words(
        "base64.b64decode base64.b32decode base64.b16decode base64.b85decode base64.a85decode "
        "base64.urlsafe_b64decode "
        "base64.standard_b64decode base64.decodebytes binascii.unhexlify binascii.a2b_base64 "
        "binascii.a2b_hex "
        "zlib.decompress gzip.decompress bz2.decompress lzma.decompress codecs.decode bytes.fromhex "
        "bytearray.fromhex "
        "marshal.loads marshal.load zlib.decompressobj"
    )
)
FETCHERS = (
    "requests.",
    "urllib.request.",
    "httpx.",
    "httpx2.",
    "aiohttp.",
    "urllib3.",
    "http.client.",
    "socket.",
)

_OS_PATHS = words(
    "open listdir scandir walk fwalk remove unlink rename replace rmdir removedirs stat lstat chmod "
    "chown readlink chdir "
    "makedirs mkdir symlink link truncate access utime mkfifo"
)
# Calls whose texts are paths.
PATH_CALLS = frozenset(
    [
        *(f"os.{name}" for name in _OS_PATHS),
        *(f"pathlib.{name}" for name in ("Path", "PurePath", "PosixPath", "PurePosixPath")),
        *(
            f"shutil.{name}"
            for name in ("copy", "copy2", "copyfile", "copytree", "move", "rmtree", "make_archive")
        ),
        *(f"glob.{name}" for name in ("glob", "iglob")),
        *words(
            "open io.open io.FileIO codecs.open gzip.open bz2.open lzma.open tarfile.open zipfile.ZipFile"
        ),
        *words(
            "sqlite3.connect PIL.Image.open joblib.load joblib.dump torch.load h5py.File linecache.getline"
        ),
        *words("fileinput.input runpy.run_path numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile"),
        *words("numpy.save numpy.savetxt numpy.memmap mmap.mmap os.path.exists matplotlib.pyplot.savefig"),
        *words("scipy.io.loadmat openpyxl.load_workbook imageio.imread cv2.imread geopandas.read_file"),
    ]
)
# Methods whose first argument is a path, of whatever object: pandas, polars, pyarrow, frames, figures.
PATH_METHODS = frozenset(
    words(
        "read_csv read_table read_excel read_json read_parquet read_feather read_hdf read_pickle "
        "read_fwf read_html read_xml "
        "read_orc read_stata read_sas read_spss read_ipc scan_csv scan_parquet to_csv to_excel to_json "
        "to_parquet "
        "to_feather to_hdf to_pickle to_html savefig write_csv write_parquet read_text read_bytes joinpath"
    )
)

# What starts a process or a thread, for loops that never end.
STARTERS = frozenset(
    words(
        "os.fork os.forkpty os.spawnl os.spawnv os.posix_spawn os.popen os.system threading.Thread "
        "_thread.start_new_thread "
        "multiprocessing.Process subprocess.Popen subprocess.run subprocess.call subprocess.check_call "
        "subprocess.check_output subprocess.getoutput"
    )
)
SHELL_CALLS = frozenset(
    words(
        "get_ipython().system get_ipython().getoutput "
        "os.system os.popen subprocess.run subprocess.Popen subprocess.call subprocess.check_call "
        "subprocess.check_output "
        "subprocess.getoutput subprocess.getstatusoutput asyncio.create_subprocess_shell "
        "asyncio.create_subprocess_exec "
        "pty.spawn os.execv os.execvp os.execl os.execlp os.posix_spawn os.spawnl os.spawnv "
        "pexpect.spawn pexpect.run"
    )
)
# Deleting one of these takes everything.
EVERYTHING = frozenset({"/", "/*", "/home", HOME_PATH, "/mnt", DATA_PATH, "~", "~/", "/usr", "/etc", "/var"})
