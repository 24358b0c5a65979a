"""A ragged batch through a model: the runner, attention by one backend of several, and the recorded step."""
