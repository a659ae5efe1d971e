"""Subcommands of `nsde-policy`, one file each: a dataclass of flags with a method `run`.

These files import nothing heavy at the top, so that `nsde-policy --help` stays fast.
"""
