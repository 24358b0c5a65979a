"""One step of the engine: commands, the execution of batches, streams' lifecycles, and KV swapping."""
