"""Code as models write it for data: nothing in it is dangerous."""

BENIGN = {
    "pandas": """
import pandas as pd
import numpy as np

df = pd.read_csv("/mnt/data/sales.csv", parse_dates=["date"])
df["month"] = df["date"].dt.to_period("M")
monthly = df.query("amount > 0").groupby("month")["amount"].agg(["sum", "mean"])
df["share"] = df.eval("amount / amount.sum()")
monthly.to_csv("monthly.csv")
monthly.head()
""",
    "plot": """
%matplotlib inline
import matplotlib.pyplot as plt
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
left.hist([1, 2, 2, 3], bins=3)
right.plot(range(10), [x ** 2 for x in range(10)], label="α → β")
plt.tight_layout()
plt.savefig("/home/user/plot.png", dpi=150)
plt.show()
""",
    "sklearn": """
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from sklearn.ensemble import RandomForestClassifier
X, y = load_iris(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
model = RandomForestClassifier(n_estimators=100).fit(X_train, y_train)
print(f"{model.score(X_test, y_test):.3f}")
""",
    "files": """
import os, json, glob, shutil
from pathlib import Path
for name in sorted(os.listdir("/mnt/data")):
    print(name, os.path.getsize(os.path.join("/mnt/data", name)))
Path("out").mkdir(exist_ok=True)
shutil.copy("/mnt/data/a.csv", "out/a.csv")
with open("out/result.json", "w") as file:
    json.dump({"paths": glob.glob("/mnt/data/*.csv")}, file)
shutil.rmtree("out")
open("/dev/null", "w").write("x")
""",
    "environment": """
import os, sys
home, path = os.environ["HOME"], os.environ["PATH"].split(":")
flag = getattr(sys, "gettrace", None), getattr(os, "O_BINARY", 0)
here = __import__("os").getcwd()
print(sys.version, os.environ.get("HOME"), os.getcwd(), os.cpu_count())
""",
    "physics": """
import numpy as np
Δt, σ, μ_hat, θ = 0.01, 10.0, 1.5, np.pi
λ = σ * Δt
def ψ(x, ħ=1.0):
    return np.exp(-x**2 / (2 * σ**2)) / ħ
energía = ψ(np.linspace(0, 1, 10**6))
""",
    "strings": '''
"""Reads the /etc/passwd-like format of our suppliers; see http://169.254.169.254 in the manual."""
emoji = "👩‍🔬 ❤️ ok"
text = "Grüße aus Köln, 東京, Москва"
# \u041f\u0440\u0438\u0432\u0435\u0442
table = str.maketrans({"ä": "ae"})
print(text.translate(table), emoji, "=" * 80, "%s of %d" % ("a", 1), "{} {}".format(1, 2))
''',
    "class": """
class Stack:
    def __init__(self, items=()):
        self.items = list(items)
    def __repr__(self):
        return f"{self.__class__.__name__}({self.items!r})"
    def kinds(self): return [kind.__name__ for kind in Stack.__subclasses__()]
    def compile(self): return getattr(self, "items")
    def exec(self): return self.compile()
import types
isinstance(Stack.exec, types.FunctionType)
Stack([1]).exec()
""",
    "asynchronous": """
import asyncio
async def work(n):
    await asyncio.sleep(0)
    return n
await asyncio.gather(*(work(n) for n in range(3)))
""",
    "loops": """
import itertools, threading, time
count = 0
while True:
    count += 1
    if count > 10:
        break
for n in itertools.count():
    if n > 5: break
threads = [threading.Thread(target=print, args=(n,)) for n in range(4)]
""",
    "sql": """
import sqlite3
db = sqlite3.connect("/tmp/x.db")
db.execute("create table if not exists t (a int)")
db.executemany("insert into t values (?)", [(n,) for n in range(10)])
print(db.execute("select count(*) from t").fetchone())
""",
    "image": """
import base64, io
png = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAAAASUVORK5CYI=")
from PIL import Image
Image.open(io.BytesIO(png)).size
""",
    "network": """
import requests
from urllib.parse import urlencode
response = requests.get("https://api.example.com/rates?" + urlencode({"from": "EUR"}), timeout=10)
rates = response.json()
import pandas as pd
pd.read_html("https://example.com/table.html")[0]
""",
    "shell": """
!ls -la /mnt/data
files = !wc -l *.csv
%timeit sum(range(100))
import subprocess
print(subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True).stdout)
df?
""",
    "cell": "%%time\ntotal = sum(range(10))\ntotal",
    "install": "%pip install -q seaborn\n!pip install openpyxl\nimport seaborn as sns",
    "prompt": ">>> x = 1\n>>> x + 1\n",
    "torch": """
import torch, pickle, joblib
model = torch.nn.Linear(2, 1)
model.eval()
torch.save(model.state_dict(), "/mnt/data/model.pt")
model.load_state_dict(torch.load("/mnt/data/model.pt"))
joblib.dump(model, "model.joblib")
pickle.load(open("x.pkl", "rb"))
import re
re.compile("a+").match("aa")
""",
    "regular": "",
    "numbers": "10**100, 2**64, [0] * 1_000_000, 'x' * 100, 1 << 200, 0xFFFF",
    "tags": "api_key = 'sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'\nkey = 'AKIAIOSFODNN7EXAMPLE'\nurl = 'postgres://user:password@db/x'",
}
