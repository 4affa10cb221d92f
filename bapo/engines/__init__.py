"""The two engines: ``torch`` (one process, CPU or one GPU) and ``verl`` (Ray, many GPUs). Methods know neither."""
