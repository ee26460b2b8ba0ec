"""What a process shares with its replicas, and what several workers need."""
