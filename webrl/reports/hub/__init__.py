"""`webrl push`: a run's model on the Hugging Face Hub, with a card that says what it is and how it was measured.

`folder.py` makes the folder that is uploaded and looks for secrets in it, `card.py` writes its README, `upload.py`
sends it.
"""
