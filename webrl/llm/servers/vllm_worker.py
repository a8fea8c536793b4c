"""Mixed into vLLM's workers (`--worker-extension-cls`): another checkpoint in the place of the one that is loaded.

A copy of this file is imported by whichever Python vLLM runs in, so at import it needs torch and the standard library.
"""

from __future__ import annotations

from typing import Any

import torch

# Linux ends a process that uses AMX and has not asked for it. vLLM's attention does so on a CPU, in bfloat16, unless
# oneDNN has asked, which small matrix products do not need (seen with vLLM 0.32). Without AMX nothing happens.
torch.cpu._init_amx()


class LoadInPlace:
    """Its methods are called through `/collective_rpc`; their names must not be those of vLLM's own worker."""

    def webrl_load(self, folder: str) -> None:
        """Read a checkpoint of the same shape into the running model."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        worker: Any = self
        worker.reload_weights(weights_path=folder)
        for module in worker.get_model().modules():
            # On a CPU the output head computes with a packed copy of its matrix. A head that is tied to the input
            # embeddings is not loaded itself, so vLLM leaves that copy as it was.
            if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)
