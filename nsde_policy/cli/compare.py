"""`nsde-policy compare`: evaluate runs on the same seeds and compare them."""

import sys
from dataclasses import dataclass
from pathlib import Path

from nsde_policy.cli.shared import options
from nsde_policy.cli.shared.comparison import ComparisonFlags


@dataclass(frozen=True)
class Compare(ComparisonFlags):
    """Evaluate runs on the same seeds and compare them seed by seed.

    Reports scores with 95 % intervals, paired differences, network calls and latency; writes comparison.json,
    comparison.md and plots. Finished evaluations are cached: run the same command again to resume.
    """

    device: options.DeviceFlag = "auto"
    out: Path = Path("out/compare")
    """Directory of the output."""
    json: options.JsonFileFlag = None

    def run(self) -> None:
        """Compare, write the results and print the table."""
        from nsde_policy.eval.compare.plots import draw_comparison
        from nsde_policy.eval.compare.result import merge_comparisons, read_comparison
        from nsde_policy.eval.compare.run import compare_runs
        from nsde_policy.eval.compare.table import format_comparison
        from nsde_policy.eval.render.plotting import pyplot
        from nsde_policy.files import check_writable, replace_file

        runs = self.list_runs()
        cache = self.make_cache(self.out / "entries")
        pyplot()  # fail before the work starts, not after it
        check_writable(self.out / "comparison.json")
        options.check_json_file(self.json)
        parts = [read_comparison(path) for path in self.from_json]
        if runs:
            parts.append(compare_runs(runs, cache, rounds=self.latency_rounds))
        comparison = merge_comparisons(parts)
        text = format_comparison(comparison, reference=self.reference)
        replace_file(self.out / "comparison.json", comparison.to_json())
        replace_file(self.out / "comparison.md", f"{text}\n")
        draw_comparison(comparison, self.out, reference=self.reference)
        options.print_results(self.json, comparison.to_json(), text)
        print(f"wrote {self.out}", file=sys.stderr)
