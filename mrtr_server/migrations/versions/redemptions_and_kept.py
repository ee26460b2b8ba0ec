"""What replicas share: which states were redeemed, and what pages reported back."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "mrtr_redemptions",
        sa.Column("state", sa.Text, primary_key=True),
        sa.Column("answers", sa.Text, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("leased_until", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
    )
    op.create_index("ix_mrtr_redemptions_expires", "mrtr_redemptions", ["expires"])
    op.create_table(
        "mrtr_kept",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("writer", sa.Text, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
    )
    op.create_index("ix_mrtr_kept_expires", "mrtr_kept", ["expires"])
