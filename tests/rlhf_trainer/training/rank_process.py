"""One rank of a several-process test: the calls of a pickled plan on a fresh worker a job, results pickled back."""

import pickle
import sys
from pathlib import Path

from rlhf_trainer.training.worker import ModelWorker


def main() -> None:
    settings_of_jobs, port, calls, result_path = pickle.loads(Path(sys.argv[1]).read_bytes())
    results = []
    for number, settings in enumerate(settings_of_jobs):
        worker = ModelWorker(settings)
        if number == 0:
            worker.setup("127.0.0.1", port)
        for role in settings.roles:
            worker.load(role, total_updates=10)
        results.append([run(worker, name, args, number) for name, args in calls])
    Path(result_path).write_bytes(pickle.dumps(results))


def run(worker: ModelWorker, name: str, args: tuple, number: int) -> object:
    if name == "weights":
        return {key: tensor.float().numpy().copy() for bucket in worker.iter_buckets(*args, 1 << 14) for key, tensor in bucket}
    if name in ("save", "export_hf"):
        return getattr(worker, name)(args[0], f"{args[1]}-{number}")
    try:
        return getattr(worker, name)(*args)
    except Exception as error:
        return repr(error)


if __name__ == "__main__":
    main()
