"""`webrl report`: run folders as one HTML file that needs neither network nor JavaScript.

In the order of the work: `facts.py` reads a folder, `charts.py` draws, `sections.py` chooses what is shown of one run,
`build.py` compares runs and puts everything into `page.html.j2`.
"""
