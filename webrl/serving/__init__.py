"""A checkpoint as a server of OpenAI's API, for programs that are not webrl.

In the order of a request: what is served (`checkpoint.py`), who may ask (`server.py`), what may be asked
(`requests.py`), and the answers (`app.py`).
"""
