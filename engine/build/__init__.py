"""Building an engine from its options: its components, and how large each of them is."""
