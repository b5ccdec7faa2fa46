"""Megatron-LM's loop in small: iterations count from 0 inside and from 1 in the log."""

from megatron.training import get_args


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
    if profiler is not None:
        profiler.start()
    for iteration in range(first - 1, first - 1 + count):
        if profiler is not None:
            profiler.step()
        get_args().curr_iteration = iteration
        losses.append(train_step(*parts, **sizes))
    if profiler is not None:
        profiler.stop()
    return losses
