"""A Ray job for the test ground: vLLM generates in one worker pod, two DeepSpeed ranks train across two, and the driver prints both.

Sent as text (``python -c``), so it holds all it needs but the image.
"""

import ray

RANKS = 2


@ray.remote(num_cpus=1)
def generate() -> str:
    import tempfile
    from pathlib import Path

    from rlhf_trainer.models.tiny import make

    folder = Path(tempfile.mkdtemp())
    make(folder)
    from vllm import LLM, SamplingParams

    limits = {"max_model_len": 64, "max_num_seqs": 4, "block_size": 32, "kv_cache_memory_bytes": 64 << 20}
    engine = LLM(str(folder), dtype="float32", enforce_eager=True, **limits)
    output = engine.generate(["2 + 3 = "], SamplingParams(max_tokens=12, temperature=1.0, seed=1), use_tqdm=False)
    return output[0].outputs[0].text


@ray.remote(num_cpus=1)
class Worker:
    def where(self) -> tuple[str, str]:
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def train(self, rank: int, master: str) -> list[float]:
        import os
        import tempfile
        from pathlib import Path

        os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK="0", LOCAL_SIZE="1", DS_ACCELERATOR="cpu")
        os.environ.update(MASTER_ADDR=master, MASTER_PORT="29400")
        import deepspeed
        import torch
        from transformers import AutoModelForCausalLM

        from rlhf_trainer.models.tiny import make

        folder = Path(tempfile.mkdtemp())
        make(folder)  # before the process group: transformers saves on rank 0 only once there is one
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            config={
                "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "overlap_comm": False},
                "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 2**31,
            },
        )
        batch = torch.arange(5 + rank, 37 + rank).unsqueeze(0)
        losses = []
        for _ in range(3):
            loss = engine(input_ids=batch, labels=batch).loss
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        return losses


def main() -> None:
    environment = {
        "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    ray.init(address="auto", runtime_env={"env_vars": environment})
    group = ray.util.placement_group([{"CPU": 1}] * RANKS, strategy="STRICT_SPREAD")
    ray.get(group.ready(), timeout=60)
    slots = [ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, rank) for rank in range(RANKS)]
    # In a process of its own: an engine in this process would have set torch.distributed up for itself.
    text = ray.get(generate.options(scheduling_strategy=slots[0]).remote())
    print(f"generated text: {text!r}")
    workers = [Worker.options(scheduling_strategy=slot).remote() for slot in slots]
    places = ray.get([worker.where.remote() for worker in workers])
    assert places[0][0] != places[1][0], f"both workers are on node {places[0][0]}"
    losses = ray.get([worker.train.remote(rank, places[0][1]) for rank, worker in enumerate(workers)])
    for rank, (_, address) in enumerate(places):
        print(f"loss of rank {rank} on {address}: {' '.join(f'{loss:.4f}' for loss in losses[rank])}")
        assert losses[rank][-1] < losses[rank][0]


main()
