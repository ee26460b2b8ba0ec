"""Threads, deadlines and batches: how work is spread and when it has to end."""
