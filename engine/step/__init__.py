"""One step of the engine: commands in, batches through the model, and what streams are told of it."""
