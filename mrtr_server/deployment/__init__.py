"""One server: its settings, its parts and its life; and what several workers share."""
