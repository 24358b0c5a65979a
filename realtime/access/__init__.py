"""Who is there: keys, the one-time secrets made of them, origins, crowds, and the end of a revoked key."""
