"""What the log holds, and what it never does."""
