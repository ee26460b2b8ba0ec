"""Tasks, and what processes that share a SQLite file tell each other."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "mrtr_tasks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("updated", sa.Double, nullable=False),
        sa.Column("ttl", sa.Double, nullable=False),
        sa.Column("poll", sa.Double, nullable=False),
        sa.Column("deadline", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("call", sa.LargeBinary, nullable=False),
        sa.Column("journal", sa.LargeBinary, nullable=False),
        sa.Column("questions", sa.LargeBinary, nullable=False),
        sa.Column("outcome", sa.LargeBinary, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("lease", sa.Text, nullable=False),
        sa.Column("leased_until", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("writer", sa.Text, nullable=False),
    )
    working, not_ended = sa.text("status = 'working'"), sa.text("status IN ('working', 'input_required')")
    op.create_index("ix_mrtr_tasks_expires", "mrtr_tasks", ["expires"])
    op.create_index(
        "ix_mrtr_tasks_working", "mrtr_tasks", ["updated", "name"], sqlite_where=working, postgresql_where=working
    )
    op.create_index(
        "ix_mrtr_tasks_open", "mrtr_tasks", ["deadline"], sqlite_where=not_ended, postgresql_where=not_ended
    )
    op.create_table(
        "mrtr_changes",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("writer", sa.Text, nullable=False),
        sa.Column("said", sa.Text, nullable=False),
        sa.Column("written", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_mrtr_changes_expires", "mrtr_changes", ["expires"])
