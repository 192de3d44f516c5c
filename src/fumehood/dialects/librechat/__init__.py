"""The dialect of LibreChat's code API: executions with files that outlive them, and code that calls tools.

`adapter.py` has the routes; the rest is translation, the files of storage sessions, and runs that wait for tools. No
other dialect may import it.
"""
