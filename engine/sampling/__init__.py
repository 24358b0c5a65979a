"""From logits to tokens: one row of numbers a stream, and randomness that depends on nothing else."""
