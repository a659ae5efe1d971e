"""One self-contained page about some runs: `gathering` plays and reads, `tables` and `page` write HTML.

The page's own files stand here too: `page.html`, `page.css` and the scripts. Nothing is built, and nothing
is fetched: all of it, data included, goes into one file.
"""
