"""Every key of the configuration: type, default, allowed values, and the identities to which it belongs.

A key belongs to the identity of every job that reads its part, unless it is marked as ``Only`` part of some identities,
or ``Unidentified``: bapo/experiments/identity.py. The keys of methods are in the classes of the methods.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from omegaconf import OmegaConf
from pydantic import AfterValidator, Field, PlainSerializer, SerializeAsAny, model_validator

from bapo.methods.base import MethodConfig
from bapo.store.files import Json
from bapo.validate import Folder, Name, Only, Part, Seed, Unidentified, WhereSet, plain, wrong

#: mappings with any keys, which can be read as attributes
Options = Annotated[Json, AfterValidator(OmegaConf.create), PlainSerializer(plain)]
#: the largest count that is accepted
MOST = 10**8
AtLeastOne = Annotated[int, Field(ge=1, le=MOST)]
AtLeastZero = Annotated[int, Field(ge=0, le=MOST)]
Counts = Annotated[dict[str, AtLeastZero], AfterValidator(OmegaConf.create), PlainSerializer(plain)]
Threads = Annotated[int, Field(ge=1, le=4096)]
Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
NotNegative = Annotated[float, Field(ge=0, le=1e9)]
Betas = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
#: marks how prompts are made and responses sampled: it belongs to runs and evaluations, and not to their problems
ASKED = Only({"run", "evaluation"})
#: marks what belongs to the problems, and not to the documents from which a base model is trained
PROBLEMS = Only({"data"})
#: marks what describes a model; an evaluation identifies its checkpoint by the files
MODEL = Only({"base", "documents"})


#: names that other folders have in the results
TAKEN = {"task": ("logs", "studies", "tables", "figures", "sweeps"), "model": ("data",), "method": ("base", "data")}


def _limit(count: int) -> int:
    if count != -1 and count < 1:
        raise ValueError("must be -1 (off) or at least 1")
    return count


class Node(Part):
    """A part of the configuration."""

    def copy(self) -> Self:  # type: ignore[override]
        """Return a copy that shares nothing with this one."""
        return self.model_copy(deep=True)


class ScaleConfig(Node):
    name: Name  # results/<name>/...
    title: str = ""  # in tables and figures
    note: str = ""  # the line below every table: what this scale can and cannot show
    engine: str = "torch"  # what its runs are trained with, unless engine=... says otherwise


class TaskConfig(Node):
    name: Name  # results/SCALE/<name>/...
    title: str = ""  # in tables and figures
    code: str | None = None  # FILE.py:CLASS of a task from outside the suite: docs/project.md
    methods: Options = {}  # method -> values over its own


class DataConfig(Node):
    source: Literal["generated", "hub"] = "generated"  # drawn by the task's generator, or a real set of the hub
    seed: Seed = 0  # of the generator
    split_sizes: Annotated[Counts, PROBLEMS] = {}  # split -> problems; base: documents
    generator: Options = {}  # parameters of the task's generator
    #: true: a variant of the model has changed the problems, which lie in the model's folder; None: in the task's
    of_model: Unidentified[Literal[True] | None] = None
    prompt: str  # the task's prompt template
    hub: Annotated[Options, PROBLEMS] = {}  # repository, revision, files of each split: docs/data.md
    #: None: the model's own, in its tokenizer; plain: a message is its content, for a prompt that is to be continued
    chat_template: Annotated[Literal["plain"] | None, ASKED] = None
    #: the system's message; None: what the model's template puts there by itself
    system: Annotated[str | None, ASKED] = None
    chat_template_kwargs: Annotated[Options, ASKED] = {}  # of that template: {enable_thinking: false}


class SizesConfig(Node):
    """Of a text model: what the memory of a training step follows from."""

    vocabulary: AtLeastOne
    width: AtLeastOne
    layers: AtLeastOne
    mlp: AtLeastOne  # width within a layer's MLP


class ModelConfig(Node):
    name: Unidentified[Name]  # results/SCALE/TASK/<name>/...
    title: Unidentified[str] = ""  # in tables and figures
    kind: Annotated[Literal["scratch", "pretrained"], MODEL]  # trained by the suite, or loaded
    #: hub name, local folder or wheel: bapo/engines/shared/models/pretrained.py (pretrained)
    path: Annotated[str | None, MODEL] = None
    revision: Annotated[str | None, MODEL] = None  # commit on the hub; of a wheel the SHA-256 of its file
    #: the three below, where they are null, are read from the model's files: bapo/experiments/model_files.py
    from_files: Unidentified[bool] = False
    parameters: Unidentified[float | None] = None  # count, for cost estimates (pretrained)
    sizes: Unidentified[SizesConfig | None] = None  # for the memory of a GPU (pretrained)
    context_length: Unidentified[int | None] = None  # positions; a prompt and its response must fit (pretrained)
    architecture: Annotated[Options, MODEL] = {}  # Hugging Face configuration (scratch)
    #: FILE.py:CLASS, whose content counts, of a family that transformers does not have: docs/project.md
    code: Unidentified[str | None] = None
    #: of forward passes and exports; reinforcement learning trains float32 weights, whatever it is
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: str = "sdpa"  # its implementation in transformers

    @model_validator(mode="after")
    def _files(self) -> Self:
        if self.kind == "pretrained" and not self.path:
            raise wrong(None, "model.path", "None", "name a folder or a hub model")
        return self


class BaseConfig(Node):
    """Configures the supervised training of a scratch model, before any reinforcement learning."""

    #: suite: the weights that come with the suite where these very settings made them (experiments/base/), else train
    source: Unidentified[Literal["suite", "train"]] = "suite"
    seed: Seed = 0  # of weights and batches
    threads: Unidentified[Threads] = 1  # CPU cores
    iterations: AtLeastZero = 0  # updates
    batch_size: AtLeastOne = 64  # documents an update
    learning_rate: Positive = 3e-3  # of AdamW, after the warm-up
    warmup: AtLeastZero = 50  # updates in which the learning rate rises from 0
    betas: Betas = [0.9, 0.98]  # of AdamW
    weight_decay: NotNegative = 0.01  # of AdamW
    grad_clip: Positive = 1.0  # largest norm of the gradient


class SamplingConfig(Node):
    temperature: Annotated[Positive, ASKED] = 1.0  # divides the logits
    top_p: Annotated[float, Field(gt=0, le=1), ASKED] = 1.0  # probability of the tokens that may be sampled
    top_k: Annotated[int, AfterValidator(_limit), ASKED] = -1  # how many tokens may be sampled; -1: all
    #: end a response as the model's own end tokens do, which they join: ["<|im_end|>"], or ["\n", "\n\n"]
    stop_tokens: Annotated[list[str], ASKED] = []
    max_prompt_tokens: AtLeastOne  # a longer prompt is refused
    max_response_tokens: AtLeastOne  # a longer response is cut off

    @property
    def max_tokens(self) -> int:
        """Return the tokens of the longest prompt with the longest response."""
        return self.max_prompt_tokens + self.max_response_tokens


class BudgetConfig(Node):
    """When a run ends, other than after train.steps: bapo/experiments/budgets.py."""

    unit: Literal["steps", "rollouts", "updates", "flops"] = "steps"  # steps: or epochs
    like: str | None = None  # the method whose finished run of the same base and seed says how many
    most: Annotated[float, Field(ge=1, le=1e9)] = 4.0  # times train.steps: the end of a run short of its budget


class TrainConfig(Node):
    steps: AtLeastOne | None = None  # exactly one of steps and epochs
    epochs: AtLeastOne | None = None  # passes over the training prompts
    batch_size: AtLeastOne  # prompts a step (B)
    mini_batch_size: AtLeastOne  # prompts an update
    micro_batch_size: Unidentified[AtLeastOne | None] = None  # sequences a forward pass; None: the whole mini-batch
    group_size: Annotated[int, Field(ge=2, le=10**5)]  # responses a prompt (G), which an advantage compares
    learning_rate: Positive  # of AdamW, after the warm-up
    warmup_updates: AtLeastZero = 0  # updates in which the learning rate rises from 0
    betas: Betas = [0.9, 0.999]  # of AdamW
    weight_decay: NotNegative = 0.01  # of AdamW
    grad_clip: Positive = 1.0  # largest norm of the gradient
    #: of the methods that have none of their own (Table 3)
    kl_coef: Unidentified[NotNegative] = 0.001
    entropy_coef: Unidentified[Annotated[float, Field(ge=-1e9, le=1e9)]] = 0.001  # the same for the entropy
    #: smaller-mini-batches: always batch_size / mini_batch_size updates
    underfilled: Literal["fewer-updates", "smaller-mini-batches"] = "fewer-updates"
    #: difficulties (``Task.difficulty``) whose problems alone are drawn, each for an equal share of ``steps``, in turn
    blocks: Annotated[list[int] | None, WhereSet] = None
    budget: BudgetConfig

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise wrong(None, "train.steps", str(self.steps), "set exactly one of train.steps and train.epochs")
        if (self.budget.unit == "steps") != (self.budget.like is None):
            cure = f"name the method whose run sets the number of {self.budget.unit}, or leave both unit and like alone"
            raise wrong(None, "train.budget.like", str(self.budget.like), cure)
        if self.blocks is not None and (self.steps is None or not self.blocks):
            raise wrong(None, "train.blocks", str(self.blocks), "name difficulties, and set train.steps")
        if self.blocks is not None and self.steps is not None and self.steps < len(self.blocks):
            raise wrong(None, "train.steps", self.steps, f"must be at least the {len(self.blocks)} of train.blocks")
        if self.mini_batch_size > self.batch_size:
            cure = f"must be at most train.batch_size={self.batch_size}"
            raise wrong(None, "train.mini_batch_size", self.mini_batch_size, cure)
        return self


class ProbeConfig(Node):
    prompts: AtLeastZero = 0  # of each probed set; 0: no probe
    samples: AtLeastOne = 8  # a prompt
    points: Annotated[int, Field(ge=2, le=MOST)] = 5  # equally spaced, from before the first step to the last one


class VllmConfig(Node):
    """lm-eval's vLLM model: one engine serves every benchmark."""

    dtype: str = "bfloat16"  # of the weights
    tensor_parallel_size: Unidentified[AtLeastOne] = 1  # GPUs of the engine
    #: share of each GPU's memory
    gpu_memory_utilization: Unidentified[Annotated[float, Field(gt=0, le=1)]] = 0.9


class EvaluationConfig(Node):
    benchmarks: list[str] = []  # names in the task
    backend: Literal["torch", "vllm"] = "torch"  # what samples
    samples: Annotated[AtLeastOne, Only({"evaluation"})] = 32  # a problem
    temperature: Positive = 1.0  # divides the logits
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # probability of the tokens that may be sampled
    seed: Seed = 1234  # of the samples
    batch_size: Unidentified[AtLeastOne] = 1024  # rows in flight (torch)
    #: a problem, of every kept checkpoint: the paper's curves are mean@8
    curve_samples: Annotated[AtLeastOne, Only({"curve"})] = 8
    #: the split to choose a checkpoint on; null: none was kept out of training
    validation: Annotated[str | None, Only({"curve"})] = "probe"
    #: authors: grade as the authors' scorers do, docs/fidelity.md
    grader: Annotated[Literal["suite", "authors"], WhereSet] = "suite"
    #: grades every sample once more, and changes no accuracy: docs/evaluation.md
    second_grader: Annotated[Literal["math-verify"] | None, WhereSet] = None
    vllm: VllmConfig


#: trainer states that a run keeps: the newest, and one to fall back on should the newest turn out damaged
STATES = 2


class CheckpointConfig(Node):
    every: AtLeastOne = 25  # steps
    keep_models: bool = True  # keep the weights of every checkpoint (not the optimiser's)
    #: of a finished run too: optimiser, buffers, rollout policy; engine=verl always leaves its last two states
    keep_state: bool = False
    minutes: Positive | None = 60.0  # also after this time; kept only until there are newer ones
    #: the job ends after this time, and the run stops in time for a checkpoint; null: as Slurm says
    job_minutes: Positive | None = None


class TrackingConfig(Node):
    kind: Literal["wandb", "trackio", "none"] = "none"  # where a training is logged, too
    mode: Literal["offline", "online", "disabled"] = "offline"  # wandb's
    project: str = "bapo"  # its name there

    @model_validator(mode="after")
    def _local(self) -> Self:
        if self.kind == "trackio" and self.mode != "offline":
            raise wrong(None, "tracking.mode", self.mode, "leave it out, as trackio logs locally, or use wandb")
        return self


class PathsConfig(Node):
    results: Folder = "results"  # the folder of all results
    data_folder: Folder | None = None  # local copies of the real sets, instead of the hub


class VerlConfig(Node):
    """How verl runs a job. Nothing here but ``overrides`` can change the numbers of a training."""

    gpus_per_node: AtLeastOne | None = None  # of a machine; None: 8, on CPU cores one process (more share it by FSDP2)
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5  # share of each GPU's memory for vLLM
    gpu_memory: Positive | None = None  # GB of a GPU, which bound a micro-batch; None: as the driver says
    rollout: Literal["vllm"] | None = None  # what samples on CPU cores; None: transformers
    rollout_window: bool = False  # sample at once all steps that one delayed rollout policy serves
    overrides: Options = {}  # keys of verl's own configuration, set last; they belong to no run's identity


class Config(Node):
    seed: Seed = 1  # of a training
    engine: Literal["torch", "verl"]  # what trains
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU for pretrained models, CPU cores for small ones
    threads: Threads = 1  # CPU cores of a job
    scale: ScaleConfig
    task: TaskConfig
    data: DataConfig
    model: ModelConfig
    base: BaseConfig
    regimes: Counts = {}  # base.iterations of weaker bases: experiments/variants.yaml
    #: iterations of the base, temperature, learning_rate and steps: experiments/variants.yaml, docs/fidelity.md
    matched: Options = {}
    models: Options = {}  # of the setting: model -> values of any part over the setting's
    sampling: SamplingConfig
    train: TrainConfig
    probe: ProbeConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    paths: PathsConfig
    verl: VerlConfig
    method: SerializeAsAny[MethodConfig]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Check keys of several parts together, and give the method the coefficients of the setting.

        Raises UserError naming the key, its value and the cure.
        """
        for part, folders in TAKEN.items():
            if (name := getattr(self, part).name) in folders:
                raise wrong(None, f"{part}.name", name, "is another folder in the results; choose another name")
        self.method = self.method.of_setting(self.train)
        data, model = self.data, self.model
        for key in ("chat_template", "system", "chat_template_kwargs") if model.kind == "scratch" else ():
            if getattr(data, key) not in (None, {}):
                cure = f"model={model.name} is trained from scratch, and its template is plain; leave it out"
                raise wrong(None, f"data.{key}", str(getattr(data, key)), cure)
        if model.code and (self.engine, self.evaluation.backend) != ("torch", "torch"):
            cure = "vLLM and verl know transformers' families only; take engine=torch and evaluation.backend=torch"
            raise wrong(None, "model.code", model.code, cure)
        self.require_context()
        return self

    def require_context(self, source: str = "") -> None:
        """Raise UserError where a prompt and its response may exceed the model's context. source: of the context."""
        sampling, model, tokens = self.sampling, self.model, self.sampling.max_tokens
        if model.context_length is not None and tokens > model.context_length:
            cure = (
                f"with sampling.max_prompt_tokens={sampling.max_prompt_tokens} a sequence may take {tokens} tokens, "
                f"but model={model.name} has {model.context_length} positions{source}; lower either, or choose another "
                "model"
            )
            raise wrong(None, "sampling.max_response_tokens", sampling.max_response_tokens, cure)

    def yaml(self) -> str:
        """Return the configuration as YAML."""
        return OmegaConf.to_yaml(OmegaConf.create(self.model_dump()))


def defaults(schema: type[Node] = Config) -> Json:
    """Return the defaults of a part and of its parts: "???" where a value is required, and None for the method."""
    values: Json = {}
    for name, entry in schema.model_fields.items():
        kind = entry.annotation
        if isinstance(kind, type) and issubclass(kind, Node):
            values[name] = defaults(kind)
        else:
            values[name] = "???" if entry.is_required() else entry.default
    return values | ({"method": None} if schema is Config else {})


def on_gpus(config: Config) -> bool:
    """Return whether a run belongs on GPUs, as those of pretrained models do with device=auto."""
    return config.device == "cuda" or (config.device == "auto" and config.model.kind == "pretrained")
