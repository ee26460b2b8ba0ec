"""The test kit that users have."""
