"""Run one round of a flow against its journal: asks, answers, steps, and how it ends."""
