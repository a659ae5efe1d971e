"""What several commands share: flags, comparisons of runs, and pages that are served until a signal."""
