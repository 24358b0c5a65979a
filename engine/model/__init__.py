"""Models: their files, formats and facts, loading them, and layers laid out for the processor."""
