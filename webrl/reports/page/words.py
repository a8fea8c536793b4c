"""Plain words for the names that files use for what became of a task, an episode or a step."""

from __future__ import annotations

_WORDS = {
    # How an episode ended (`webrl.types.Status`).
    "page_ended": "ended by the page",
    "agent_done": "ended by the agent",
    "step_limit": "step limit reached",
    "repeated_action": "same action repeated",
    "parse_failures": "unreadable answers",
    "env_error": "browser or site failed",
    "policy_error": "model failed",
    "timeout": "out of time",
    "cut_off": "left unfinished",
    # The filters of proposed tasks, and why they drop (`webrl/tasks/filter.py`).
    "leakage": "too close to an evaluation task",
    "duplicate": "duplicates",
    "infeasible": "judged impossible",
    "critic": "the critic's band",
    "value_low": "too hard by the critic",
    "value_high": "too easy by the critic",
    "success": "success in trials",
    "success_low": "too hard in trials",
    "success_high": "too easy in trials",
    "site_balance": "too many of one site",
    "budget": "more than the phase needs",
    # What became of earlier steps (`webrl/replay/select.py`).
    "kept": "replayed",
    "unjudged": "not judged",
    "failed": "of a failure",
    "repeated_task": "task already chosen",
    "other_tokenizer": "another tokenizer",
    "unscored": "not scored",
    "too_certain": "too certain already",
    "too_uncertain": "too unlikely",
    "over_ratio": "more than replay may add",
    "strategy_none": "replay is off",
}


def in_words(name: str) -> str:
    """What a name of a status, a filter or a reason means; an unknown one without its underscores."""
    return _WORDS.get(name, name.replace("_", " "))
