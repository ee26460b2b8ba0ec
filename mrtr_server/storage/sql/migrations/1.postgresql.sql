-- What replicas share: which states were redeemed, and what pages reported back. Times are seconds since the epoch.

CREATE TABLE mrtr_redemptions (
    state TEXT NOT NULL,
    answers TEXT NOT NULL,
    token TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    leased_until DOUBLE PRECISION NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    outcome BYTEA,
    PRIMARY KEY (state)
);
CREATE INDEX ix_mrtr_redemptions_expires ON mrtr_redemptions (expires);

CREATE TABLE mrtr_kept (
    key TEXT NOT NULL,
    value BYTEA NOT NULL,
    writer TEXT NOT NULL,
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (key)
);
CREATE INDEX ix_mrtr_kept_expires ON mrtr_kept (expires);
