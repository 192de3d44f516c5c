"""The dialects that people's clients already speak, each in a folder that can be taken out.

A folder is routes (`adapter.py`) and pure translation. It sees the port of sandboxes and the server's services;
it never imports another dialect, and nothing but the name in the settings refers to it.
"""
