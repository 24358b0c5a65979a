"""Tool calls and reasoning in what a model writes: a table of how models spell them, the reading of tokens
by it, and the grammar of what a model is to write. Pure: it knows a model's spelling, and neither streams nor
clients."""
