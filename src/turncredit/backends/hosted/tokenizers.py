"""The tokenizer of a hosted model, opened on this machine: services take and give token ids.

PyTorch is not needed for it.
"""

from __future__ import annotations

import os
from pathlib import Path

from turncredit.backends.local.models import KNOWN, resolve
from turncredit.backends.local.tokenizer import HfTokenizer
from turncredit.core.errors import BackendError
from turncredit.core.registry import require


def open_tokenizer(name: str, what: str, extra: str) -> HfTokenizer:
    """The tokenizer of a model, with the end ids of its generation config.

    Args:
        name: a known name, a folder, or a hub id.
        what: who asks, for the message when a package is missing.
        extra: the extra that brings the package.

    Raises:
        MissingExtra: Transformers is not installed.
        BackendError: it can be neither read nor fetched.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it misses torch, we do not
    transformers = require("transformers", what, extra)
    local = name in KNOWN or Path(name).expanduser().is_dir()
    where = resolve(name) if local else name
    options = {"trust_remote_code": False, "local_files_only": local}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise BackendError(
            f'tokenizer of "{name}": {error}. Name a folder or hub id that has it (--tokenizer)'
        ) from error
    try:
        found = transformers.GenerationConfig.from_pretrained(where, local_files_only=local)
        ends = found.eos_token_id
    except OSError:  # the file is optional
        ends = None
    return HfTokenizer(tokenizer, [] if ends is None else [ends] if isinstance(ends, int) else ends)
