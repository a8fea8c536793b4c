"""What runs inside vLLM: a check of the server's key on every route, and another checkpoint in the loaded one's place.

vLLM's own check leaves its development routes open (`/collective_rpc` calls any method of its workers by name, with
which we load new weights) to every user of the machine, and to any page in a browser on it. A copy of this file is
imported by whichever Python vLLM runs in, so at import it needs torch and the standard library.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

import torch

_OPEN = "/health"
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class RequireKey:
    """Answers 401 to a request without `Authorization: Bearer <VLLM_API_KEY>`; only `/health` is open."""

    def __init__(self, app: Callable[[Scope, Any, Send], Awaitable[None]]) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Pass on allowed requests (ASGI)."""
        is_open = scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == _OPEN)
        given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        if is_open or (len(given) == 1 and hmac.compare_digest(given[0], self._expected)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"the key of this server is needed"})


# Linux ends a process that uses AMX and has not asked for it. vLLM's attention does so on a CPU, in bfloat16, unless
# oneDNN has asked, which small matrix products do not need (seen with vLLM 0.32). Without AMX nothing happens.
torch.cpu._init_amx()


class LoadInPlace:
    """Mixed into vLLM's workers (`--worker-extension-cls`).

    Its methods are called through `/collective_rpc`; their names must not be those of vLLM's own worker.
    """

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
