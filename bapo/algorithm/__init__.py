"""The paper's algorithm: rollouts, buffers, losses, theory. Imports only ``bapo.seeds``, and never torch."""
