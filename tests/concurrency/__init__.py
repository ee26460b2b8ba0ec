"""Threads, batches and the shutdown."""
