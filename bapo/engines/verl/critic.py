"""verl's own critic worker, with the method's advantages and value loss.

verl trains the critic: a token classifier with one label on the policy's base. What differs here is the loss, which
divides by the mini-batch's own counts as the policy's does, and the new head, which starts at 0 as in the torch engine.
"""

from __future__ import annotations

from functools import partial

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from verl.models.transformers import monkey_patch
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from bapo import methods
from bapo.algorithm.advantages import explained_variance
from bapo.algorithm.losses import ValueInputs
from bapo.engines.shared import hooks
from bapo.engines.verl.batch_layout import LAYOUT, marks_of
from bapo.engines.verl.learner import over_tokens, summed, warm_up
from bapo.engines.verl.recorder import means
from bapo.engines.verl.worker import local
from bapo.methods import Method
from bapo.store.files import Json
from bapo.validate import plain


def advantages(method: Method, rows: TensorDict) -> tuple[TensorDict, dict[str, float]]:
    """Return (advantages and returns, metrics) of all rows of a batch, padding included.

    rows: rm_scores, values and response_mask, nested [N, (T)], as are the advantages and returns.
    """
    padded = rows.to_padded_tensor()
    mask, values = padded["response_mask"].cpu().numpy(), padded["values"].float().cpu().numpy()
    rewards = (padded["rm_scores"] * padded["response_mask"]).float().cpu().numpy()
    estimated, returns = method.token_advantages(rewards, values, mask)
    fields = {"advantages": estimated, "returns": returns}
    nested = {name: response_to_nested(torch.from_numpy(a), rows["response_mask"]) for name, a in fields.items()}
    metrics = {"bapo/explained_variance": explained_variance(values, returns, mask)}
    return TensorDict(nested, batch_size=len(mask)), metrics


def value_loss(
    model_output: Json, data: TensorDict, dp_group: object = None, *, method: Method
) -> tuple[Tensor, dict[str, Metric]]:
    """Return (loss, metrics) of one micro-batch, as ``learner.policy_loss`` does.

    Args:
        model_output: holds ``values`` of whole sequences
        data: the rows
        dp_group: of verl's interface, not read
        method: of the run
    """
    values = no_padding_2_padding(model_output["values"], data).float()
    rows = data.select("values", "returns", "response_mask", LAYOUT).to_padded_tensor()
    mask = rows["response_mask"].to(values.dtype)
    counts = marks_of(rows[LAYOUT]).denominators
    loss, metrics = method.value_loss(
        ValueInputs(
            values=values,
            old_values=rows["values"],
            returns=rows["returns"],
            mask=mask,
            nominal_sequences=counts.nominal_sequences,
            nominal_tokens=counts.nominal_tokens,
        )
    )
    loss = loss * data["dp_size"]
    return loss, summed({"value_loss": loss.detach(), **over_tokens(metrics, mask.sum())})


def update_metrics(metrics: Json) -> dict[str, float]:
    """Return the critic's metrics under the names of ``steps.parquet``, from verl's means over the mini-batches."""
    values = {
        "value_loss": metrics["critic/bapo/value_loss"],
        "critic_gradient_norm": metrics["critic/grad_norm"],
        "explained_variance": metrics["bapo/explained_variance"],
    }
    return {name: float(value) for name, value in values.items()} | means(metrics, "critic/bapo/")


class CriticWorker(TrainingWorker):
    """Trains the critic as verl's worker does, from a head that is 0 and with the method's loss."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def reset(self) -> None:
        """Build the model as verl does, and set its random head to 0 before a checkpoint is loaded."""
        monkey_patch.is_trl_available = lambda: False  # for the reason given in worker.py
        super().reset()
        module = self.engine.module
        # the new layer of Hugging Face's token classifiers, or of trl's value model where a family has none
        head = next(getattr(module, name) for name in ("score", "classifier", "v_head") if hasattr(module, name))
        with torch.no_grad():
            for parameter in head.parameters():
                local(parameter).zero_()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def prepare(self, run: DictConfig) -> None:
        """Set the loss. run: the method's configuration, ``actor_rollout_ref.bapo``."""
        method = hooks.checked(methods.build(plain(run.method), run.batch_size, run.seed))
        self.loss_fn = partial(value_loss, method=method)
        warm_up(self.engine.optimizer, self.optimizer_config.lr, run.warmup_updates)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"), blocking=False)
    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        """Make verl's update with the size of mini-batches that the batch was laid out for."""
        tu.assign_non_tensor(data, mini_batch_size=tu.pop(data, key="rows_per_update"))
        return super().train_mini_batch(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def parameter_count(self) -> int:
        """Count the parameters of the whole model."""
        return sum(p.numel() for p in self.engine.module.parameters())
