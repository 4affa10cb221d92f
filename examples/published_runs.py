# %% [markdown]
# # The published runs, read by yourself
#
# This notebook is a Python file. Run it with `python examples/published_runs.py FOLDER`, or open it in an editor that
# shows `# %%` as cells, such as VS Code, or in Jupyter with jupytext. It trains nothing and takes some 20 seconds.

# %%
import sys
from pathlib import Path

from analysis import results, statistics, study
from analysis.exchange.evidence import unpack
from analysis.figures import overview

EVIDENCE = Path(__file__).resolve().parents[1] / "evidence"
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "published")

# %% [markdown]
# A file of evidence becomes the runs of a study: what each of them answered right, and what its steps measured.

# %%
NAMES = ["laptop/table1_seeds", "laptop/regimes"]
studies = [study.load(unpack(EVIDENCE / f"{name}.zip", FOLDER / name)) for name in NAMES]
for loaded in studies:
    print(f"{loaded.name}: {', '.join(loaded.blocks[0].methods)}")

# %% [markdown]
# This is the README's picture, of these two studies alone, and its numbers.

# %%
overview.write(studies, FOLDER)
print(
    overview.data(studies)[["method", "task", "model", "runs", "points", "low", "high"]].round(1).to_string(index=False)
)

# %% [markdown]
# Each point is a mean over seeds, and the seeds of two methods are paired: a seed gives both the same prompts in the
# same order. What if they were not? The interval then holds the whole difference between training runs. This changes
# one comparison, BAPO minus GRPO on Countdown after as many steps.

# %%
table1_seeds = studies[0]
countdown = next(block for block in table1_seeds.blocks if block.task == "countdown")
row = results.collect(countdown, table1_seeds)
bapo, grpo = (row[method].side(results.AVERAGE) for method in ("bapo", "grpo"))
for name, compare in (("paired", statistics.difference), ("unpaired", statistics.unpaired)):
    estimate = compare(bapo, grpo).tested
    print(f"{name}: {100 * estimate.mean:+.2f} points ({100 * estimate.low:+.2f} to {100 * estimate.high:+.2f})")
