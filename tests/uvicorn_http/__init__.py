"""HTTP: what comes in, what goes out, and when it ends."""
