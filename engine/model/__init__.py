"""Where models come from: files, formats, facts, and layers laid out for the processor."""
