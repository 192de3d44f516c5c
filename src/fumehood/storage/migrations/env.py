"""Run by alembic to migrate one open connection; no other module imports it.

Runs in the server's process at its start, or on a developer's machine. The connection comes from
`fumehood.storage.database`, which has begun the one transaction that all revisions share.
"""

from __future__ import annotations

from alembic import context

from fumehood.storage.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"], target_metadata=METADATA, transactional_ddl=True
)

with context.begin_transaction():
    context.run_migrations()
