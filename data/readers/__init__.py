"""Readers: one file per demonstration format."""
