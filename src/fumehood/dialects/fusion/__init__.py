"""The dialect of SandboxFusion: `/run_code` and `/run_jupyter`, each call in a sandbox of its own.

Runs in the server process. `adapter.py` has the routes; the rest is translation. No other dialect may import it.
"""
