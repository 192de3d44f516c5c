"""Temporary files, paths, pickles, archives, links, locks and memory maps."""

import fcntl
import mmap
import os
import pickle
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

home = Path.home()
assert home == Path.cwd() == Path("/home/user")
assert tempfile.gettempdir() == "/tmp"

with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
    file.write(pickle.dumps({"a": [1, 2, {3}], "b": Path("/x")}, protocol=5))
    file.flush()
    assert pickle.loads(Path(file.name).read_bytes())["a"][2] == {3}

with tempfile.TemporaryFile() as file:
    file.write(b"kept")
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

deep = home / "some" / "Ordner mit Ümläuten" / "日本語.txt"
deep.parent.mkdir(parents=True)
deep.write_text("content\n", encoding="utf-8")
assert [path.name for path in home.rglob("*.txt")] == ["日本語.txt"]
link = home / "link"
link.symlink_to(deep)
assert link.read_text(encoding="utf-8") == "content\n"
os.link(deep, home / "hard")
assert deep.stat().st_nlink == 2
deep.chmod(0o755)
os.utime(deep, (1e9, 1e9 + 2))
assert deep.stat().st_mtime == 1e9 + 2
os.setxattr(deep, "user.note", b"kept")
assert os.getxattr(deep, "user.note") == b"kept"

shutil.make_archive("/tmp/all", "gztar", home / "some")
with tarfile.open("/tmp/all.tar.gz") as archive:
    assert any("日本語" in name for name in archive.getnames())

with zipfile.ZipFile("/tmp/all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.write(deep)

shutil.copytree(home / "some", "/tmp/copy")
shutil.move("/tmp/copy", "/mnt/data/moved")
shutil.rmtree("/mnt/data/moved")

with open("/tmp/map", "w+b") as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:4] = b"data"
        mapped.flush()

assert Path("/tmp/map").read_bytes()[:4] == b"data"
os.mkfifo("/tmp/fifo")
assert shutil.disk_usage("/tmp").free > 1_000_000
shutil.rmtree(home / "some")
link.unlink()
(home / "hard").unlink()
print("works")
