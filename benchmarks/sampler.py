"""Tokens per second of our sampler and of Hugging Face ``generate``, on the same model and prompts.

    python benchmarks/sampler.py [--results FOLDER] [--rounds N] [--smallest]

Only useful tokens count: up to and including the end token, without the padding behind it. Both sides sample at
temperature 1 without filters, on one thread, and stop at the end token. Only ours returns log-probabilities with the
tokens. "general" is our sampler on the library's forward, as for any model; "fast" uses the hand-written forward for
small Qwen2 models. Ratios are of CPU time, measured in turns and shown as medians and quartiles; above 1 is faster. The
model is a base (``world.py``). After reinforcement learning responses begin alike more often, and what they have
in common is computed once: the ratio is then higher.

Limits: matrix products are a quarter of the time, half of them attention over the cache, whose products have one query.
Calls (Python, dispatch, memory, copies) are 0.6. ``generate`` spends its time in Python and in
small operations, computes every row to the end of the longest, and each beginning as often as it occurs.
"""

from __future__ import annotations

import world


def main() -> None:
    options = world.arguments(__doc__, rounds=15).parse_args()
    import torch

    from bapo.engines.shared import models, shortcut
    from bapo.engines.shared.prompts import read_prompts
    from bapo.engines.shared.sampling import SamplingParameters
    from bapo.experiments.places import data_directory

    config = world.trained_base(options.results, smallest=options.smallest)
    models.prepare_process(1)
    model, tokenizer = models.load_start(config, torch.device("cpu"))
    assert shortcut("sampler", model)
    prompts = read_prompts(data_directory(config) / "train.parquet", tokenizer, 16)[:32]
    pad, longest = tokenizer.pad_token_id, config.sampling.max_response_tokens
    width = max(len(p.row.tokens) for p in prompts)
    ids = torch.tensor([[pad] * (width - len(p.row.tokens)) + list(p.row.tokens) for p in prompts])
    inputs = {"input_ids": ids, "attention_mask": (ids != pad).long()}

    print(f"\n{world.machine()}")
    print(f"{'32 prompts':<34}{'':<10}{'tokens a second':>20}  {'ratio':>18}")
    end = (tokenizer.eos_token_id,)
    sides = (
        ("8 samples each (a rollout)", 8, end),
        ("32 samples each (an evaluation)", 32, end),
        (f"8 samples, all of {longest} tokens", 8, ()),
    )
    for label, group_size, ends in sides[:1] if options.smallest else sides:
        parameters = SamplingParameters(max_tokens=longest, eos_ids=ends)
        rounds = 1 if options.smallest else options.rounds
        world.against_generate(label, model, prompts, group_size, parameters, inputs, rounds)


if __name__ == "__main__":
    main()
