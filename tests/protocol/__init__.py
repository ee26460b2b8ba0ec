"""The wire forms, and the golden transcripts of each."""
