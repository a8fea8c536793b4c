"""Sends a folder to the Hub through huggingface_hub; every failure is one line that says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from webrl.config.redaction import redact, remember
from webrl.errors import UsageError, WebRLError

_OUTDATED = ["model*.safetensors*", "adapter_*", "config.json", "generation_config.json"]
"""Files of an earlier push that are removed where this one has none of the name, such as other shards."""


_NAME = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9_][\w.-]{0,94}[\w]|[A-Za-z0-9][\w-]*/\w", re.ASCII)


class HubError(WebRLError):
    """The Hub could not be reached, or refused; the text says what was refused and why."""


def check_repo_id(repo_id: str) -> None:
    """Return if it is of the form OWNER/NAME.

    Raises:
        UsageError: it is not.
    """
    if not _NAME.fullmatch(repo_id) or "--" in repo_id or ".." in repo_id:
        raise UsageError(f"{repo_id!r} is no name of a repository; it is OWNER/NAME, such as 'ann/agent'")


def upload(folder: Path, repo_id: str, message: str, *, private: bool) -> str:
    """Create the repository where it is not there, and bring the folder into it; gives its address.

    A call that was interrupted is made again: what has arrived is not sent twice.

    Raises:
        UsageError: no token, or `private` for a repository that is public.
        HubError: no network, a token that is refused, another's repository, no space.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    token = get_token()
    if not token:
        raise UsageError("no token for the Hugging Face Hub: export HF_TOKEN, or log in with `hf auth login`")
    remember(token)
    failed: Any = HfHubHTTPError.__bases__[0]  # of the HTTP client, which is not the same in all versions
    where = f"{constants.ENDPOINT}/{repo_id}"
    api = HfApi(token=token)
    try:
        address = str(api.create_repo(repo_id, private=private or None, exist_ok=True))
        if private and not api.repo_info(repo_id).private:
            raise UsageError(f"{where} is there already and is public; leave out --private, or choose another name")
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message, delete_patterns=_OUTDATED)
    except OfflineModeIsEnabled:
        raise UsageError("HF_HUB_OFFLINE is set: nothing is sent; unset it, or write the folder with --to") from None
    except HfHubHTTPError as error:
        raise HubError(f"{where}: {_refused(error)}") from None
    except (failed, OSError) as error:
        raise HubError(
            f"{constants.ENDPOINT} cannot be reached: {redact(str(error)) or type(error).__name__}"
        ) from None
    return address


def _refused(error: Any) -> str:
    status = error.response.status_code
    reasons = {
        401: "the token was not accepted; make a new one with write access (HF_TOKEN, or `hf auth login`)",
        403: "the token may not write there: another owner's repository, or a token that may only read",
        404: "no such owner or repository, or the token may not see it",
        413: "the Hub takes no file of this size",
    }
    said = redact(str(error.server_message or "")).strip()
    return f"{reasons.get(status, f'refused with {status}')}{f' (it says: {said[:200]})' if said else ''}"
