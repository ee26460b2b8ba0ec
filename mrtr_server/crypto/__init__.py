"""Keys, and what is sealed, signed and digested with them."""
