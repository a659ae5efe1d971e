"""Tables of the stored results, for the pages of docs/results.

    python benchmarks/tables.py                            # names of all tables
    python benchmarks/tables.py pusht_methods video_calls  # print some of them
    python benchmarks/tables.py --write docs/results       # update the tables of all pages

A page holds each table between `<!-- table: NAME -->` and `<!-- end -->`. Its prose stays as it is.
"""

import argparse
import re
from pathlib import Path

from result_tables import behaviour, files, policies, speed, video

TABLES = policies.TABLES | behaviour.TABLES | video.TABLES | speed.TABLES
"""Functions that make a table, by name."""


def fill_page(text: str) -> str:
    """Return a page with its tables made again."""

    def fill(place: re.Match[str]) -> str:
        return f"{place[1]}\n\n{make_table(place[2])}\n\n<!-- end -->"

    return re.sub(r"(<!-- table: (\w+) -->).*?<!-- end -->", fill, text, flags=re.DOTALL)


def make_table(name: str) -> str:
    """Make a table as Markdown, with the file it comes from."""
    with files.recording() as read:
        made = TABLES[name]()
    sources = ", ".join(f"`{source}`" for source in dict.fromkeys(read))
    return f"{made}\n\n*From {sources} in `benchmarks/results`.*"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="tables to print")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="update the pages of this folder")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in TABLES]:
        parser.error(f"no table is called {unknown[0]!r}; tables: {', '.join(TABLES)}")
    for name in args.names:
        print(f"{make_table(name)}\n")
    if args.write:
        for page in sorted(args.write.glob("*.md")):
            page.write_text(fill_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    if not args.names and not args.write:
        print("\n".join(TABLES))


if __name__ == "__main__":
    main()
