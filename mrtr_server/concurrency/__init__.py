"""Threads, batches, wakes, and the deadline of the shutdown."""
