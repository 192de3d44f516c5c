"""The code inside a sandbox, a folder for each process: `template`, `init`, `context`, with `export` and `shared`.

All of it runs beside hostile code or turns into it, so the host must never trust what it reports. It needs the standard
library and IPython, and runs on every Python from 3.9 on, because the interpreter is the template's and not ours.
"""
