"""Hugging Face Accelerate over Tradewind: `torchrun --nproc-per-node 2 examples/accelerate_digits.py`."""

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tradewind.torch.accelerate  # noqa: F401 - lets Accelerate keep the backend on the CPU

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="tradewind")])
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=64))
    for epoch in range(2):
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"epoch {epoch}: {torch.distributed.get_backend()}, loss {mean.item():.4f}")
    accelerator.end_training()
