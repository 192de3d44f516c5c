"""How a database of any older version becomes one of today: one revision a file in `versions`, run by alembic."""
