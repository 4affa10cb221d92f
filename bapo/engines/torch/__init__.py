"""One process, one Hugging Face model, an own batched sampler; CPU or one GPU."""
