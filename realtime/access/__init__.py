"""Authentication and connection limits: keys, one-time secrets, origins, and the revocation of keys."""
