"""What replicas share."""
