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

    from bapo.engines.shared import models
    from bapo.engines.shared.data import read_prompts
    from bapo.engines.shared.sampler import SamplingParameters
    from bapo.experiments.places import data_directory

    config = world.make(options.results, "task=geometry", small=SMALL)
    models.prepare_process(1)
    model, tokenizer = models.load_start(config, torch.device("cpu"))
    processor = models.load_processor(model, models.start_path(config), config)
    data = data_directory(config) / "train.parquet"
    rows = [p.row for p in read_prompts(data, tokenizer, config.sampling.max_prompt_tokens, processor)[:32]]
    ids = torch.tensor([r.tokens for r in rows])
    image_inputs = {
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.from_numpy(np.concatenate([r.images.pixel_values for r in rows])),
        "image_grid_thw": torch.from_numpy(np.concatenate([r.images.image_grid_thw for r in rows])),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
    }
    parameters = SamplingParameters(
        max_tokens=config.sampling.max_response_tokens, eos_ids=(tokenizer.eos_token_id,), pad_id=tokenizer.pad_token_id
    )
    print(f"\n{world.machine()}")
    for size in (8, 32):
        label = f"32 prompts, {size:>2} samples each"
        world.race_samplers(label, model, rows, ids, size, parameters, options.rounds, **image_inputs)


if __name__ == "__main__":
    main()
