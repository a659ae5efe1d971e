"""`nsde-policy compare`: evaluate runs on the same seeds and compare them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsde_policy.assets import resolve_run
from nsde_policy.cli.shared import options
from nsde_policy.cli.shared.comparison import ComparisonFlags
from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    from nsde_policy.eval.offline.comparison import OfflineComparison


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
        from nsde_policy.eval.compare.files import merge_comparisons, read_comparison
        from nsde_policy.eval.compare.plots import draw_comparison
        from nsde_policy.eval.compare.run import EntryCache, compare_runs
        from nsde_policy.eval.compare.table import format_comparison
        from nsde_policy.eval.render.plotting import pyplot
        from nsde_policy.files import check_writable, replace_file

        if not (self.runs or self.from_json):
            raise ConfigError("nothing to compare: give run directories, or --from-json FILE")
        config = self.make_evaluation()
        runs = [resolve_run(path) for path in self.runs]
        pyplot()  # fail before the work starts, not after it
        check_writable(self.out / "comparison.json")
        options.check_json_file(self.json)
        recorded = self.score_recorded(runs)
        if recorded is not None:
            self._write_recorded(recorded)
            if not self.have_environment(runs):
                options.print_results(self.json, recorded.to_json(), recorded.as_text())
                return
        parts = [read_comparison(path) for path in self.from_json]
        if runs:
            cache = EntryCache(self.out / "entries", config, self.workers, self.device)
            parts.append(compare_runs(runs, cache, rounds=self.latency_rounds))
        comparison = merge_comparisons(parts)
        text = format_comparison(comparison, reference=self.reference)
        replace_file(self.out / "comparison.json", comparison.to_json())
        replace_file(self.out / "comparison.md", f"{text}\n")
        draw_comparison(comparison, self.out, reference=self.reference)
        if recorded is not None:
            text += f"\n\n{recorded.as_text()}"
        options.print_results(self.json, comparison.to_json(), text)
        print(f"wrote {self.out}", file=sys.stderr)

    def _write_recorded(self, comparison: "OfflineComparison") -> None:
        """Write offline.json, offline.md and the figure."""
        from nsde_policy.eval.offline.figures import draw_offline_comparison
        from nsde_policy.files import replace_file

        replace_file(self.out / "offline.json", comparison.to_json())
        replace_file(self.out / "offline.md", f"{comparison.as_text()}\n")
        draw_offline_comparison(comparison, self.out)
        print(f"wrote {self.out / 'offline.json'}, offline.md and offline.png", file=sys.stderr)
