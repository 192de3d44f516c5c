"""SQLite in a file with a write-ahead log, shared by two connections and a child."""

import os
import sqlite3
import subprocess
import sys

path = "/mnt/data/ledger.db"
writer = sqlite3.connect(path)
assert writer.execute("pragma journal_mode=wal").fetchone() == ("wal",)
writer.execute("create table entry (id integer primary key, amount real, note text)")

with writer:
    writer.executemany(
        "insert into entry (amount, note) values (?, ?)", ((n / 2, "ünïcode") for n in range(1000))
    )

assert os.path.exists(path + "-wal")
assert os.path.exists(path + "-shm")
reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
writer.execute("insert into entry (amount) values (1)")
assert reader.execute("select count(*), sum(amount) from entry").fetchone() == (1000, 249750.0)
writer.commit()
assert reader.execute("select count(*) from entry").fetchone() == (1001,)

child = f"import sqlite3; print(sqlite3.connect({path!r}).execute('select max(id) from entry').fetchone()[0])"
assert subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout == "1001\n"
writer.execute("create virtual table words using fts5(body)")
writer.execute("vacuum")
reader.close()
writer.close()
print("works")
