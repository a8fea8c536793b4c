"""One interface to a language model: transformers in process, vLLM servers of our own, any OpenAI-compatible URL."""

from webrl.llm.interface import Completion, LanguageModel, Message, Policy, PolicyOutput, Sampling, Turn
from webrl.llm.policy import open_model, open_policy

__all__ = [
    "Completion", "LanguageModel", "Message", "Policy", "PolicyOutput", "Sampling", "Turn", "open_model", "open_policy",
]  # fmt: skip
