"""Hand-written forwards of small Qwen models, faster but dispensable. Imports ``engines.shared`` only."""
