"""Flows that continue in the background, with their journal in a row of a store."""
