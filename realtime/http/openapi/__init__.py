"""The OpenAPI document of the HTTP endpoints, made from their own types."""
