"""BAPO in one file: equations 1 to 8 and Algorithm 1 of "Buffer Matters", in the paper's order and with its symbols.

    python examples/bapo_in_one_file.py [--steps 150] [--seed 1]

It trains a model of 112,000 parameters on Countdown, for about a minute on one core. A comment names the equation, or
the line of Algorithm 1, beside the code. Where the paper leaves a choice, the code takes the one of the torch engine
(docs/fidelity.md), and a comment that begins with "choice:" says so.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

# From the suite come the laptop's problems, their settings, tokenizer and verifier, and named random numbers:
# seeds.generator(seed, purpose, t) is a generator of NumPy, and the engine draws the same prompts and mini-batches.
from bapo import seeds
from bapo.experiments.compose import compose_config
from bapo.tasks.base import Problem
from bapo.tasks.countdown.task import Countdown

# ---------------------------------------------------------------------------------- Table 3, at the size of a laptop

G = 8  # responses to each prompt
B = 32  # prompts of a step, and the configured batch size of equation 7 (256 in the paper)
MINI_BATCH = 8  # groups of an update (64 in the paper)
PROMPT, RESPONSE = 7, 20  # tokens, at most
PAD = 0  # the tokenizer's padding
v = 5  # steps between two refreshes of the rollout policy alpha
m = 5  # steps between two re-evaluations of B_bad
c1 = 1 / 8
c2_low, c2_high = 1 / 8, 4 / 8
c3_low, c3_high = 2 / 8, 5 / 8
epsilon = 0.2  # of the clip, equation 1
beta = 0.001  # of the KL, equation 3
ENTROPY = 0.001  # coefficient of the entropy
RATE, WARM_UP = 2e-4, 20  # learning rate of Adam (1e-6 in the paper), and the updates over which it rises


# ------------------------------------------------------------------------------------------- equations 1 to 3: a loss


def advantages(r: Tensor) -> Tensor:
    """Return the advantage of each response within its group, [G], from the rewards r [G]."""
    return (r - r.mean()) / torch.sqrt(r.var(correction=0) + 1e-6)  # equation 2


def loss(log_pi: Tensor, entropy: Tensor, log_alpha: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Return minus the objective of equation 3 for a mini-batch of N responses.

    log_pi, log_alpha [N, RESPONSE]: log-probability of each token under the trained policy and under the policy that
    sampled it: alpha for X1, pi_theta_t for X2, alpha_B for X3. advantage [N]. entropy, mask [N, RESPONSE]: 0 behind y.
    """
    a = advantage[:, None]
    # choice: a ratio of each token, as in equation 1; those below equation 3 are of whole responses
    rho = torch.exp(log_pi - log_alpha)
    # choice: equation 3 has no clip; equation 1's is taken, as Algorithm 1 extends "any GRPO-like RLVR algorithm"
    objective = torch.minimum(rho * a, rho.clamp(1 - epsilon, 1 + epsilon) * a)  # equation 1
    # choice: the authors' framework (verl) limits how much one token with a negative advantage can weigh
    objective = torch.where(a < 0, torch.maximum(objective, 3 * a), objective)
    # choice: the KL is equation 3's, to alpha, not equation 1's, to a reference; verl's estimator and its limit of 10
    kl = (torch.exp(log_alpha - log_pi) - (log_alpha - log_pi) - 1).clamp(max=10)  # equation 3
    objective = objective - beta * kl + ENTROPY * entropy  # equation 3; Table 3 adds the entropy
    mean_over_tokens = (objective * mask).sum(1) / mask.sum(1)  # 1/|y| of equation 1
    # choice: one mean over the union of line 17, not two expectations; a smaller last mini-batch weighs less
    return -mean_over_tokens.sum() / (MINI_BATCH * G)


# ------------------------------------------------------------------------------------- equation 4: an entry of buffers


@dataclass
class Group:
    """Equation 4: one prompt with its G responses."""

    x: Problem  # x.id is u, the identifier
    tokens: Tensor  # [G, PROMPT + RESPONSE]: the prompt, padded on the left, and the responses y, padded on the right
    mask: Tensor  # [G, RESPONSE]: 1 on the tokens of y
    log_alpha: Tensor  # [G, RESPONSE]: log-probabilities under the policy that sampled y
    r: Tensor  # [G]: rewards, 0 or 1
    t: int  # the step that sampled y

    @property
    def mu(self) -> float:
        """Estimate the expected reward of definition 3.1. G and B are powers of two, so thresholds are met exactly."""
        return float(self.r.mean())


# ------------------------------------------------------------------------------- equations 5 to 8: the training batch


def build_batch(
    t: int,
    X_on: list[Group],
    B_bad: dict[str, Problem],
    B_high: list[Group],
    pi: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
) -> tuple[list[Group], list[Group], list[Group]]:
    """Return X1, X2 and X3, and update both buffers in place: lines 8 to 16 and 19 of Algorithm 1."""
    # choice: r_tot, the "global average performance", is the mean reward of this step
    r_tot = sum(g.mu for g in X_on) / len(X_on)
    # choice: as printed, c2 and c3 rise with r_tot, although the sentence before says "from easier to harder"
    c2 = r_tot * (c2_high - c2_low) + c2_low  # equation 8
    c3 = r_tot * (c3_high - c3_low) + c3_low  # equation 8
    B_high[:] = [g for g in B_high if g.t >= t - 3]  # section 3.2: "the three most recent steps"

    X1 = [g for g in X_on if 1 / G <= g.mu <= (G - 1) / G]  # equation 5, first term; line 11

    X2: list[Group] = []  # line 12
    if t % m == 0:  # line 13
        oldest = list(B_bad.values())[: B // 2]  # choice: the oldest; Table 3 says at most 128 of 256
        for g in rollout(pi, tokenizer, oldest, t):  # line 14, with the current policy pi_theta_t
            if c1 < g.mu < 1:  # equation 6. choice: equation 5 would admit mu = 1, which has no advantage
                X2.append(g)
            del B_bad[g.x.id]
            if g.mu <= c1:  # choice: a prompt that did not improve goes to the back, so that all have their turn
                B_bad[g.x.id] = g.x

    # equation 5, third term; line 16. choice: the thresholds are this step's, and what is drawn stays in B_high
    high_quality = [g for g in B_high if c2 <= g.mu <= c3]
    k = max(0, min(len(high_quality), B - len(X1) - len(X2)))  # equation 7
    indices = seeds.generator(seed, "x3", t).choice(len(high_quality), size=k, replace=False)
    X3 = [high_quality[i] for i in sorted(indices)]

    # choice: lines 8 and 9 come last, so that X2 and X3 are "historical", as section 3.2 has it
    for g in X_on:
        if g.mu <= c1:  # line 8
            B_bad.pop(g.x.id, None)  # a prompt has one entry, and moves to the back with it
            B_bad[g.x.id] = g.x  # the prompt is enough, because equation 6 samples new responses
    while len(B_bad) > B:  # section 3.2: first in, first out
        del B_bad[next(iter(B_bad))]
    # choice: D_t of line 19 is X2, which no other line has stored
    B_high += [g for g in X_on + X2 if c2 <= g.mu <= c3]  # lines 9 and 19
    return X1, X2, X3


# ------------------------------------------------------------------------------------------------ Algorithm 1: the loop


def train(
    pi: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, problems: list[Problem], steps: int, seed: int
) -> None:
    """Train the policy pi_theta on the problems for some steps, in place."""
    prompts = endless(problems, seed)
    alpha = copy.deepcopy(pi)  # the rollout policy begins as pi_theta_0
    optimizer = torch.optim.Adam(pi.parameters(), lr=RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda updates: min(1.0, (updates + 1) / WARM_UP))
    B_bad: dict[str, Problem] = {}
    B_high: list[Group] = []
    for t in range(1, steps + 1):  # line 1
        if t % v == 0:  # line 3. choice: as printed, so that the initial policy serves v - 1 steps
            alpha.load_state_dict(pi.state_dict())  # line 4
        X_on = rollout(alpha, tokenizer, list(islice(prompts, B)), t)  # lines 6 and 7
        X1, X2, X3 = build_batch(t, X_on, B_bad, B_high, pi, tokenizer, seed)  # lines 8 to 16, and 19
        batch = X1 + X2 + X3  # line 17
        order = seeds.generator(seed, "mini-batches", t).permutation(len(batch))
        for start in range(0, len(batch), MINI_BATCH):  # line 18
            update(pi, optimizer, [batch[i] for i in order[start : start + MINI_BATCH]])
            schedule.step()
        if t % 6 == 0 or t == steps:  # at multiples of m alone, X2 would seem to be there always
            reward = sum(g.mu for g in X_on) / B
            parts = f"X1 {len(X1):2}  X2 {len(X2):2}  X3 {len(X3):2}  B_bad {len(B_bad):2}  B_high {len(B_high):2}"
            print(f"step {t:3}  reward {reward:.3f}  {parts}", flush=True)


def update(pi: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer, groups: list[Group]) -> None:
    """Take one step of Adam on a mini-batch: line 18, without a critic."""
    mask = torch.cat([g.mask for g in groups])
    log_alpha = torch.cat([g.log_alpha for g in groups])  # as stored, for X3 too: alpha_B of equation 4
    advantage = torch.cat([advantages(g.r) for g in groups])
    log_pi, entropy = log_probabilities(pi, torch.cat([g.tokens for g in groups]), mask)
    optimizer.zero_grad()
    loss(log_pi, entropy, log_alpha, advantage, mask).backward()
    torch.nn.utils.clip_grad_norm_(pi.parameters(), 1.0)  # choice: the limit of the authors' framework
    optimizer.step()


def endless(problems: list[Problem], seed: int) -> Iterator[Problem]:
    """Yield the problems in epochs, each in another order."""
    epoch = 0
    while True:
        for i in seeds.generator(seed, "epoch", epoch).permutation(len(problems)):
            yield problems[i]
        epoch += 1


# --------------------------------------------------------------------------------------------- responses of the library


@torch.no_grad()
def rollout(
    policy: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, problems: list[Problem], t: int
) -> list[Group]:
    """Sample G responses to each problem from a policy at step t, and grade them."""
    if not problems:
        return []
    texts = [x.prompt for x in problems]
    prompts = tokenizer(texts, padding="max_length", max_length=PROMPT, padding_side="left", return_tensors="pt")
    # line 6. Table 3: temperature 1, neither top-p nor top-k, which are the library's defaults but for its top-k of 50
    tokens: Tensor = policy.generate(  # type: ignore[misc,assignment]
        **prompts, do_sample=True, top_k=0, max_new_tokens=RESPONSE, num_return_sequences=G
    )
    missing = PROMPT + RESPONSE - tokens.shape[1]  # where all responses ended early
    tokens = functional.pad(tokens, (0, missing), value=PAD)
    y = tokens[:, PROMPT:]
    ends = y.eq(tokenizer.eos_token_id).long()
    mask = (ends.cumsum(1) - ends == 0).float()  # the end token is part of the response
    log_alpha, _ = log_probabilities(policy, tokens, mask)  # line 7
    answers = tokenizer.batch_decode(y, skip_special_tokens=True)
    groups = []
    for i, x in enumerate(problems):
        rows = slice(i * G, (i + 1) * G)
        r = [Countdown.verify(answer, x.ground_truth).correct for answer in answers[rows]]
        groups.append(Group(x, tokens[rows], mask[rows], log_alpha[rows], torch.tensor(r).float(), t))
    return groups


def log_probabilities(policy: Qwen2ForCausalLM, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return log policy(y|x) and the entropy for each token of the responses, both [N, RESPONSE], 0 behind the end."""
    visible = tokens.ne(PAD).cumsum(1) > 0  # all but the padding on the left
    positions = (visible.cumsum(1) - 1).clamp(min=0)
    logits = policy(tokens, attention_mask=visible.long(), position_ids=positions).logits[:, PROMPT - 1 : -1]
    log_policy = torch.log_softmax(logits, -1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    return log_policy.gather(2, tokens[:, PROMPT:, None])[:, :, 0] * mask, entropy * mask


# -------------------------------------------------------------------------------------------------- the laptop's task


def load() -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerBase, list[Problem], list[Problem]]:
    """Return the base model, its tokenizer, the problems to train on and those held out (the suite's CD-34)."""
    settings, task = compose_config(["scale=laptop", "task=countdown"]), Countdown()
    tokenizer = task.build_tokenizer(settings)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            tie_word_embeddings=True,
            vocab_size=len(tokenizer),
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=PAD,
        )
    ).eval()
    load_model(model, Path(__file__).parents[1] / "experiments" / "base" / "laptop_countdown.safetensors")

    def draw(split: str) -> list[Problem]:
        return task.problems(settings.data, split, seeds.generator(settings.data.seed, "countdown", split))[0]

    return model, tokenizer, draw("train"), draw("cd34")


def accuracy(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, problems: list[Problem]) -> str:
    """Return in words the share of right responses, G to each problem."""
    groups = rollout(model, tokenizer, problems, 0)
    return f"{100 * sum(g.mu for g in groups) / len(groups):.1f}% of {G} responses to each of {len(problems)} problems"


def main() -> None:
    parser = argparse.ArgumentParser(description="BAPO in one file, on the laptop's Countdown")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    model, tokenizer, problems, held_out = load()
    print("before:", accuracy(model, tokenizer, held_out))
    train(model, tokenizer, problems, arguments.steps, arguments.seed)
    print("after: ", accuracy(model, tokenizer, held_out))


if __name__ == "__main__":
    main()
