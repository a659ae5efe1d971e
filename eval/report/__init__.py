"""One self-contained HTML page about runs: `tables` and `page` write HTML.

The template, the style sheet and the scripts of the page are in this folder too. The page includes them and
all data, so that it needs no other file and no network.
"""
