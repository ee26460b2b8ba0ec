"""`mrtr-server new`: a project to begin with."""
