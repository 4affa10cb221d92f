"""Tokens per second of our sampler and of Hugging Face ``generate``, on the same model and prompts.

    python benchmarks/sampler.py [--results FOLDER] [--rounds N]

Only useful tokens count: up to and including the end token, without the padding behind it. Both sides sample at
temperature 1 without filters, on one thread, and stop at the end token. Only ours returns log-probabilities with the
tokens. "general" is our sampler on the library's forward, as for any model; "Qwen2" uses the hand-written forward for
small Qwen2 models. Ratios are measured in turns and shown as medians and quartiles; above 1 is faster. The model is
trained just long enough that responses end after 12 or 18 tokens (see ``world.py``).

Limits: at 256 rows of a 112k-parameter model a token takes about 1.1 ms, half of it in matrix products near the CPU's
peak, a quarter in attention over the cache, the rest in some 50 small operations. ``generate`` spends its time in
Python and in small operations (about 3.5 ms per token), and keeps computing finished rows.
"""

from __future__ import annotations

import numpy as np
import world


def main() -> None:
    options = world.arguments(__doc__, rounds=15).parse_args()
    import torch

    from bapo import seeds
    from bapo.engines.fast import sampler as sampler_qwen2
    from bapo.engines.shared import models
    from bapo.engines.shared.data import read_prompts
    from bapo.engines.shared.sampler import SamplingParameters, sample
    from bapo.experiments.places import data_directory

    config = world.make(options.results)
    models.prepare_process(1)
    model, tokenizer = models.load_start(config, torch.device("cpu"))
    assert sampler_qwen2.supports(model)
    problems = read_prompts(data_directory(config) / "train.parquet", tokenizer, 16)[:32]
    prompts, keys = [p.row.tokens for p in problems], np.array([p.row.key for p in problems], dtype=np.uint64)
    pad, longest = tokenizer.pad_token_id, config.sampling.max_response_tokens
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])

    def compare(label: str, group_size: int, ends: tuple[int, ...]) -> None:
        parameters = SamplingParameters(max_tokens=longest, eos_ids=ends, pad_id=pad)
        calls = {name: 0 for name in ("generate", "general", "Qwen2")}
        tokens: dict[str, list[int]] = {name: [] for name in calls}

        def ours(name: str) -> None:
            calls[name] += 1
            key = seeds.key64("benchmark", calls[name])
            groups = sample(model, prompts, group_size, keys, key, parameters, fast=name == "Qwen2")
            tokens[name].append(int(sum(g.lengths.sum() for g in groups)))

        def theirs() -> None:
            calls["generate"] += 1
            torch.manual_seed(calls["generate"])
            with torch.inference_mode():
                whole = model.generate(
                    ids,
                    attention_mask=mask,
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    num_return_sequences=group_size,
                    max_new_tokens=longest,
                    eos_token_id=ends[0] if ends else None,
                    pad_token_id=pad,
                )[:, width:]
            end = torch.isin(whole, torch.tensor(ends))
            tokens["generate"].append(int((end.cumsum(1) - end.long() == 0).sum()))

        sides = {"generate": theirs, "general": lambda: ours("general"), "Qwen2": lambda: ours("Qwen2")}
        seconds = world.interleave(sides, options.rounds)
        rates = {name: np.array(tokens[name][1:]) / seconds[name] for name in sides}
        for name, rate in rates.items():
            ratio = world.spread(rate / rates["generate"])
            print(f"{label:<34}{name:<10}{world.spread(rate / 1000, '{:.0f}'):>16} k  {ratio:>18}")

    print(f"\n{world.machine()}")
    print(f"{'32 prompts of 6 or 7 tokens':<34}{'':<10}{'tokens a second':>18}  {'ratio':>18}")
    end = (tokenizer.eos_token_id,)
    compare("8 samples each (a rollout)", 8, end)
    compare("32 samples each (an evaluation)", 32, end)
    compare(f"8 samples, all of {longest} tokens", 8, ())


if __name__ == "__main__":
    main()
