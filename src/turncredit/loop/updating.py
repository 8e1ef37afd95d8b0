"""One update of the weights: gradients and their step, in one call where a backend takes both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turncredit.core.calls import AdamParams, ForwardBackwardOutput
from turncredit.core.clients import TrainingClient, UpdatingClient
from turncredit.core.datum import Datum


async def updated(
    training: TrainingClient,
    data: Sequence[Datum],
    *,
    loss_fn: str,
    loss_fn_config: Mapping[str, float] | None = None,
    params: AdamParams,
) -> tuple[ForwardBackwardOutput, Mapping[str, float]]:
    """Both, and both answers. A service that is told of the step early does not wait for us.

    Raises:
        BackendError: of either call.
    """
    if isinstance(training, UpdatingClient):
        return await training.update(
            data, loss_fn=loss_fn, loss_fn_config=loss_fn_config, params=params
        )
    output = await training.forward_backward(data, loss_fn=loss_fn, loss_fn_config=loss_fn_config)
    return output, await training.optim_step(params)
