"""Threads, batches, and the deadline of the shutdown."""
