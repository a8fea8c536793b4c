"""Trains on episodes with TRL's GRPOTrainer: TRL scores groups, computes the loss and steps; we play and make rows.

TRL's public `rollout_func` plays the episodes of a generation batch, and its reward functions score them. TRL would
then train on one sequence an episode, although each step has its own prompt: no mask can say that. Two private
methods are therefore overridden, which is why TRL's version is checked before a training starts
(`webrl/config/extras.py`): `_generate_and_score_completions` replaces the scored episodes by rows of a step each
(`webrl_grpo/rows.py`), and `_get_per_token_logps_and_entropies` scores screenshots, and not what these rows replace.
The loss is TRL's default (`dapo`): a sum over the sampled tokens divided by their number.

With `max_staleness=s` (`AheadTrainer`), batch k is played by the weights that batches 0 … k-s-1 have trained, in
another process (`collector.py`), and trained on with the ratio of its tokens' probabilities to those that they were
sampled with, exactly as recorded. TRL's loss clips that ratio as PPO does, and truncates it at `RATIO_CAP` where the
clipping leaves it open (advantage below 0): TRL's `delta`, the two-sided clipping of INTELLECT-2, arXiv 2505.07291.

TRL's own asynchronous trainer (trl.experimental.async_grpo, stable from TRL 1.18 on) has the same loss without the cap.
It samples from a vLLM server on another GPU, needs FlashAttention 3, and drops what is too stale.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from webrl.errors import StageError, TrainingError
from webrl.llm.eyes import Eyes
from webrl.types import Task
from webrl_grpo.collector import Collector
from webrl_grpo.play import Attempt, Episode, Player
from webrl_grpo.rows import make_rows, weighted_rewards
from webrl_grpo.sampler import closing, open_sampler
from webrl_grpo.settings import GrpoSettings

logger = logging.getLogger(__name__)
_STEPS_BETWEEN = 4
"""Optimizer steps between two checks of the trust region."""
_MAX_LOWERED = 3
"""Times that the trust region lowers the learning rate before it ends the training."""
RATIO_CAP = 3.0
"""Largest probability ratio that a token counts with."""


class EpisodeTrainer(GRPOTrainer):
    """Plays `tasks` with `player`; the dataset's `task` column holds their indices.

    Args:
        on_episodes: called with the episodes of every generation batch and their rewards (None: it failed).
        eyes: the model's vision processor, if it sees screenshots.
    """

    def __init__(
        self,
        settings: GrpoSettings,
        player: Player | Collector,
        tasks: Sequence[Task],
        on_episodes: Callable[[Sequence[Episode], Sequence[float | None]], None],
        eyes: Eyes | None = None,
        **trainer: Any,
    ) -> None:
        self._settings = settings
        self._player = player
        self._tasks = tasks
        self._on_episodes = on_episodes
        self._eyes = eyes
        self.screenshots: tuple[bytes, ...] = ()
        self._episodes: list[Episode] = []
        self._batch: list[Task] = []
        self._num_batches = 0
        self._is_scoring = False
        self.num_unreadable = 0
        super().__init__(rollout_func=self._roll_out, **trainer)
        self.region = TrustRegion(self, settings.max_kl)
        self.add_callback(self.region)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Prepare one generation batch like TRL, with its sequences replaced by rows of steps."""
        self._batch = [self._tasks[row["task"]] for row in inputs]
        self._is_scoring = True
        try:
            scored = super()._generate_and_score_completions(inputs)
        finally:
            self._is_scoring = False
        rows = make_rows(
            self._episodes,
            scored["advantages"].tolist(),
            self.args.steps_per_generation,
            self._tokenizer.pad_token_id,
            self.accelerator.device,
            sees=self._eyes is not None,
        )
        self.screenshots = rows.screenshots
        self.num_unreadable += rows.num_unreadable
        batch = {
            "prompt_ids": rows.prompt_ids,
            "prompt_mask": rows.prompt_mask,
            "completion_ids": rows.answer_ids,
            "completion_mask": rows.answer_mask,
            "advantages": rows.advantages,
            "num_items_in_batch": torch.tensor(rows.num_tokens, device=self.accelerator.device),
        }
        if self._eyes:
            batch["pixel_values"] = torch.arange(len(rows.screenshots))  # indices for `_score_screenshots`
        # Where one optimizer step follows, its policy is the one that sampled: the ratio is 1, and TRL leaves it out.
        if self._settings.has_collector or "old_per_token_logps" in scored:
            # Recorded log-probs are of temperature 1 without top-k and top-p.
            is_recorded = (self._settings.temperature, self._settings.top_p, self._settings.top_k) == (1, 1, 0)
            batch["old_per_token_logps"] = rows.logprobs if is_recorded else self.score(batch)
        self.region.watch(batch)
        return batch

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Score rows like TRL; not the sequences of whole episodes, whose scores would be thrown away.

        A batch is padded on the left to its longest prompt; a micro-batch needs no more than its own.
        """
        if self._is_scoring:
            return input_ids.new_zeros(input_ids.shape, dtype=torch.float32), None, None
        first = int(attention_mask.argmax(dim=1).min())
        score = (
            partial(self._score_screenshots, self._eyes) if self._eyes else super()._get_per_token_logps_and_entropies
        )
        return score(model, input_ids[:, first:], attention_mask[:, first:], *args, **kwargs)

    def _score_screenshots(
        self,
        eyes: Eyes,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        pixel_values: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Score rows with a screenshot each, in the processor's own tensors, of any shape.

        Args:
            pixel_values: [R] the rows' indices in `screenshots`.
        """
        assert pixel_values is not None
        prompts, answers = input_ids[:, :-logits_to_keep], input_ids[:, -logits_to_keep:]
        read = torch.cat([prompts, eyes.without_pictures(answers)], dim=1)  # [R, P + A]
        labels = input_ids.masked_fill(attention_mask == 0, -100)
        labels[:, :-logits_to_keep] = -100
        logps, entropies = [], []
        for start in range(0, len(read), batch_size or len(read)):
            rows = slice(start, start + (batch_size or len(read)))
            pngs = [self.screenshots[i] for i in pixel_values[rows].tolist()]
            with self.accelerator.autocast():
                output = model(
                    input_ids=read[rows],
                    attention_mask=attention_mask[rows],
                    **eyes.inputs(read[rows], pngs),
                    labels=labels[rows],
                    fused_lm_head=True,
                )
            logps.append(output.log_probs[:, -logits_to_keep:])
            if compute_entropy:
                entropies.append(output.entropy[:, -logits_to_keep:])
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    @torch.no_grad()
    def score(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the rows' log-probs [R, A] at the sampling temperature."""
        logps, _, _ = self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].size(1),
            batch_size=self.args.per_device_train_batch_size,
            pixel_values=batch.get("pixel_values"),
        )
        return logps  # type: ignore[no-any-return]

    def _roll_out(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:  # noqa: ARG002 - TRL's signature
        """Play the batch (TRL's `rollout_func`); returns what is logged and what rewards are computed from.

        Raises:
            StageError: no episode was finished.
        """
        self._episodes = self._collect()
        self._on_episodes(self._episodes, weighted_rewards(self._settings.rewards, self._episodes))
        trajectories = [episode.trajectory for episode in self._episodes]
        if not any(t.status.finished for t in trajectories):
            raise StageError(f"none of {len(trajectories)} episodes finished; the last: {trajectories[-1].message}")
        end = self._tokenizer.pad_token_id
        first = [t.steps[0].prompt_ids if t.steps else (end,) for t in trajectories]
        sampled = [[i for step in t.steps for i in step.action_ids] or [end] for t in trajectories]
        return {
            "prompt_ids": [list(ids) for ids in first],
            "completion_ids": sampled,
            "logprobs": None,
            "episode": self._episodes,
        }

    def _collect(self) -> list[Episode]:
        """Play the episodes of this generation batch with the current weights."""
        assert isinstance(self._player, Player)
        attempts = self._attempts(self._batch)
        self.model.eval()
        try:
            module = self.accelerator.unwrap_model(self.model)
            sampler = partial(open_sampler, self._settings, module, self._eyes, self._fingerprint)
            return self._player.play(attempts, lambda: closing(sampler()))
        finally:
            self.model.train()

    def _attempts(self, tasks: Sequence[Task]) -> list[Attempt]:
        """Return the episodes of the next generation batch, with their names."""
        step, number, size = self.state.global_step, self._num_batches, self.num_generations
        self._num_batches += 1
        return [(f"g{step:05d}.{number}-{task.task_id}-{i % size}", task) for i, task in enumerate(tasks)]

    @property
    def _fingerprint(self) -> str:
        return f"{self._settings.model_name}@step-{self.state.global_step}"

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train like TRL. Raises TrainingError where the loss is not finite."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss of step {self.state.global_step} is {loss.item()}; lower learning_rate")
        return loss

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save like transformers (checkpoints too), but only finite weights: the last loss was computed before them.

        Raises:
            TrainingError: a weight is not finite.
        """
        for name, weight in self.model.named_parameters():
            if not torch.isfinite(weight).all():
                step = self.state.global_step
                raise TrainingError(f"{name} is not finite after step {step}: not saved; lower learning_rate")
        super().save_model(*args, **kwargs)


class TrustRegion(TrainerCallback):
    """Takes back the last steps if they moved the policy by more than `max_kl`, and continues at a quarter of the rate.

    Checked after every fourth optimizer step and the last one, on steps of the newest batch at the check before:
    KL(π_before ‖ π) in nats per action, estimated as in the loop (webrl/training/trust.py). None: no limit. Where three
    lower rates were too high as well, the training ends.
    """

    def __init__(self, trainer: EpisodeTrainer, max_kl: float | None) -> None:
        self.kls: list[float] = []
        """The KL at each check."""
        self.taken_back: list[str] = []
        """Which steps were taken back, and why."""
        self.stopped = ""
        """Why the training ended before its last step; empty if it did not."""
        self._trainer, self._max_kl = trainer, math.inf if max_kl is None else max_kl
        self._rows: dict[str, torch.Tensor] = {}
        self._weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
        self._kept: list[torch.Tensor] = []
        self._kept_step = 0

    def watch(self, batch: dict[str, torch.Tensor]) -> None:
        """Take rows of a batch that is to be trained on, unless those of an earlier one are to be checked first."""
        own = batch["completion_mask"].any(1).nonzero()[:, 0]
        step = self._trainer.state.global_step
        if self._max_kl == math.inf or not len(own) or (self._rows and step != self._kept_step):
            return
        chosen = own[:: max(1, len(own) // max(8, min(32, len(own) // 8)))].cpu()
        self._rows = {key: value[chosen] for key, value in batch.items() if value.dim() and len(value) > chosen.max()}
        self._screenshots, self._kept_step = self._trainer.screenshots, step
        self._before = self._score()
        self._kept = self._kept or [weight.detach().to("cpu", copy=True) for weight in self._weights]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - transformers' signature
        """Check what is due."""
        if not self._rows or (state.global_step % _STEPS_BETWEEN and state.global_step < state.max_steps):
            return
        scores = self._score()
        moved = ((scores - self._before) * self._rows["completion_mask"]).sum(1)
        self.kls.append((moved.exp() - 1 - moved).mean().item())
        with torch.no_grad():
            if self.kls[-1] <= self._max_kl:
                self._before, self._kept_step = scores, state.global_step
                for kept, weight in zip(self._kept, self._weights, strict=True):
                    kept.copy_(weight)
                return
            for kept, weight in zip(self._kept, self._weights, strict=True):
                weight.copy_(kept)
        problem = f"the KL reached {self.kls[-1]:.3g} at step {state.global_step}, past max_kl={self._max_kl:g}"
        if len(self.taken_back) == _MAX_LOWERED:
            self.stopped = f"{problem}: the weights of step {self._kept_step} are saved; lower learning_rate"
            control.should_training_stop = True
            return
        optimizer, scheduler = self._trainer.optimizer, self._trainer.lr_scheduler
        optimizer.state.clear()  # its averages are of the steps taken back
        scheduler.base_lrs = [rate / 4 for rate in scheduler.base_lrs]
        for group in optimizer.param_groups:
            group["lr"] /= 4
        again = f", at learning_rate={scheduler.base_lrs[0]:.3g}" if state.global_step < state.max_steps else ""
        self.taken_back.append(f"{problem}: back to the weights of step {self._kept_step}{again}")
        logger.warning("%s", self.taken_back[-1])

    def _score(self) -> torch.Tensor:
        trainer = self._trainer
        theirs, trainer.screenshots = trainer.screenshots, self._screenshots
        trainer.model.eval()
        try:
            return trainer.score(self._rows)
        finally:
            trainer.model.train()
            trainer.screenshots = theirs


class AheadTrainer(EpisodeTrainer):
    """`EpisodeTrainer` whose player is a `Collector`.

    The last batches of an epoch have none after them to be played ahead, so that every epoch begins with a batch that
    is played while nothing trains.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.staleness: list[int] = []
        """For each generation batch: how many batches behind its weights were."""
        self.waited_s: list[float] = []
        """For each generation batch: how long the training waited for its episodes."""
        self._ahead: list[Any] = []  # batches of the data loader that are read and not trained on
        self._window: list[Any] = []  # the same, with those of the current optimizer step
        self._window_start = 0
        super().__init__(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[Any, Any]:
        """Return the next batches like TRL; reads far enough to know the pages of the batches to be played ahead."""
        per_generation = self.args.steps_per_generation * self.num_iterations  # micro-batches of a generation batch
        num_wanted = num_batches + self._settings.max_staleness * per_generation
        self._ahead += itertools.islice(epoch_iterator, max(0, num_wanted - len(self._ahead)))
        self._window, self._window_start = self._ahead, self._step
        self._ahead = self._window[num_batches:]
        return super().get_batch_samples(iter(self._window[:num_batches]), num_batches, device)  # type: ignore[no-any-return]

    def _collect(self) -> list[Episode]:
        """Return the episodes of this generation batch and request those that the current weights may play."""
        collector = self._player
        assert isinstance(collector, Collector)
        per_generation = self.args.steps_per_generation * self.num_iterations
        upcoming = self._window[self._step - self._window_start :: per_generation]
        unasked = upcoming[len(collector.asked) : self._settings.max_staleness + 1]
        version = len(self.staleness)
        if unasked:
            collector.hand_over(self._fingerprint, self.accelerator.unwrap_model(self.model))
        for rows in unasked:
            collector.ask(version, self._attempts([self._tasks[row["task"]] for row in rows]))
        begun = time.perf_counter()
        episodes, staleness = collector.take(version)
        self.staleness.append(staleness)
        self._metrics["train"]["sampling/staleness"].append(float(staleness))
        self.waited_s.append(time.perf_counter() - begun)
        self._metrics["train"]["sampling/waited_s"].append(self.waited_s[-1])
        return episodes
