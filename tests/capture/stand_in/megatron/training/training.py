"""Megatron-LM's loop in small: iterations count from 0 inside and from 1 in the log.

STAND_IN_WITHOUT names what a Megatron-LM of other times does not have: ``curr_iteration`` or ``train_step``.
"""

import os

from megatron.training import get_args

WITHOUT = os.environ.get("STAND_IN_WITHOUT", "")


def train_step(forward_step, data, model, optimizer, schedule, **sizes):
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    losses = schedule(
        forward_step_func=forward_step,
        data_iterator=data if len(model) > 1 else data[0],
        model=model if len(model) > 1 else model[0],
        forward_only=False,
        **sizes,
    )
    optimizer.step()
    return losses


def train(first, count, *parts, **sizes):
    losses, profiler = [], get_args().profiler
    get_args().iteration = first - 1
    if profiler is not None:
        profiler.start()
    for iteration in range(first - 1, first - 1 + count):
        if profiler is not None:
            profiler.step()
        if WITHOUT != "curr_iteration":
            get_args().curr_iteration = iteration
        # By its name in the module, as Megatron-LM's own loop calls it.
        losses.append(globals()[STEP](*parts, **sizes))
    if profiler is not None:
        profiler.stop()
    return losses


STEP = "one_training_step" if WITHOUT == "train_step" else "train_step"
globals()[STEP] = globals().pop("train_step")
