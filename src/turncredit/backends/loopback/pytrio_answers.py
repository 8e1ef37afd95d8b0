"""Forms of a loopback PyTRIO's answers: all that the SDK insists on, whether it matters or not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from turncredit.backends.loopback.shelf import Saved


def of_session(session: str) -> dict[str, Any]:
    """What every answer of a session says of it."""
    return {
        "service_session_cuid": session,
        "workspace_cuid": "workspace_1",
        "status": "RUNNING",
    }


def of_run(run: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """A training run by what was said of it when it was opened."""
    lora = {name: about[name] for name in ("lora_rank", "train_mlp", "train_attn", "train_unembed")}
    params = {"restore_optimizer": False, "seed": about.get("seed"), **lora}
    return {
        **of_session("session-of-old"),
        "training_run_cuid": run,
        "base_model": about["base_model"],
        "run_index": 1,
        "model_spec_cuid": "model_1",
        "is_lora": True,
        "corrupted": False,
        "training_params": params,
        "created_at": now(),
        "updated_at": now(),
        **params,
    }


def now() -> str:
    """The time, as the service writes it."""
    return datetime.now(UTC).isoformat()


def listed(saved: Saved, model: str) -> dict[str, Any]:
    """Saved weights in a list of them."""
    kind = "Train" if saved.kind == "training_state" else "Sampler"
    return {
        "cuid": f"checkpoint-{saved.name}",
        "checkpoint_cuid": f"checkpoint-{saved.name}",
        "training_run_cuid": saved.run,
        "name": saved.name,
        "checkpoint_type": kind,
        "status": "READY",
        "checkpoint_uri": f"trio://{saved.run}/{saved.kind}/{saved.name}",
        "model": model,
        "base_model": model,
        "model_spec_cuid": "model_1",
        "task_id": saved.run,
        "task_created_at": now(),
        "task_status": "RUNNING",
        "path": saved.path,
        "created_at": now(),
        "lora_rank": saved.about.get("lora_rank", 32),
        "is_uploaded": True,
    }
