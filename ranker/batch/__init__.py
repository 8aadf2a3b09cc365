"""Batch tagging: rows in, skills out, each row exactly once, however often the run is cut short.

`plan` reads the input once and cuts it into parts; `part` turns one part into one output file; `local` and
`ray_engine` only decide where parts run. A part's file appears whole or not at all, so what is missing is what is left.
"""
