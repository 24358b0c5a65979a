"""Guards: rules that a stream's output is held to while it is written. Text in, verdicts out. Pure."""
