"""Database migrations, run by alembic: one revision for each file in `versions`.

Runs in the server process, when it opens the database. A released revision must not be changed.
"""
