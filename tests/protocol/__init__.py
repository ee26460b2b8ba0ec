"""The dialects, and the golden transcripts of each."""
