"""The pages run, and say what is so."""
