"""torchtitan's Llama with HSDP over Tradewind: parameters are sharded inside a site, gradients averaged between sites.

    torchrun --nproc-per-node 4 examples/torchtitan_hsdp.py

Four ranks, two in each of two sites. On GPUs torchtitan takes the backend from PyTorch's table, and the one line of
`main` that changes it is enough. torchtitan has no device for the CPU; `on_cpu` gives it one.
"""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SITES = 2


def dense_attention(query: Any, key: Any, value: Any, *, block_mask: Any, enable_gqa: bool, **_: Any) -> Any:
    """What FlexAttention computes, which has no gradients on the CPU."""
    from torch.nn.attention.flex_attention import create_mask

    size = query.shape[0], 1, query.shape[2], key.shape[2]
    mask = create_mask(block_mask.mask_mod, *size, device=query.device)
    made = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=enable_gqa)
    return made, None


def on_cpu() -> None:
    """Let torchtitan take the CPU for its device: it has no such choice, and expects CUDA's functions of it."""
    from torch.nn.attention.flex_attention import create_block_mask
    from torchtitan.components import metrics
    from torchtitan.distributed import parallel_dims
    from torchtitan.distributed import utils as distributed
    from torchtitan.models.common import attention
    from torchtitan.tools import utils

    cpu = SimpleNamespace(
        set_device=lambda _: None,
        current_device=lambda: 0,
        synchronize=lambda: None,
        get_device_name=lambda _: "CPU",
        get_device_properties=lambda _: SimpleNamespace(total_memory=2**33),
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        memory_stats=lambda _: {},
    )
    for module in (utils, distributed, parallel_dims, metrics):
        module.device_type, module.device_module = "cpu", cpu
    utils.get_local_device = lambda: torch.device("cpu")
    attention.FlexAttention._compiled_flex_attn = staticmethod(dense_attention)
    attention._compiled_create_block_mask = create_block_mask


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of single bytes, so that nothing has to be downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: k for k, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    """Train torchtitan's smallest Llama for a few steps."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.distributed.Backend.default_device_backend_map[device] = "tradewind"
    if device == "cpu":
        on_cpu()
    from datasets import Dataset
    from torchtitan.hf_datasets import DatasetConfig, text_datasets
    from torchtitan.models.llama3 import config_registry
    from torchtitan.tools.logging import init_logger

    text = inspect.getsource(inspect)
    pages = [text[k : k + 2000] for k in range(0, len(text), 2000)]
    text_datasets.DATASETS["pages"] = DatasetConfig(
        path="", loader=lambda _: Dataset.from_dict({"text": pages}), sample_processor=lambda sample: sample["text"]
    )
    init_logger()
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        config = config_registry.llama3_debugmodel()
        config.hf_assets_path = config.dump_folder = folder
        config.dataloader.dataset = "pages"
        config.training.local_batch_size, config.training.seq_len, config.training.steps = 2, 64, 8
        config.training.disable_cuda_graphs = True
        config.parallelism.data_parallel_replicate_degree, config.parallelism.data_parallel_shard_degree = SITES, -1
        config.parallelism.spmd_backend = "default"
        config.validator.enable = config.checkpoint.enable = False
        trainer = config.build()
        trainer.train()
        trainer.close()
    for name in ("dp_replicate", "fsdp"):
        group = trainer.parallel_dims.get_mesh(name).get_group()
        print(f"{name}: {group.size()} ranks over {torch.distributed.get_backend(group)}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
