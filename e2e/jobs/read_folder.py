"""What a job left on its volume, as one line of JSON. Sent as text (``python -c``) into a pod that mounts the volume.

Arguments: the job's folder, and ``load`` to also load the final model in transformers.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

FIELD = re.compile(r'(\w[\w/@.-]*)=("(?:[^"\\]|\\.)*"|\S*)')


def weights(folder: Path) -> str | None:
    """SHA-256 over names, shapes, types and bytes of all tensors, whatever the order in the files."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    total = hashlib.sha256()
    tensors: dict[str, Any] = {}
    for file in files:
        with safe_open(file, framework="numpy") as opened:
            tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping, it only has keys()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.shape} {tensor.dtype}\n".encode() + tensor.tobytes())
    return total.hexdigest()


def events(log: Path) -> list[dict[str, Any]]:
    """Events of the driver's log in the order of the file, with those fields that tell who did what when."""
    found = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        fields = {key: json.loads(value) if value.startswith('"') else value for key, value in FIELD.findall(line)}
        if line.startswith("time=") and "attempt" in fields:
            wanted = {key: fields[key] for key in ("time", "event") if key in fields}
            numbers = {key: int(fields[key]) for key in ("attempt", "step") if fields.get(key, "").isdigit()}
            found.append({**wanted, **numbers})
    return found


def loaded(folder: Path) -> dict[str, Any]:
    """The model does what a model does: one greedy continuation."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)("#12!", return_tensors="pt")
    with torch.no_grad():
        output = model.generate(**tokens, max_new_tokens=8, do_sample=False)
    return {"model": type(model).__name__, "parameters": model.num_parameters(), "tokens": output.shape[1] - tokens["input_ids"].shape[1]}


def main() -> None:
    folder = Path(sys.argv[1])
    metrics, claim = folder / "metrics.jsonl", folder / "claim.json"
    answer = {
        "weights": weights(folder / "final"),
        "metrics": [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else [],
        "events": events(folder / "driver.log"),
        "claim": json.loads(claim.read_text()) if claim.exists() else None,
        "checkpoints": sorted(path.parent.name for path in folder.glob("step-*/manifest.json")),
        "loaded": loaded(folder / "final") if "load" in sys.argv[2:] else None,
    }
    print(json.dumps(answer))


main()
