"""A chat with an agent in the user's terminal; `session` is the entry point.

Runs in the user's terminal. Text of a model or a guest must never reach the terminal with its control characters.
"""
