"""A plain PyTorch loop in which a window may end anywhere; it knows of a capture only where it is made to call it.

    python windows_job.py ITERATIONS [loader] [recorded] [epochs] [script]

loader: batches come from a DataLoader with two worker processes, made anew for every epoch of five iterations.
recorded: the loop records its own optimizer step. epochs: it records each epoch of five iterations, windows or not.
script: the loop itself calls the plugin.
"""

import contextlib
import os
import sys

import torch
from torch.profiler import record_function

EPOCH = 5


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * EPOCH

    def __getitem__(self, index):
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


def batches(loader):
    if loader:
        yield from torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    else:
        yield from (torch.randn(4, 8) for _ in range(EPOCH))


def main():
    iterations, ways = int(sys.argv[1]), sys.argv[2:]
    distributed = "WORLD_SIZE" in os.environ
    if distributed:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    done = 0
    while done < iterations:
        with record_function("epoch") if "epochs" in ways else contextlib.nullcontext():
            for batch in batches("loader" in ways):
                done += 1
                if "script" in ways:
                    import traceviz_capture

                    traceviz_capture.step(done)
                loss = model(batch).square().mean()
                loss.backward()
                with record_function("my step") if "recorded" in ways else contextlib.nullcontext():
                    optimizer.step()
                optimizer.zero_grad()
    sys.stdout.write(f"trained to {float(loss.detach()):.6f}\n")
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
