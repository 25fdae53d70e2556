"""Values that are stored: JSON, strictly; in pieces where they are large."""
