"""What runs inside a sandbox, a folder for each process: `template`, `init`, `context`, with `export` and `shared`.

Everything here lives with hostile code or becomes it. It needs the standard library and IPython, and runs on
every Python from 3.9 on, because the interpreter is the template's and not ours.
"""
