"""Subcommands of `nsde-policy video`: data, train and eval."""
