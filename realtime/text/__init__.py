"""Text to tokens and back: templates and tokenizing, whole Unicode and stop strings. Pure."""
