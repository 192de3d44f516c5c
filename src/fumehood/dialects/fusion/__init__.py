"""The dialect of SandboxFusion: `/run_code` and `/run_jupyter`, each call in a sandbox of its own.

`adapter.py` has the routes; the rest is translation. No other dialect may import it.
"""
