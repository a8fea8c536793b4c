"""One interface to a language model: transformers in process, vLLM servers of our own, any OpenAI-compatible URL."""

from webrl.llm.engines import open_model, open_policy
from webrl.llm.interface import Completion, LanguageModel, Message, Policy, PolicyOutput, Sampling, Turn

__all__ = [
    "Completion",
    "LanguageModel",
    "Message",
    "Policy",
    "PolicyOutput",
    "Sampling",
    "Turn",
    "open_model",
    "open_policy",
]
