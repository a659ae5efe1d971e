"""The subcommands of `nsde-policy`, one file each: a dataclass of flags whose `run` calls one function.

Nothing heavy is imported at the top of these files: `nsde-policy --help` reads all of them.
"""
