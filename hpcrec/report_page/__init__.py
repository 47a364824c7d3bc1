"""The report page: one HTML file of a run, or of several side by side, that stands alone.

``folder`` reads run folders, ``curves`` thins what their metrics tell over steps, ``sections`` makes tables and bars of
a summary, ``compare`` finds what differs between runs, and ``page`` writes the file, by the templates that ``filled``
fills. ``page.js`` draws the curves; ``uplot`` is uPlot, vendored with its licence. ``towers`` is a page of its own, of
towers that were planned. Knows run folders and how they are shown; nothing of how a run goes.
"""
