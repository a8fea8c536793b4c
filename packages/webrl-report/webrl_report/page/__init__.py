"""`webrl report`: run folders as one HTML file that needs neither network nor JavaScript.

In the order of the work: `facts.py` reads a folder, `charts.py` draws, `funnel.py` and `sections.py` choose what is
shown of one run, `build.py` compares runs and puts everything into `page.html.j2`.
"""
