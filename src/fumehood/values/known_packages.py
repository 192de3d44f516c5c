"""The packages that people use most, by the module that code imports: what a hint may tell a reader to install.

Plain data. A name that code asks for is not in an index because code asks for it: anyone may register it there, so a
hint names a package of this list or none.
"""

from __future__ import annotations

# Both have one name.
_SAME = (
    "aiohttp altair anthropic bokeh boto3 catboost cryptography dask datasets django duckdb fastapi flask folium "
    "gensim geopandas httpx jax joblib keras lightgbm lxml matplotlib networkx nltk numba numpy openai openpyxl pandas "
    "pdfplumber plotly polars psutil pyarrow pydantic pymongo pypdf pytest redis reportlab requests rich scipy scrapy "
    "seaborn selenium shapely spacy sqlalchemy statsmodels sympy tabulate tensorflow tokenizers torch torchvision tqdm "
    "transformers xarray xgboost xlrd xlsxwriter"
)
_PACKAGES = {name: name for name in _SAME.split()} | {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "jwt": "pyjwt",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def package_of(module: str) -> str:
    """Return the name of the package with this module, as an index has it; empty for a module that is not known."""
    return _PACKAGES.get(module, "")
