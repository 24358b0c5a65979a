"""What may come next in a stream: grammars over token bytes, and matchers that advance with its tokens."""
