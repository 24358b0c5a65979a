"""The HTTP endpoints: OpenAI's API, streams by their names, the page, and the documents about it all."""
