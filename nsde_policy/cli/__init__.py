"""Subcommands of `nsde-policy`: dataclasses of flags with a method `run`.

These files import nothing heavy at the top, so that `nsde-policy --help` stays fast.
"""
