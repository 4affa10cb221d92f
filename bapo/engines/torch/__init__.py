"""One process, one Hugging Face model, its own batched sampler; CPU or one GPU."""
