"""Every key of the configuration: type, default and allowed values. What methods add stands in their own classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from bapo.validate import ONE, POSITIVE, Rule, at_least, one_of, setting, within

BETAS = Rule(lambda betas: len(betas) == 2 and all(0 <= b < 1 for b in betas), "two values in [0, 1)")
#: of a Hugging Face library that takes -1 for "no limit"
TOP_K = Rule(lambda k: k == -1 or k >= 1, "-1 (off) or at least 1")


@dataclass
class ScaleConfig:
    name: str = MISSING  # results/<name>/...
    title: str = ""
    note: str = ""  # the line below every table: what this scale can and cannot show
    engine: str = "torch"  # what its runs are trained with, unless engine=... says otherwise


@dataclass
class TaskConfig:
    name: str = MISSING
    title: str = ""
    # the rest: of a task from outside the suite, docs/project.md
    code: str | None = None  # FILE.py:CLASS
    answers: str | None = setting(None, one_of("mathematics", "exact", "choice"))  # rows with a gold answer
    answer_in: str = setting("box", one_of("box", "tag", "last-line", "all"))  # where a response has its answer
    benchmarks: dict[str, str] = field(default_factory=dict)  # test split -> its title in tables


@dataclass
class DataConfig:
    source: str = setting("generated", one_of("generated", "hub"))
    seed: int = 0
    split_sizes: dict[str, int] = field(default_factory=dict)  # split -> problems
    generator: dict[str, Any] = field(default_factory=dict)  # parameters of the task's generator
    prompt: str = MISSING  # the task's prompt template
    #: how an answer is read. lenient (Countdown): also in a box, with LaTeX's and typographic signs, as an equation
    grading: str = setting("strict", one_of("strict", "lenient"))
    hub: dict[str, Any] = field(default_factory=dict)  # repository, revision, files of each split: docs/data.md
    #: None: the model's own, in its tokenizer; plain: a message is its content, for a prompt that is to be continued
    chat_template: str | None = setting(None, one_of("plain"))
    system: str | None = None  # the system's message; None: what the model's template puts there by itself
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)  # of that template: {enable_thinking: false}
    cleaning: dict[str, str] = field(default_factory=dict)  # decisions on what is wrong with a real set: docs/data.md


@dataclass
class ModelConfig:
    name: str = MISSING
    title: str = ""
    kind: str = setting(MISSING, one_of("scratch", "pretrained"))
    path: str | None = None  # hub name, local folder or wheel: bapo/engines/shared/pretrained.py (pretrained)
    revision: str | None = None  # commit on the hub; of a wheel the SHA-256 of its file
    #: the two below, where they are null, are read from the model's files: bapo/experiments/model_files.py
    from_files: bool = False
    parameters: float | None = None  # count, for cost estimates (pretrained)
    context_length: int | None = None  # positions; a prompt and its response must fit (pretrained)
    architecture: dict[str, Any] = field(default_factory=dict)  # Hugging Face configuration (scratch)
    code: str | None = None  # FILE.py:CLASS of a family that transformers does not have: docs/project.md
    #: of forward passes and exports; reinforcement learning trains float32 weights, whatever it is
    dtype: str = setting("float32", one_of("float32", "bfloat16", "float16"))
    attention: str = "sdpa"


@dataclass
class BaseConfig:
    """Supervised training of a scratch model, before any reinforcement learning."""

    #: suite: the weights that come with the suite where these very settings made them (experiments/base/), else train
    source: str = setting("suite", one_of("suite", "train"))
    seed: int = 0
    threads: int = setting(1, ONE)
    iterations: int = 0
    batch_size: int = setting(64, ONE)
    learning_rate: float = 3e-3
    warmup: int = 50
    betas: list[float] = setting([0.9, 0.98], BETAS)
    weight_decay: float = setting(0.01, at_least(0))
    grad_clip: float = setting(1.0, POSITIVE)


@dataclass
class SamplingConfig:
    temperature: float = setting(1.0, POSITIVE)
    top_p: float = setting(1.0, within(0, 1, "(0, 1]"))
    top_k: int = setting(-1, TOP_K)
    #: end a response as the model's own end tokens do, which they join: ["<|im_end|>"], or ["\n", "\n\n"]
    stop_tokens: list[str] = field(default_factory=list)
    max_prompt_tokens: int = setting(MISSING, ONE)
    max_response_tokens: int = setting(MISSING, ONE)


@dataclass
class BudgetConfig:
    """When a run ends, other than after train.steps: bapo/experiments/budgets.py."""

    unit: str = setting("steps", one_of("steps", "rollouts", "updates", "flops"))  # steps: or epochs
    like: str | None = None  # the method whose finished run of the same base and seed says how many
    most: float = setting(4.0, ONE)  # times train.steps: the end of a run that does not get there


@dataclass
class TrainConfig:
    steps: int | None = setting(None, ONE)  # exactly one of steps and epochs
    epochs: int | None = setting(None, ONE)
    batch_size: int = setting(MISSING, ONE)  # prompts a step (B)
    mini_batch_size: int = setting(MISSING, ONE)  # prompts an update
    #: sequences a forward pass; None: the whole mini-batch, or with engine=torch and a pretrained model what fits into
    #: micro_batch_memory
    micro_batch_size: int | None = setting(None, ONE)
    micro_batch_memory: float = setting(2.0, POSITIVE)  # GB, of what a forward pass keeps for its backward pass
    gradient_checkpointing: bool = False  # compute each layer again in the backward pass: slower, less memory (torch)
    group_size: int = setting(
        MISSING, Rule(lambda size: size >= 2, "an advantage within a group needs at least 2 responses a prompt")
    )  # responses a prompt (G)
    learning_rate: float = setting(MISSING, POSITIVE)
    warmup_updates: int = 0
    betas: list[float] = setting([0.9, 0.999], BETAS)
    weight_decay: float = setting(0.01, at_least(0))
    grad_clip: float = setting(1.0, POSITIVE)
    kl_coef: float = 0.001
    entropy_coef: float = 0.001
    #: smaller-mini-batches: always batch_size / mini_batch_size updates
    underfilled: str = setting("fewer-updates", one_of("fewer-updates", "smaller-mini-batches"))
    #: of fresh responses, in the ratio: as the rollout engine gave them, or recomputed by the engine that trains, as
    #: verl does by itself; engine=torch is one for both
    old_logprobs: str = setting("rollout", one_of("rollout", "recomputed"))
    budget: BudgetConfig = field(default_factory=BudgetConfig)


@dataclass
class ProbeConfig:
    prompts: int = 0  # of each probed set
    samples: int = setting(8, ONE)
    points: int = 5  # equally spaced, the first step and the last included


@dataclass
class VllmConfig:
    """lm-eval's vLLM model: the engines serve every benchmark."""

    dtype: str = "bfloat16"
    tensor_parallel_size: int = setting(1, ONE)  # GPUs of an engine
    data_parallel_size: int = setting(1, ONE)  # engines, each on GPUs of its own
    max_num_seqs: int = setting(512, ONE)  # responses under way in an engine
    gpu_memory_utilization: float = 0.9  # share of each GPU's memory
    max_model_len: int | None = None  # None: sampling.max_prompt_tokens + sampling.max_response_tokens


@dataclass
class ServerConfig:
    """An OpenAI-compatible server that somebody has started; OPENAI_API_KEY holds its key where it wants one."""

    base_url: str | None = None  # http://127.0.0.1:8000/v1/completions
    model: str | None = None  # the name under which it serves the checkpoint; None: the checkpoint's own
    num_concurrent: int = 32  # requests in flight
    timeout: float = 600.0  # seconds for one answer
    max_attempts: int = 3  # of one request


@dataclass
class AskedConfig:
    """A benchmark's problems put in another way: a column beside the benchmarks, outside their average."""

    title: str = MISSING
    of: str = MISSING  # the benchmark
    prompt: str = MISSING  # as data.prompt
    problems: int = setting(MISSING, ONE)  # the first so many
    chat_template: str | None = setting(None, one_of("plain"))  # as data.chat_template
    stop_tokens: list[str] = field(default_factory=list)  # the last three as of sampling
    max_prompt_tokens: int = setting(MISSING, ONE)
    max_response_tokens: int = setting(MISSING, ONE)


@dataclass
class EvaluationConfig:
    benchmarks: list[str] = field(default_factory=list)
    backend: str = setting("torch", one_of("torch", "vllm", "server"))
    samples: int = setting(32, ONE)
    temperature: float = setting(1.0, POSITIVE)
    top_p: float = setting(1.0, within(0, 1, "(0, 1]"))
    seed: int = 1234  # no meaning for backend=server: its samples cannot be repeated
    batch_size: int = setting(1024, ONE)  # rows in flight (torch)
    curve_samples: int = setting(8, ONE)  # a problem, of every kept checkpoint: the paper's curves are mean@8
    validation: str | None = "probe"  # the split to choose a checkpoint on; null: none was kept out of training
    asked: dict[str, AskedConfig] = field(default_factory=dict)  # name of its file -> how
    #: shuffled: a control, every problem with the images of another one
    images: str = setting("own", one_of("own", "shuffled"))
    vllm: VllmConfig = field(default_factory=VllmConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


@dataclass
class CheckpointConfig:
    every: int = setting(25, ONE)  # steps
    keep_models: bool = True  # keep the weights of every checkpoint (not the optimiser's)
    #: of a finished run too: optimiser, buffers, rollout policy; engine=verl always leaves its last two states
    keep_state: bool = False
    minutes: float | None = setting(60.0, POSITIVE)  # also after so many; kept only until there are newer ones
    #: the job ends after so many, and the run stops in time for a checkpoint; null: as Slurm says
    job_minutes: float | None = setting(None, POSITIVE)


@dataclass
class TrackingConfig:
    kind: str = setting("wandb", one_of("wandb", "none"))
    mode: str = setting("offline", one_of("offline", "online", "disabled"))
    project: str = "bapo"


@dataclass
class PathsConfig:
    results: str = "results"
    data_folder: str | None = None  # local copies of the real sets, instead of the hub


@dataclass
class Config:
    seed: int = setting(1, at_least(0))
    engine: str = setting("${scale.engine}", one_of("torch", "verl"))
    device: str = setting("auto", one_of("auto", "cpu", "cuda"))
    threads: int = setting(1, ONE)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    base: BaseConfig = field(default_factory=BaseConfig)
    regimes: dict[str, int] = field(default_factory=dict)  # base.iterations of weaker bases: experiments/variant/hard
    #: iterations of the base, temperature, learning_rate and steps: experiments/variant/matched, docs/matched.md
    matched: dict[str, Any] = field(default_factory=dict)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)
    #: method -> the variants that tuning chose for it, or null: bapo/experiments/tuned.py
    tuned: dict[str, list[str]] | None = field(default_factory=dict)
    variant: dict[str, str] = field(default_factory=dict)  # what experiments/variant/ laid over it: name -> title
    verl: dict[str, Any] = field(default_factory=dict)  # how verl runs a job: bapo/engines/verl/verl_config.py
    method: Any = None
