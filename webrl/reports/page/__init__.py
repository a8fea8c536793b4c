"""`webrl report`: run folders as one HTML file that needs neither network nor JavaScript.

In the order of the work: `facts.py` reads a folder, `charts.py` and `svg.py` draw, `sections.py`, `families.py`,
`judge.py`, `work.py` and `compare.py` say what is shown, `build.py` puts it into `page.html.j2`.
"""
