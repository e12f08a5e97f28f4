"""Requests and responses as msgspec structs, from which the OpenAPI document is made."""
