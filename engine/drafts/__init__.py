"""Drafts: tokens that may come next in a stream, and how many of them are worth computing."""
