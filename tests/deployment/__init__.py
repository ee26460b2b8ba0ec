"""Several workers, and the image."""
