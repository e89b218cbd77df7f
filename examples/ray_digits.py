"""Ray Train over Tradewind: `python examples/ray_digits.py`, on the Ray cluster of this machine or a new one."""

from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(config: dict[str, Any]) -> None:
    """The training function of every rank; it contains nothing specific to Tradewind."""
    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
    loader = prepare_data_loader(DataLoader(data, batch_size=64))
    model = prepare_model(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(config["epochs"]):
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
        total = loss.detach()
        dist.all_reduce(total, dist.ReduceOp.AVG)
        ray.train.report({"epoch": epoch, "loss": total.item()})
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks over {dist.get_backend()}: loss {total.item():.4f}")


if __name__ == "__main__":
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": 3},
        torch_config=TorchConfig(backend="tradewind"),
        scaling_config=ScalingConfig(num_workers=2),
    )
    trainer.fit()
