"""How often callers may call: what is counted, where it is counted, and who has used it up."""
