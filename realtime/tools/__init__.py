"""Tool calls and reasoning in what a model writes: a table of how models spell them, and the reading of
tokens by it. Pure: it knows a model's spelling, and neither streams nor clients."""
