"""Settings of hypercorn in a file: how many workers there are."""

workers = 2
