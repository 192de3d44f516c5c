"""The packages that people use most, with the modules that code imports.

Plain data with two uses: a hint may name one to install, and the system prompt for a model lists the first of them that
are installed. A name that code asks for is not in an index because code asks for it: anyone may register it there, so a
hint names a package of this list or none.
"""

from __future__ import annotations

# PACKAGE, or PACKAGE=MODULE where the two differ. Those that people ask a data analyst for, the most usual first:
_FIRST = (
    "numpy pandas matplotlib scipy scikit-learn=sklearn seaborn plotly statsmodels sympy networkx pillow=PIL openpyxl "
    "xlsxwriter python-docx=docx python-pptx=pptx pypdf reportlab pyarrow polars duckdb sqlalchemy requests httpx "
    "beautifulsoup4=bs4 lxml nltk spacy torch tensorflow xgboost lightgbm opencv-python=cv2 geopandas shapely"
)
_OTHERS = (
    "aiohttp altair anthropic bokeh boto3 catboost cryptography dask datasets django fastapi flask folium gensim jax "
    "joblib keras numba openai pdfplumber psutil psycopg2-binary=psycopg2 pycryptodome=Crypto pydantic pyjwt=jwt "
    "pymongo pymupdf=fitz pytest python-dateutil=dateutil python-dotenv=dotenv pyyaml=yaml redis rich "
    "scikit-image=skimage scrapy selenium tabulate tokenizers torchvision tqdm transformers xarray xlrd"
)
_MODULES = {
    package: module or package
    for package, _, module in (word.partition("=") for word in f"{_FIRST} {_OTHERS}".split())
}
_PACKAGES = {module: package for package, module in _MODULES.items()}
# The packages that the system prompt lists by name; others are counted.
WELL_KNOWN = tuple(_MODULES)[: len(_FIRST.split())]


def package_of(module: str) -> str:
    """Return the name of the package with this module, as an index has it; empty for a module that is not known."""
    return _PACKAGES.get(module, "")
