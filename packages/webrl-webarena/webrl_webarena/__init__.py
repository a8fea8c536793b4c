"""WebArena and WebArena-Lite (docs/webarena.md), in the order in which an episode meets the modules.

sites, tasks, task_files: where, and what. check: the sites before a stage. login: the sites of one episode.
env: its environment. evaluator, scoring, judge: its score. report: the numbers afterwards. suite: all this as `Suite`s.
vab, released, process: traces and experience files of the released code, and its `process_data.py`.
"""

import webrl.config  # noqa: F401 - which imports settings.py: in the other order that would be half there
