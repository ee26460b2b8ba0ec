"""Threads, batches, wakes, places of a bound, the deadline of the shutdown, and whether the loop stands still."""
