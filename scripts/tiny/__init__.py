"""How the checkpoints in `data/tiny/` are made from scratch (`scripts/make_tiny_models.py`).

`synthetic.py` writes generic look-up-and-copy pages, `corpus.py` turns them and the demonstrations that
scripted experts recorded in the real browser into token sequences, `pretrain.py` trains.
Nothing here is used when WebRL runs.
"""
