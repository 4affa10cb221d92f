"""What both engines and evaluations use. Each line imports only from those below it::

records                 what a step cost and leaves in the run's folder
prompts                 problems as prompts, and their answers sampled and graded
rows                    groups as tensors of a batch, and as files of a checkpoint
sampling/  cache        responses of a model, by keyed random numbers
models/                 Hugging Face models: build, load, save, score
  pretrained  gguf      models from a hub, a folder or a package
  chats  images         the model's own conversation; its images
shortcuts  vllm         the door to engines/fast; what vLLM needs, without importing it
"""
