# ruff: noqa: E501 - code of cells
"""The packages of the matrix: one real thing that each does, what it shows, and the same library used again later.

Plain data, read by `matrix.py`. `code` runs once and leaves a state; `again` uses that state and the library, and is
run before and after a rollback and in a fork. Both raise when the library does not do what it should.
"""

from __future__ import annotations

from dataclasses import dataclass

DATA = "application/vnd.fumehood.data+json"
PNG = "image/png"
TEXT = "text/plain"


@dataclass(frozen=True)
class Case:
    """One package.

    Attributes:
        package: Its name in the index.
        module: What is imported, and preloaded.
        code: What it does first.
        again: What it does later, with the state of `code`.
        shows: The format in which the first result comes.
        requirement: What is installed, where that is not the name.
        hangs: Whether it is known to wait for lost threads in a fork: then that is found out in less time.
    """

    package: str
    module: str
    code: str
    again: str
    shows: str = TEXT
    requirement: str = ""
    hangs: bool = False


_FIGURE = "import matplotlib.pyplot as plt\n"
_BLOBS = "import numpy as np\nr = np.random.default_rng(0)\nX = np.r_[r.normal(0, 1, (500, 4)), r.normal(3, 1, (500, 4))]\ny = np.r_[np.zeros(500), np.ones(500)]\n"

CASES = (
    Case(
        "pyarrow",
        "pyarrow",
        "import pyarrow as pa, pyarrow.parquet as pq, pyarrow.compute as pc\n"
        "table = pa.table({'k': ['a', 'b'] * 50_000, 'v': list(range(100_000))})\n"
        "pq.write_table(table, 't.parquet')\ntable.group_by('k').aggregate([('v', 'sum')]).to_pandas()",
        "t = pq.read_table('t.parquet', use_threads=True)\n"
        "assert pc.sum(t['v']).as_py() == 4999950000\n"
        "assert t.group_by('k').aggregate([('v', 'sum')]).num_rows == 2",
        DATA,
    ),
    Case(
        "polars",
        "polars",
        "import polars as pl\nframe = pl.DataFrame({'k': ['a', 'b'] * 50_000, 'v': range(100_000)})\n"
        "frame.group_by('k').agg(pl.col('v').sum()).sort('k')",
        "assert frame.lazy().group_by('k').agg(pl.col('v').sum()).collect()['v'].sum() == 4999950000",
        "text/html",
        hangs=True,
    ),
    Case(
        "duckdb",
        "duckdb",
        "import duckdb\nbase = duckdb.connect('base.duckdb')\n"
        "base.execute('create or replace table t as select range as v, range % 7 as k from range(200000)')\n"
        "base.execute('select k, sum(v) s from t group by k order by k').df()",
        "assert base.execute('select sum(v) from t').fetchone() == (19999900000,)\n"
        "assert duckdb.connect().execute('select count(*) from range(100000)').fetchone() == (100000,)",
        DATA,
    ),
    Case(
        "scikit-learn",
        "sklearn.ensemble",
        _BLOBS + "from sklearn.ensemble import RandomForestClassifier\n"
        "model = RandomForestClassifier(40, n_jobs=2, random_state=0).fit(X, y)\nround(model.score(X, y), 1)",
        "assert model.predict(X[:3]).tolist() == [0, 0, 0]\n"
        "from sklearn.cluster import KMeans\nassert len(set(KMeans(2, n_init=2, random_state=0).fit_predict(X))) == 2",
    ),
    Case(
        "scipy",
        "scipy.optimize",
        "import numpy as np\nfrom scipy import optimize, linalg, signal\n"
        "optimize.minimize(lambda x: ((x - 3) ** 2).sum(), np.zeros(3)).x.round(2)",
        "assert abs(linalg.det(np.eye(200) * 2) / 2.0**200 - 1) < 1e-9\n"
        "assert signal.fftconvolve(np.ones(4096), np.ones(4096)).max() > 4095",
    ),
    Case(
        "statsmodels",
        "statsmodels.api",
        "import numpy as np, statsmodels.api as sm\nx = np.arange(100.0)\n"
        "fit = sm.OLS(3 * x + 1, sm.add_constant(x)).fit()\nfit.summary()",
        "assert abs(fit.predict([[1, 10]])[0] - 31) < 1e-6\nassert sm.OLS(x, x).fit().params[0] > 0.99",
        "text/html",
    ),
    Case(
        "seaborn",
        "seaborn",
        _FIGURE + "import seaborn as sns, pandas as pd\nf = pd.DataFrame({'a': [1, 2, 3], 'b': [3, 1, 2]})\n"
        "sns.lineplot(f, x='a', y='b');",
        "sns.barplot(f, x='a', y='b'); plt.gcf().canvas.draw(); plt.close('all')",
        PNG,
    ),
    Case(
        "plotly",
        "plotly.express",
        "import plotly.express as px\nf = px.bar(x=['a', 'b'], y=[1, 3])\nf",
        "f.show()\nassert len(px.line(x=[1, 2], y=[3, 4]).data) == 1",
        "application/vnd.plotly.v1+json",
    ),
    Case(
        "altair",
        "altair",
        "import altair as alt, pandas as pd\n"
        "c = alt.Chart(pd.DataFrame({'a': ['x', 'y'], 'b': [1, 2]})).mark_bar().encode(x='a', y='b')\nc",
        "c.show()\nassert c.to_dict()['mark']['type'] == 'bar'",
        "application/vnd.vegalite.*",
    ),
    Case(
        "bokeh",
        "bokeh.plotting",
        "from bokeh.plotting import figure\nfrom bokeh.embed import file_html\nfrom bokeh.resources import CDN\n"
        "from IPython.display import HTML\np = figure(title='t'); p.line([1, 2], [3, 4])\nHTML(file_html(p, CDN))",
        "from bokeh.embed import json_item\nassert json_item(p)['doc']",
        "text/html",
    ),
    Case(
        "openpyxl",
        "openpyxl",
        "import pandas as pd\npd.DataFrame({'a': [1, 2]}).to_excel('b.xlsx', index=False)\npd.read_excel('b.xlsx')",
        "import openpyxl\nassert openpyxl.load_workbook('b.xlsx').active['A3'].value == 2",
        DATA,
    ),
    Case(
        "xlsxwriter",
        "xlsxwriter",
        "import xlsxwriter, zipfile\nbook = xlsxwriter.Workbook('c.xlsx'); book.add_worksheet().write(0, 0, 7)\n"
        "book.close(); len(zipfile.ZipFile('c.xlsx').namelist()) > 5",
        "book = xlsxwriter.Workbook('d.xlsx'); book.add_worksheet().write(0, 0, 8); book.close()",
    ),
    Case(
        "python-docx",
        "docx",
        "import docx\nd = docx.Document(); d.add_paragraph('hello'); d.save('a.docx')\n"
        "docx.Document('a.docx').paragraphs[0].text",
        "d.add_heading('more'); d.save('a.docx'); assert len(docx.Document('a.docx').paragraphs) >= 2",
    ),
    Case(
        "python-pptx",
        "pptx",
        "import pptx\np = pptx.Presentation(); p.slides.add_slide(p.slide_layouts[0]); p.save('a.pptx')\n"
        "len(pptx.Presentation('a.pptx').slides)",
        "p.slides.add_slide(p.slide_layouts[0]); p.save('b.pptx')\nassert len(pptx.Presentation('b.pptx').slides) >= 2",
    ),
    Case(
        "reportlab",
        "reportlab.pdfgen.canvas",
        "from reportlab.pdfgen.canvas import Canvas\nc = Canvas('a.pdf'); c.drawString(50, 700, 'hi'); c.save()\n"
        "open('a.pdf', 'rb').read(5)",
        "c = Canvas('b.pdf'); c.drawString(50, 700, 'x'); c.save()\nassert open('b.pdf', 'rb').read(4) == b'%PDF'",
    ),
    Case(
        "pypdf",
        "pypdf",
        "import pypdf\nw = pypdf.PdfWriter(); w.add_blank_page(200, 200); w.write('w.pdf')\n"
        "len(pypdf.PdfReader('w.pdf').pages)",
        "w.add_blank_page(100, 100); w.write('v.pdf'); assert len(pypdf.PdfReader('v.pdf').pages) >= 2",
    ),
    Case(
        "pillow",
        "PIL.Image",
        "from PIL import Image, ImageFilter\ni = Image.new('RGB', (64, 64), 'red'); i",
        "i.filter(ImageFilter.BLUR).resize((32, 32)).save('i.png')\nassert Image.open('i.png').size == (32, 32)",
        PNG,
    ),
    Case(
        "opencv-python-headless",
        "cv2",
        "import cv2, numpy as np\nimage = np.zeros((400, 400, 3), np.uint8); cv2.circle(image, (200, 200), 99, (0, 0, 255), -1)\n"
        "from IPython.display import Image\nImage(data=cv2.imencode('.png', image)[1].tobytes())",
        "assert cv2.GaussianBlur(image, (31, 31), 9).sum() > 0\nassert cv2.resize(image, (4000, 4000)).shape[0] == 4000\n"
        "assert len(cv2.findContours(cv2.Canny(image, 50, 100), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0])",
        PNG,
    ),
    Case(
        "sympy",
        "sympy",
        "import sympy as sp\nx = sp.symbols('x'); sp.integrate(sp.sin(x) * x, x)",
        "assert sp.solve(x**2 - 4, x) == [-2, 2]",
        "text/latex",
    ),
    Case(
        "networkx",
        "networkx",
        _FIGURE + "import networkx as nx\ng = nx.karate_club_graph(); nx.draw(g); nx.number_of_edges(g);",
        "assert len(nx.shortest_path(g, 0, 33)) == 3\nassert round(sum(nx.pagerank(g).values()), 6) == 1",
        PNG,
    ),
    Case(
        "requests",
        "requests",
        "import requests, threading, http.server\n"
        "def serve():\n"
        "    s = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "    t = threading.Thread(target=lambda: (s.handle_request(), s.server_close())); t.start()\n"
        "    return t, f'http://127.0.0.1:{s.server_port}/'\n"
        "t, url = serve(); code = requests.get(url, timeout=9).status_code; t.join(); code",
        "t, url = serve(); assert requests.get(url, timeout=9).ok; t.join()",
    ),
    Case(
        "httpx",
        "httpx",
        "import httpx, asyncio, threading, http.server\n"
        "def serve():\n"
        "    s = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "    t = threading.Thread(target=lambda: (s.handle_request(), s.server_close())); t.start()\n"
        "    return t, f'http://127.0.0.1:{s.server_port}/'\n"
        "t, url = serve(); code = httpx.get(url, timeout=9).status_code; t.join(); code",
        "async def get(url):\n    async with httpx.AsyncClient(timeout=9) as c:\n        return await c.get(url)\n"
        "t, url = serve(); assert (await get(url)).status_code == 200; t.join()",
    ),
    Case(
        "beautifulsoup4",
        "bs4",
        "from bs4 import BeautifulSoup\nBeautifulSoup('<p>a<b>c</b></p>', 'html.parser').b.text",
        "assert BeautifulSoup('<i>x</i>', 'html.parser').i.text == 'x'",
    ),
    Case(
        "lxml",
        "lxml.etree",
        "from lxml import etree, html\nhtml.fromstring('<p>a<b>c</b></p>').xpath('//b/text()')",
        "assert etree.XPath('//b')(etree.fromstring('<a><b/></a>'))",
    ),
    Case(
        "SQLAlchemy",
        "sqlalchemy",
        "import sqlalchemy as sa, pandas as pd\nengine = sa.create_engine('sqlite:///a.sqlite')\n"
        "pd.DataFrame({'a': [1, 2]}).to_sql('t', engine)\npd.read_sql('select sum(a) s from t', engine)",
        "with engine.connect() as c: assert c.execute(sa.text('select count(*) from t')).scalar() == 2",
        DATA,
    ),
    Case(
        "onnxruntime",
        "onnxruntime",
        "import onnx, numpy as np, onnxruntime as ort\nfrom onnx import helper as h, TensorProto as T\n"
        "g = h.make_graph([h.make_node('MatMul', ['a', 'b'], ['c'])], 'g',\n"
        "    [h.make_tensor_value_info(n, T.FLOAT, [256, 256]) for n in 'ab'],\n"
        "    [h.make_tensor_value_info('c', T.FLOAT, [256, 256])])\n"
        "m = h.make_model(g, opset_imports=[h.make_opsetid('', 13)], ir_version=8).SerializeToString()\n"
        "s = ort.InferenceSession(m); one = np.ones((256, 256), 'f')\ns.run(None, {'a': one, 'b': one})[0].max()",
        "assert s.run(None, {'a': one, 'b': one})[0].max() == 256\n"
        "assert ort.InferenceSession(m).run(None, {'a': one, 'b': one})[0].max() == 256",
        requirement="onnxruntime onnx",
    ),
    Case(
        "jax",
        "jax",
        "import jax, jax.numpy as jnp\nf = jax.jit(lambda x: jnp.sin(x) @ x.T)\n"
        "a = jnp.ones((300, 300)); float(jax.grad(lambda x: (x**2).sum())(3.0))",
        "assert f(a).shape == (300, 300)\nassert float(jax.jit(lambda x: x * 2)(4.0)) == 8",
    ),
    Case(
        "numba",
        "numba",
        "import numba, numpy as np\n@numba.njit(parallel=True)\ndef total(x):\n    s = 0.0\n"
        "    for i in numba.prange(x.size): s += x[i]\n    return s\ntotal(np.ones(100_000))",
        "assert total(np.ones(200_000)) == 200_000\nassert numba.njit(lambda x: x + 1)(1) == 2",
    ),
    Case(
        "spacy",
        "spacy",
        "import spacy\nnlp = spacy.blank('en'); nlp.add_pipe('sentencizer')\n[s.text for s in nlp('One. Two.').sents]",
        "assert [t.text for t in nlp('A cat.')] == ['A', 'cat', '.']\nfrom spacy import displacy\n"
        "assert displacy.render(nlp('x'), style='ent', jupyter=False)",
    ),
    Case(
        "nltk",
        "nltk",
        "import nltk\nfrom nltk.tokenize import TreebankWordTokenizer\nnltk.FreqDist(TreebankWordTokenizer().tokenize('a b a')).most_common(1)",
        "assert nltk.PorterStemmer().stem('running') == 'run'",
    ),
    Case(
        "xgboost",
        "xgboost",
        _BLOBS
        + "import xgboost as xgb\nmodel = xgb.XGBClassifier(n_estimators=20, n_jobs=2).fit(X, y)\nround(model.score(X, y), 1)",
        "assert model.predict(X[:2]).tolist() == [0, 0]\nxgb.XGBClassifier(n_estimators=5, n_jobs=2).fit(X, y)",
    ),
    Case(
        "lightgbm",
        "lightgbm",
        _BLOBS
        + "import lightgbm as lgb\nmodel = lgb.LGBMClassifier(n_estimators=20, n_jobs=2, verbose=-1).fit(X, y)\n"
        "round(model.score(X, y), 1)",
        "assert model.predict(X[:2]).tolist() == [0, 0]\nlgb.LGBMClassifier(n_estimators=5, n_jobs=2, verbose=-1).fit(X, y)",
    ),
    Case(
        "dask",
        "dask.dataframe",
        "import dask.dataframe as dd, pandas as pd\nd = dd.from_pandas(pd.DataFrame({'k': [1, 2] * 500, 'v': range(1000)}), npartitions=4)\n"
        "d.groupby('k').v.sum().compute()",
        "assert d.v.sum().compute() == 499500\nimport dask.array as da\nassert da.ones((1000, 1000), chunks=250).sum().compute() == 1e6\n"
        "import dask\nassert d.v.sum().compute(scheduler='processes', num_workers=2) == 499500",
        DATA,
        "dask[dataframe,array]",
    ),
    Case(
        "ray",
        "ray",
        "import ray\nray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)\n"
        "@ray.remote\ndef double(x): return 2 * x\nray.get(double.remote(21), timeout=60)",
        "assert ray.get(double.remote(4), timeout=30) == 8",
    ),
    Case(
        "torch",
        "torch",
        "import torch\nlayer = torch.nn.Linear(256, 256); x = torch.ones(512, 256)\n"
        "loss = layer(x).pow(2).mean(); loss.backward(); list(layer.weight.grad.shape)",
        "assert layer(x).shape == (512, 256)\nassert (torch.ones(600, 600) @ torch.ones(600, 600)).max() == 600",
        requirement="torch==2.13.0",
    ),
)
