"""The doors over HTTP: OpenAI's dialect, streams by their names, the page, and the documents about it all."""
