"""A tiny random LFM2-VL. Its image processor exists for torchvision only, which the project's environment has not."""

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

TILES = [f"<|img_row_{row}_col_{col}|>" for row in range(1, 4) for col in range(1, 4)]
SPECIAL = ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *TILES]
_MODULE = "transformers.models.lfm2_vl.image_processing_lfm2_vl"


def build_processor(tokenizer: Any, template: str, **options: Any) -> Any:
    """Pictures of more than 48x64 pixels are split into tiles of 32x32, with a thumbnail of at most 6 tokens."""
    from transformers import Lfm2VlProcessor

    sizes = {"tile_size": 32, "encoder_patch_size": 8, "min_image_tokens": 2, "max_image_tokens": 6, "max_tiles": 6}
    images = _image_processor_class()(**sizes | options)
    return Lfm2VlProcessor(images, tokenizer, chat_template=template)


def build_model(text: dict[str, Any], tokenizer: Any, **more: Any) -> Any:
    """Two convolution layers around one of attention, with untied embeddings, whose logits are far from equal."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    layers = {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
    config = AutoConfig.for_model(
        "lfm2_vl",
        text_config={**text, **layers, "block_auto_adjust_ff_dim": False, **more},
        vision_config={**vision, "patch_size": 8, "num_patches": 64, "vision_use_head": False},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        projector_hidden_size=64,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return AutoModelForImageTextToText.from_config(config)


def _image_processor_class() -> Any:
    """transformers' own; where there is no torchvision, with torch's resizing in the place of torchvision's."""
    from transformers.utils import is_torchvision_available

    if not is_torchvision_available() and _MODULE not in sys.modules:
        from transformers import image_processing_backends as backends
        from transformers.image_utils import PILImageResampling

        backends.tvF = _stand_in()
        backends.pil_torch_interpolation_mapping = {PILImageResampling.BILINEAR: "bilinear"}
        above = {
            name: ModuleType(name) for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
        }
        above["torchvision.transforms.v2"].functional = backends.tvF
        with pytest.MonkeyPatch.context() as patch:
            for name, module in above.items():
                patch.setitem(sys.modules, name, module)
            importlib.import_module(_MODULE)
    return importlib.import_module(_MODULE).Lfm2VlImageProcessor


def _stand_in() -> Any:
    """What the image processor calls of torchvision: its pixels were the same as torchvision's own."""
    import numpy as np
    import torch

    def pil_to_tensor(image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def resize(image: torch.Tensor, size: tuple[int, int], interpolation: str, antialias: bool) -> torch.Tensor:
        return torch.nn.functional.interpolate(image, size, mode=interpolation, antialias=antialias)

    def normalize(image: torch.Tensor, mean: Any, std: Any, inplace: bool) -> torch.Tensor:
        mean, std = (torch.as_tensor(of, dtype=image.dtype)[:, None, None] for of in (mean, std))
        return (image - mean) / std

    module: Any = ModuleType("functional")
    module.pil_to_tensor, module.resize, module.normalize = pil_to_tensor, resize, normalize
    module.InterpolationMode = type("InterpolationMode", (), {"LANCZOS": "lanczos", "BILINEAR": "bilinear"})
    return module
