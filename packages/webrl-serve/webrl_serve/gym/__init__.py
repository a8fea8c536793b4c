"""Plays BrowserGym's own environments with a served checkpoint: `agent.py`."""
