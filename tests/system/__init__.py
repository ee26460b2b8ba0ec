"""Whole systems: fleets of processes, other people's clients and suites, and faults."""
