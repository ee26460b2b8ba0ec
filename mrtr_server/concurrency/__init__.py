"""The wait, what each event loop has, threads, batches, places of a bound, the deadline of the shutdown."""
