"""Notebooks, scripts and reports from the record of a context; notebooks run in a sandbox; records run again.

Runs in the user's process, over the public sandbox and its values. Data of a guest is written as data, and must never
be rendered or run here.
"""
