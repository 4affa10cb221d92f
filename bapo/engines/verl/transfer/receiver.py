"""The end of a transfer in a worker of vLLM: its error goes back as the answer to what it was sent."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

import zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

#: milliseconds that an error may take to be handed to the system
LINGER = 5000


class Receiver(BucketedWeightReceiver):
    """Answers with the error where verl's would close its socket without a word."""

    def _cleanup(self) -> None:
        """Tell the sender of the exception that is under way, if any; then close what verl closes."""
        error = sys.exc_info()[1]
        if error is None:
            return super()._cleanup()
        traceback.print_exc()
        if self.socket is not None:
            with suppress(zmq.ZMQError):  # nothing was received that could be answered, or the sender is gone
                self.socket.send(f"{type(error).__name__}: {error}".encode(), zmq.NOBLOCK)
            self.socket.close(linger=LINGER)
            self.socket = None
        # the frames of the error hold tensors in the shared memory, which then cannot be closed; a second error would
        # take the place of the first
        with suppress(Exception):
            super()._cleanup()
