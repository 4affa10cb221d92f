"""Tokens per second of our sampler and of Hugging Face ``generate`` on prompts with images, on the same model.

    python benchmarks/sampler_images.py [--results FOLDER] [--rounds N]

As ``sampler.py``, with the laptop's diagrams and Qwen2.5-VL model. Ours runs the vision tower once per prompt;
``generate``, called in the usual way with ``num_return_sequences``, runs it once per sequence, because it repeats the
pixels first. Preparing the images is not counted on either side.
"""

from __future__ import annotations

import numpy as np
import world

SMALL = (
    "base.iterations=200",
    "base.threads=1",
    "data.split_sizes={base: 4000, train: 64, probe: 8, diagrams_val: 8, diagrams_test: 8}",
)


def main() -> None:
    options = world.arguments(__doc__, rounds=9).parse_args()
    import torch

    from bapo import seeds
    from bapo.engines.shared import models
    from bapo.engines.shared.data import read_prompts
    from bapo.engines.shared.sampler import SamplingParameters, sample
    from bapo.experiments.places import data_directory

    config = world.make(options.results, "task=geometry", small=SMALL)
    models.prepare_process(1)
    model, tokenizer = models.load_start(config, torch.device("cpu"))
    processor = models.load_processor(model, models.start_path(config), config)
    data = data_directory(config) / "train.parquet"
    rows = [p.row for p in read_prompts(data, tokenizer, config.sampling.max_prompt_tokens, processor)[:32]]
    prompts, keys = [r.tokens for r in rows], np.array([r.key for r in rows], dtype=np.uint64)
    images = [r.images for r in rows]
    ids = torch.tensor(prompts)
    image_inputs = {
        "pixel_values": torch.from_numpy(np.concatenate([i.pixel_values for i in images])),
        "image_grid_thw": torch.from_numpy(np.concatenate([i.image_grid_thw for i in images])),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
    }
    pad, end, longest = tokenizer.pad_token_id, tokenizer.eos_token_id, config.sampling.max_response_tokens
    parameters = SamplingParameters(max_tokens=longest, eos_ids=(end,), pad_id=pad)

    print(f"\n{world.machine()}")
    for group_size in (8, 32):
        calls = {name: 0 for name in ("generate", "general", "Qwen2.5-VL")}
        tokens: dict[str, list[int]] = {name: [] for name in calls}

        def ours(name: str, size: int = group_size, calls=calls, tokens=tokens) -> None:
            calls[name] += 1
            key = seeds.key64("benchmark", calls[name])
            groups = sample(model, prompts, size, keys, key, parameters, fast=name != "general", images=images)
            tokens[name].append(int(sum(g.lengths.sum() for g in groups)))

        def theirs(size: int = group_size, calls=calls, tokens=tokens) -> None:
            calls["generate"] += 1
            torch.manual_seed(calls["generate"])
            with torch.inference_mode():
                whole = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    num_return_sequences=size,
                    max_new_tokens=longest,
                    eos_token_id=end,
                    pad_token_id=pad,
                    **image_inputs,
                )[:, ids.shape[1] :]
            ended = whole == end
            tokens["generate"].append(int((ended.cumsum(1) - ended.long() == 0).sum()))

        sides = {
            "generate": theirs,
            "general": lambda run=ours: run("general"),
            "Qwen2.5-VL": lambda run=ours: run("Qwen2.5-VL"),
        }
        seconds = world.interleave(sides, options.rounds)
        rates = {name: np.array(tokens[name][1:]) / seconds[name] for name in sides}
        for name, rate in rates.items():
            ratio = world.spread(rate / rates["generate"])
            thousands = world.spread(rate / 1000, "{:.1f}")
            print(f"32 prompts, {group_size:>2} samples each  {name:<12}{thousands:>18} k  {ratio}")


if __name__ == "__main__":
    main()
