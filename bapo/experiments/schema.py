"""Every key of the configuration: type, default and allowed values. What methods add stands in their own classes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from omegaconf import OmegaConf
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, SerializeAsAny

from bapo.methods.base import MethodConfig
from bapo.validate import plain

Kind = TypeVar("Kind")


#: a mapping that takes any name; its values can be read as attributes
Open = Annotated[dict[str, Kind], AfterValidator(OmegaConf.create), PlainSerializer(plain)]
AtLeastOne = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]


def _limit(count: int) -> int:
    if count != -1 and count < 1:
        raise ValueError("must be -1 (off) or at least 1")
    return count


class Node(BaseModel):
    """A part of the configuration: other names are refused, and text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True)

    def copy(self) -> Any:  # type: ignore[override]
        """Return a copy that shares nothing with this one."""
        return self.model_copy(deep=True)


class ScaleConfig(Node):
    name: str  # results/<name>/...
    title: str = ""
    note: str = ""  # the line below every table: what this scale can and cannot show
    engine: str = "torch"  # what its runs are trained with, unless engine=... says otherwise


class TaskConfig(Node):
    name: str
    title: str = ""
    # the rest: of a task from outside the suite, docs/project.md
    code: str | None = None  # FILE.py:CLASS
    answers: Literal["mathematics", "exact", "choice"] | None = None  # rows with a gold answer
    answer_in: Literal["box", "tag", "last-line", "all"] = "box"  # where a response has its answer
    benchmarks: Open[str] = {}  # test split -> its title in tables


class DataConfig(Node):
    source: Literal["generated", "hub"] = "generated"
    seed: int = 0
    split_sizes: Open[int] = {}  # split -> problems
    generator: Open[Any] = {}  # parameters of the task's generator
    prompt: str  # the task's prompt template
    #: how an answer is read. lenient (Countdown): also in a box, with LaTeX's and typographic signs, as an equation
    grading: Literal["strict", "lenient"] = "strict"
    hub: Open[Any] = {}  # repository, revision, files of each split: docs/data.md
    #: None: the model's own, in its tokenizer; plain: a message is its content, for a prompt that is to be continued
    chat_template: Literal["plain"] | None = None
    system: str | None = None  # the system's message; None: what the model's template puts there by itself
    chat_template_kwargs: Open[Any] = {}  # of that template: {enable_thinking: false}
    cleaning: Open[str] = {}  # decisions on what is wrong with a real set: docs/data.md


class ModelConfig(Node):
    name: str
    title: str = ""
    kind: Literal["scratch", "pretrained"]
    path: str | None = None  # hub name, local folder or wheel: bapo/engines/shared/models/pretrained.py (pretrained)
    revision: str | None = None  # commit on the hub; of a wheel the SHA-256 of its file
    #: the two below, where they are null, are read from the model's files: bapo/experiments/model_files.py
    from_files: bool = False
    parameters: float | None = None  # count, for cost estimates (pretrained)
    context_length: int | None = None  # positions; a prompt and its response must fit (pretrained)
    architecture: Open[Any] = {}  # Hugging Face configuration (scratch)
    code: str | None = None  # FILE.py:CLASS of a family that transformers does not have: docs/project.md
    #: of forward passes and exports; reinforcement learning trains float32 weights, whatever it is
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: str = "sdpa"


class BaseConfig(Node):
    """Supervised training of a scratch model, before any reinforcement learning."""

    #: suite: the weights that come with the suite where these very settings made them (experiments/base/), else train
    source: Literal["suite", "train"] = "suite"
    seed: int = 0
    threads: AtLeastOne = 1
    iterations: int = 0
    batch_size: AtLeastOne = 64
    learning_rate: float = 3e-3
    warmup: int = 50
    betas: Betas = [0.9, 0.98]
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    grad_clip: Positive = 1.0


class SamplingConfig(Node):
    temperature: Positive = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, AfterValidator(_limit)] = -1
    #: end a response as the model's own end tokens do, which they join: ["<|im_end|>"], or ["\n", "\n\n"]
    stop_tokens: list[str] = []
    max_prompt_tokens: AtLeastOne
    max_response_tokens: AtLeastOne


class BudgetConfig(Node):
    """When a run ends, other than after train.steps: bapo/experiments/budgets.py."""

    unit: Literal["steps", "rollouts", "updates", "flops"] = "steps"  # steps: or epochs
    like: str | None = None  # the method whose finished run of the same base and seed says how many
    most: Annotated[float, Field(ge=1)] = 4.0  # times train.steps: the end of a run that does not get there


class TrainConfig(Node):
    steps: AtLeastOne | None = None  # exactly one of steps and epochs
    epochs: AtLeastOne | None = None
    batch_size: AtLeastOne  # prompts a step (B)
    mini_batch_size: AtLeastOne  # prompts an update
    #: sequences a forward pass; None: the whole mini-batch, or with engine=torch and a pretrained model what fits into
    #: micro_batch_memory
    micro_batch_size: AtLeastOne | None = None
    micro_batch_memory: Positive = 2.0  # GB, of what a forward pass keeps for its backward pass
    gradient_checkpointing: bool = False  # compute each layer again in the backward pass: slower, less memory (torch)
    group_size: Annotated[int, Field(ge=2)]  # responses a prompt (G), which an advantage compares
    learning_rate: Positive
    warmup_updates: int = 0
    betas: Betas = [0.9, 0.999]
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    grad_clip: Positive = 1.0
    kl_coef: float = 0.001
    entropy_coef: float = 0.001
    #: smaller-mini-batches: always batch_size / mini_batch_size updates
    underfilled: Literal["fewer-updates", "smaller-mini-batches"] = "fewer-updates"
    #: of fresh responses, in the ratio: as the rollout engine gave them, or recomputed by the engine that trains, as
    #: verl does by itself; engine=torch is one for both
    old_logprobs: Literal["rollout", "recomputed"] = "rollout"
    budget: BudgetConfig


class ProbeConfig(Node):
    prompts: int = 0  # of each probed set
    samples: AtLeastOne = 8
    points: int = 5  # equally spaced, the first step and the last included


class VllmConfig(Node):
    """lm-eval's vLLM model: the engines serve every benchmark."""

    dtype: str = "bfloat16"
    tensor_parallel_size: AtLeastOne = 1  # GPUs of an engine
    data_parallel_size: AtLeastOne = 1  # engines, each on GPUs of its own
    max_num_seqs: AtLeastOne = 512  # responses under way in an engine
    gpu_memory_utilization: float = 0.9  # share of each GPU's memory
    max_model_len: int | None = None  # None: sampling.max_prompt_tokens + sampling.max_response_tokens


class ServerConfig(Node):
    """An OpenAI-compatible server that somebody has started; OPENAI_API_KEY holds its key where it wants one."""

    base_url: str | None = None  # http://127.0.0.1:8000/v1/completions
    model: str | None = None  # the name under which it serves the checkpoint; None: the checkpoint's own
    num_concurrent: int = 32  # requests in flight
    timeout: float = 600.0  # seconds for one answer
    max_attempts: int = 3  # of one request


class EvaluationConfig(Node):
    benchmarks: list[str] = []
    backend: Literal["torch", "vllm", "server"] = "torch"
    samples: AtLeastOne = 32
    temperature: Positive = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = 1234  # no meaning for backend=server: its samples cannot be repeated
    batch_size: AtLeastOne = 1024  # rows in flight (torch)
    curve_samples: AtLeastOne = 8  # a problem, of every kept checkpoint: the paper's curves are mean@8
    validation: str | None = "probe"  # the split to choose a checkpoint on; null: none was kept out of training
    #: shuffled: a control, every problem with the images of another one
    images: Literal["own", "shuffled"] = "own"
    vllm: VllmConfig
    server: ServerConfig


class CheckpointConfig(Node):
    every: AtLeastOne = 25  # steps
    keep_models: bool = True  # keep the weights of every checkpoint (not the optimiser's)
    #: of a finished run too: optimiser, buffers, rollout policy; engine=verl always leaves its last two states
    keep_state: bool = False
    minutes: Positive | None = 60.0  # also after so many; kept only until there are newer ones
    #: the job ends after so many, and the run stops in time for a checkpoint; null: as Slurm says
    job_minutes: Positive | None = None


class TrackingConfig(Node):
    kind: Literal["wandb", "none"] = "wandb"
    mode: Literal["offline", "online", "disabled"] = "offline"
    project: str = "bapo"


class PathsConfig(Node):
    results: str = "results"
    data_folder: str | None = None  # local copies of the real sets, instead of the hub


class Config(Node):
    seed: Annotated[int, Field(ge=0)] = 1
    engine: Literal["torch", "verl"]
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: AtLeastOne = 1
    scale: ScaleConfig
    task: TaskConfig
    data: DataConfig
    model: ModelConfig
    base: BaseConfig
    regimes: Open[int] = {}  # base.iterations of weaker bases: experiments/variants.yaml
    #: iterations of the base, temperature, learning_rate and steps: experiments/variants.yaml, docs/matched.md
    matched: Open[Any] = {}
    sampling: SamplingConfig
    train: TrainConfig
    probe: ProbeConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    paths: PathsConfig
    #: method -> the variants that tuning chose for it, or null: bapo/experiments/tuned.py
    tuned: dict[str, list[str]] | None = {}
    variant: Open[str] = {}  # what experiments/variants.yaml laid over it: name -> title
    verl: Open[Any] = {}  # how verl runs a job: bapo/engines/verl/verl_config.py
    method: SerializeAsAny[MethodConfig]

    def yaml(self) -> str:
        """Write the configuration as a YAML file."""
        return OmegaConf.to_yaml(OmegaConf.create(self.model_dump()))


def defaults(schema: type[Node] = Config) -> dict[str, Any]:
    """Return the defaults of a part and of all below it; "???" where a value must be given, None for the method."""
    values: dict[str, Any] = {}
    for name, entry in schema.model_fields.items():
        kind = entry.annotation
        if isinstance(kind, type) and issubclass(kind, Node):
            values[name] = defaults(kind)
        else:
            values[name] = "???" if entry.is_required() else entry.default
    return values | ({"method": None} if schema is Config else {})


def on_gpus(config: Config) -> bool:
    """Return whether a run belongs on GPUs: with device=auto, a pretrained model does, a small one does not."""
    return config.device == "cuda" or (config.device == "auto" and config.model.kind == "pretrained")
