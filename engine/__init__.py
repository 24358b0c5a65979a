"""The inference engine: tokens, scheduling and models. It knows no text, no socket and no client."""
