"""Serves a checkpoint over OpenAI's API, for programs that are not webrl.

In the order of a request: the checkpoint (`checkpoint.py`), the request (`requests.py`), and the response (`app.py`).
"""
