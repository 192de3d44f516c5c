"""Time zones, TLS contexts, names, locale, randomness, clocks and what the machine says about itself."""

import getpass
import grp
import hashlib
import locale
import os
import platform
import pwd
import secrets
import socket
import ssl
import sys
import time
import uuid
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

summer = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
assert summer.utcoffset().total_seconds() == 7200
assert ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED
assert ssl.create_default_context().cert_store_stats()["x509_ca"] > 20

assert getpass.getuser() == "user"
assert pwd.getpwuid(os.getuid()).pw_dir == os.path.expanduser("~") == "/home/user"
assert grp.getgrgid(os.getgid()).gr_name == "user"
assert os.getuid() == os.geteuid() == 1000

locale.setlocale(locale.LC_ALL, "")
assert locale.getpreferredencoding().lower().replace("-", "") == "utf8"
assert sys.getfilesystemencoding() == "utf-8"
assert sys.stdout.encoding.lower() == "utf-8"

assert len({uuid.uuid4(), uuid.uuid4(), uuid.uuid1()}) == 3
assert len(secrets.token_bytes(64)) == len(os.getrandom(64)) == 64
assert hashlib.scrypt(b"a", salt=b"b", n=2, r=1, p=1)
assert time.monotonic() > 0
assert time.tzname[0] == "UTC"

assert socket.gethostname() == platform.node() == "fumehood"
assert socket.gethostbyname("localhost") == "127.0.0.1"
assert os.cpu_count() == len(os.sched_getaffinity(0)) >= 1
assert os.sysconf("SC_PAGE_SIZE") == 4096 or platform.machine() == "aarch64"
assert os.getloadavg()[0] >= 0
assert "processor" in Path("/proc/cpuinfo").read_text()
assert int(Path("/proc/meminfo").read_text().split()[1]) > 0
assert platform.platform().startswith("Linux")
print("works")
