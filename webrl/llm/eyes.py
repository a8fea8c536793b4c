"""Turn a chat with one picture into token ids and tensors, with a vision-language model's processor.

Page text cannot forge a picture, just as it cannot forge a turn (`webrl/llm/tokens.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Message
from webrl.llm.loading import as_model_error, base_of, config_of, library_message
from webrl.llm.pictures import open_picture, png_size
from webrl.llm.tokens import encode_guarded, protect, render_chat

_TOKEN_TYPES = {
    "gemma3": "token_type_ids",
    "idefics3": None,
    "lfm2_vl": None,
    "qwen2_5_vl": "mm_token_type_ids",
    "qwen3_5": "mm_token_type_ids",
    "qwen3_vl": "mm_token_type_ids",
    "smolvlm": None,
}
"""Model types whose answers after a picture are the same alone, padded and in a batch (tests hold them), and under
which name they want to be told which tokens are the picture's."""
_PIXELS = frozenset(("pixel_values", "pixel_attention_mask", "image_grid_thw", "spatial_shapes"))
"""What their vision towers take."""


@dataclass(frozen=True)
class Look:
    """How a picture is written in a prompt.

    Example: `Look(text="<|image_pad|><|image_pad|>", num_tokens=2, size=(56, 28))`
    """

    text: str
    """What the template's placeholder becomes."""
    num_tokens: int
    """Tokens that the vision tower's output replaces."""
    size: tuple[int, int]
    """Width and height of the picture in pixels."""


class Eyes:
    """The processor of one model.

    Raises:
        ModelError: a family that has not been tried, or a processor that cannot be used.
    """

    def __init__(self, name: str, *, processor: Any = None) -> None:
        from transformers import AutoProcessor, ProcessorMixin

        self.name = name
        config = config_of(name)
        if config.model_type not in _TOKEN_TYPES:
            raise ModelError(
                f"model {name!r} has type {config.model_type!r}, which is untested with screenshots; these work: "
                f"{', '.join(sorted(_TOKEN_TYPES))}"
            )
        if getattr(config.get_text_config(), "conv_bias", False):
            raise ModelError(
                f"model {name!r} has text_config.conv_bias=true: its convolutions would read the padding of a batch, "
                "and an answer would depend on the other rows of the batch; use a model without it (LFM2's default)"
            )
        self._types_name = _TOKEN_TYPES[config.model_type]
        try:
            made: Any = processor or AutoProcessor.from_pretrained(base_of(name) or name, trust_remote_code=False)
        except Exception as error:  # a damaged file raises nearly anything, a missing package ImportError or ValueError
            named = (package for package in ("torchvision", "num2words") if package in str(error).lower())
            if lacking := next((package for package in named if find_spec(package) is None), None):
                # the release and build that fit torch
                index = " --extra-index-url https://download.pytorch.org/whl/cpu" if "+cpu" in torch.__version__ else ""
                fix = f"pip install {lacking} torch=={torch.__version__}{index}"
                raise ModelError(f"the processor of model {name!r} needs {lacking}: {fix}") from None
            raise ModelError(f"cannot load a processor from {name!r}: {library_message(error)}") from error
        sees = isinstance(made, ProcessorMixin) and hasattr(made, "image_processor")
        if not sees:
            raise ModelError(
                f"model {name!r} has no processor for pictures (processor_config.json, preprocessor_config.json); save "
                f"it next to the weights with AutoProcessor.from_pretrained(<base model>).save_pretrained({name!r})"
            )
        self.processor, self.tokenizer = made, made.tokenizer
        self.tokenizer.chat_template = getattr(self.processor, "chat_template", None) or self.tokenizer.chat_template
        if not self.tokenizer.chat_template:
            raise ModelError(
                f"the processor of model {name!r} has no chat template: use an instruction-tuned model, or add "
                "chat_template.jinja to it"
            )
        self._placeholder = str(self.processor.image_token)
        self.picture_ids = frozenset(int(i) for i in self.processor.image_token_ids)
        """Tokens that represent a part of a picture: the vision tower's output replaces their embeddings."""
        self._looks: dict[tuple[int, int], Look] = {}
        self._looking = threading.Lock()  # rows are made in threads, and tokenizers must not be shared between them

    def look(self, png: bytes) -> Look:
        """Return how a picture of its size is written in a prompt. Raises ModelError if the processor cannot tell."""
        size = png_size(png)
        with self._looking:
            if size in self._looks:
                return self._looks[size]
            image = open_picture(png)
            with as_model_error(f"the processor of model {self.name!r} cannot take a picture"):
                made = self.processor(
                    images=[[image]],
                    text=[self._placeholder],
                    add_special_tokens=False,
                    return_text_replacement_offsets=True,
                )
                text = str(made["text_replacement_offsets"][0][0]["replacement"])
            num_tokens = self.count(made["input_ids"][0])
            if not num_tokens:
                raise ModelError(f"the processor of model {self.name!r} produces no tokens for a picture")
            look = self._looks[size] = Look(text, num_tokens, size)
            return look

    def encode(self, messages: Sequence[Message], look: Look) -> list[int]:
        """Token ids of a chat whose last user message begins with the picture.

        Raises:
            ModelError: the template has no place for it.
            PolicyError: the text holds the picture's tokens in a way that cannot be told from a picture.
        """
        guard, contents = protect(self.tokenizer, [m.content for m in messages])
        chat = [{"role": m.role, "content": text} for m, text in zip(messages, contents, strict=True)]
        text = render_chat(self.tokenizer, chat, with_picture=True)
        if text.count(self._placeholder) != 1:
            raise ModelError(
                f"the chat template of model {self.name!r} writes {text.count(self._placeholder)} places for one "
                f"screenshot ({self._placeholder!r})"
            )
        ids = encode_guarded(self.tokenizer, text.replace(self._placeholder, look.text), guard)
        if self.count(ids) != look.num_tokens:
            raise PolicyError(
                f"a prompt of model {self.name!r} has {self.count(ids)} picture tokens, but its picture has "
                f"{look.num_tokens}"
            )
        return ids

    def inputs(self, ids: Tensor, pngs: Sequence[bytes]) -> dict[str, Tensor]:
        """Return the model's inputs other than token ids and mask.

        Args:
            ids: [B, T] padded on either side; answers hold none of `picture_ids` (`without_pictures`).
            pngs: B, one per row.
        """
        made = self.processor.image_processor(images=[[open_picture(png)] for png in pngs], return_tensors="pt")
        inputs = {key: value.to(ids.device) for key, value in made.items() if key in _PIXELS}
        if self._types_name:
            inputs[self._types_name] = self._are_picture(ids).long()
        return inputs

    def without_pictures(self, answers: Tensor) -> Tensor:
        """Return answers as the model may read them: a sampled picture token (it ends the answer) is padding."""
        return answers.masked_fill(self._are_picture(answers), self.tokenizer.pad_token_id)

    def _are_picture(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.tensor(sorted(self.picture_ids), device=ids.device))

    def count(self, ids: Sequence[int]) -> int:
        """Count the tokens that represent a part of a picture."""
        return sum(i in self.picture_ids for i in ids)
