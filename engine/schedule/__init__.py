"""Who is computed, when, and in whose memory: numbers alone. It knows no model and no tensor."""
