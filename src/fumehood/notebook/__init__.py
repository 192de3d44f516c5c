"""Notebooks, scripts and reports from the record of a context; notebooks run in a sandbox; records run again.

Host side, over the public sandbox and its values. What a guest gave is written as data and never rendered or run.
"""
