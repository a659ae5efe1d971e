"""Types of flags that benchmarks share."""

import argparse


def parse_count(text: str, least: int = 1) -> int:
    """Return a whole number of at least `least`; argparse prints the error with the name of the flag."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text!r}")
    return number


def parse_count_or_zero(text: str) -> int:
    """Return a whole number of at least 0."""
    return parse_count(text, 0)
