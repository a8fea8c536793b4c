"""`webrl push`: a run's model on the Hugging Face Hub, with a card that says what it is and how it was measured.

`push.py` makes the folder that is uploaded, looks for secrets in it and sends it, `card.py` writes its README.
"""
