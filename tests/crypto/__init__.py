"""Keys, sealing and signing."""
