"""Tokens per second of our sampler and of Hugging Face ``generate`` on prompts with images, on the same model.

    python benchmarks/sampler_images.py [--results FOLDER] [--rounds N] [--smallest]

As ``sampler.py``, with the laptop's diagrams and Qwen2.5-VL model. Ours runs the vision tower once per prompt;
``generate``, called in the usual way with ``num_return_sequences``, runs it once per sequence, because it repeats the
pixels first. Preparing the images is not counted on either side.
"""

from __future__ import annotations

import numpy as np
import trained_base
import world


def main() -> None:
    options = world.arguments(__doc__, rounds=9).parse_args()
    import torch

    from bapo.engines.shared import models
    from bapo.engines.shared.answers import parameters_of
    from bapo.engines.shared.data import read_prompts
    from bapo.experiments.places import data_directory

    config = trained_base.make(options.results, task="geometry", smallest=options.smallest)
    models.prepare_process(1)
    model, tokenizer = models.load_start(config, torch.device("cpu"))
    processor, sampling = models.load_processor(model, models.start_path(config), config), config.sampling
    data = data_directory(config) / "train.parquet"
    prompts = read_prompts(data, tokenizer, sampling.max_prompt_tokens, processor)[:32]
    images = [p.row.images for p in prompts]
    ids = torch.tensor([p.row.tokens for p in prompts])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.from_numpy(np.concatenate([i.pixel_values for i in images])),
        "image_grid_thw": torch.from_numpy(np.concatenate([i.image_grid_thw for i in images])),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
    }
    parameters = parameters_of(tokenizer, 1.0, 1.0, -1, sampling.max_response_tokens)

    print(f"\n{world.machine()}")
    for group_size in (8,) if options.smallest else (8, 32):
        label = f"32 prompts, {group_size} samples each"
        rounds = 1 if options.smallest else options.rounds
        world.against_generate(label, model, prompts, group_size, parameters, inputs, rounds)


if __name__ == "__main__":
    main()
