"""The paper's algorithm: rollouts, buffers, losses, theory. Imports only ``bapo.seeds``; only losses loads torch."""
