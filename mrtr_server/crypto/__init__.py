"""Keys, and what they seal, sign and digest."""
