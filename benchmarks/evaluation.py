"""CPU time of an evaluation and of drawing its samples alone.

    python benchmarks/evaluation.py [--results FOLDER] [--rounds N] [--smallest]

"sampling" draws 32 responses to each problem of a laptop's Countdown benchmark with the evaluation's random numbers, so
the same tokens, in the same batches. "benchmark" is all that an evaluation does for one benchmark: it reads the
problems, lets lm-eval ask for the responses, turns tokens into text, grades, votes, writes the table and sums it up.
"job" is all of ``python -m bapo evaluate`` for it behind the imports, so the checkpoint's loading and checks, too.
Shown are ratios to sampling, measured in turns, as medians and quartiles; 1 would be no overhead.

Limits: of the overhead a third is grading and voting, a sixth each decoding, the problems' file, lm-eval's requests and
the table.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import mkdtemp

import trained_base
import world


def main() -> None:
    options = world.arguments(__doc__, rounds=7).parse_args()
    from bapo.engines.shared import models
    from bapo.engines.shared.answers import draw, parameters_of
    from bapo.engines.shared.data import read_prompts
    from bapo.evaluation import backends, run
    from bapo.evaluation.prompts import check_all, draw_key
    from bapo.experiments.places import data_directory
    from bapo.store.files import write_parquet
    from bapo.tasks import get

    name, problems = "cd34", "evaluation.benchmarks=[cd34]"
    config = trained_base.make(options.results, problems, smallest=options.smallest)
    checkpoint, s, e = models.start_path(config), config.sampling, config.evaluation
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    limits = check_all(config, checkpoint, [run.load_benchmark(config, name, checkpoint)])
    model = backends.build(config, checkpoint, limits, lambda count: None)
    tokenizer = model.tokenizer
    prompts = read_prompts(data_directory(config) / f"{name}.parquet", tokenizer, s.max_prompt_tokens)
    parameters = parameters_of(tokenizer, e.temperature, e.top_p, s.top_k, s.max_response_tokens)
    key = draw_key(e.seed, name)

    def sampling() -> None:
        draw(model.model, prompts, e.samples, key, parameters, max_rows=e.batch_size)

    def benchmark() -> None:
        frame = run.table(config, model, run.load_benchmark(config, name, checkpoint), "benchmark")
        write_parquet(Path(mkdtemp(prefix="bapo-benchmark-")) / f"{name}.parquet", frame)
        run.summarise(frame, get(config.task.name).answer)

    def job() -> None:
        run.evaluate(config, checkpoint, Path(mkdtemp(prefix="bapo-benchmark-")))

    sides = {"sampling": sampling, "benchmark": benchmark, "job": job}
    seconds = world.interleave(sides, 1 if options.smallest else options.rounds)
    print(f"\n{world.machine()}")
    print(f"{len(prompts)} problems, {e.samples} samples each: {'CPU seconds':>24}  {'ratio':>18}")
    for side, values in seconds.items():
        print(f"{side:<34}{world.spread(values):>20}  {world.spread(values / seconds['sampling']):>18}")


if __name__ == "__main__":
    main()
