"""WebArena and WebArena-Lite (docs/webarena.md), in the order in which an episode meets the modules.

sites, tasks, task_files: where, and what. check, reset: the sites before a stage. login: the sites of
one episode. env: its environment. final_state, evaluator, scoring, judge: its score. verified: WebArena-Verified's
tasks, and their score. report: the numbers afterwards. export: generated tasks for tools that read WebArena files.
suite: all this as `Suite`s.
"""
