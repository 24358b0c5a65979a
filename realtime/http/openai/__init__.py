"""OpenAI's API: chat completions, completions and models, as a dialect of streams."""
