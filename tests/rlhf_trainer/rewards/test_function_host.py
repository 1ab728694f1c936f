import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from rlhf_trainer.rewards.function_host import FunctionHost, RewardContractError, RewardError, RewardTimeoutError

COLUMNS = {
    "queries": ["1+1=2", "1+2=3"],
    "prompts": ["1+1=", "1+2="],
    "labels": ["2", "3"],
    "completions": ["2", "3"],
    "metadata": [{"level": 1}, {"level": 2}],
    "response_ids": [[7], [8]],
    "finish_reasons": ["stop", "length"],
    "truncated": [False, True],
    "level": [1, 2],
}


@pytest.fixture
def host_of(tmp_path):
    hosts: list[FunctionHost] = []

    def make(source: str, name: str = "reward_func", timeout_seconds: float = 10.0, import_seconds: float = 60.0) -> FunctionHost:
        path = tmp_path / "reward.py"
        path.write_text(textwrap.dedent(source))
        hosts.append(FunctionHost(path, name, timeout_seconds, tmp_path, import_seconds=import_seconds))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def group_members(group: int) -> list[int]:
    """Living processes of a process group."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, found = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z" and int(found) == group:
            members.append(int(entry.name))
    return members


def is_gone(group: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while group_members(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not group_members(group)


@pytest.mark.parametrize(
    "source",
    [
        "def reward_func(queries, prompts, labels): return {'rewards': [1.0, 2.0], 'scores': [0, 1], 'extra_logs': {'n': [3, 4]}}",
        "async def reward_func(q, p, l): return {'rewards': [1.0, 2.0], 'scores': [0, 1], 'extra_logs': {'n': [3, 4]}}",
        """
        import asyncio
        class Judge:
            async def __call__(self, queries, **kwargs):
                await asyncio.sleep(0)
                return {'rewards': (1.0, 2.0), 'scores': (0, 1), 'extra_logs': {'n': (3, 4)}}
        reward_func = Judge()
        """,
        """
        import numpy as np
        class reward_func:
            def __call__(self, *args):
                assert [len(column) for column in args] == [2, 2, 2]
                return {'rewards': np.array([1.0, 2.0]), 'scores': np.array([[0], [1]]), 'extra_logs': {'n': np.array([3, 4])}}
        """,
    ],
    ids=["function", "async", "callable object", "class"],
)
def test_rc59_ways_to_write_a_reward(host_of, source):
    answer = host_of(source).call(COLUMNS)
    assert answer.scores is not None
    assert list(answer.rewards.values) == [1.0, 2.0]
    assert [value if isinstance(value, int) else value[0] for value in answer.scores.values] == [0, 1]
    assert answer.extra_logs["n"].values == [3, 4]


def test_columns_by_name_and_a_bare_list(host_of):
    source = "def reward_func(completions, level): return [float(c) * k for c, k in zip(completions, level)]"
    assert host_of(source).call(COLUMNS).rewards.values == [2.0, 6.0]


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("def other(queries, prompts, labels): return []", ["there is no function reward_func", "The file defines other"]),
        ("def reward_fn(queries, prompts, labels): return []", ["did you mean reward_fn"]),
        ("import os", ["the file defines none"]),
        ("reward_func = 3", ["reward_func is a int, not a function"]),
        ("x = 1\ndef reward_func(:\n  pass", ["reward.py, line 2", "SyntaxError"]),
        ("import json\nimport no_such_package", ["reward.py, line 2", "No module named 'no_such_package'", "import no_such_package"]),
        ("import sys\nsys.exit(0)", ["line 2", "SystemExit"]),
        ("import os\nos._exit(0)", ["its process ended during importing it"]),
        ("while True: pass", ["importing it took longer than 1 s"]),
        ("class reward_func:\n  def __init__(self, x): pass", ["TypeError", "missing 1 required positional argument"]),
    ],
)
def test_rc59_file_that_does_not_load(host_of, source, parts):
    limit = 1.0 if "while" in source else 30.0
    with pytest.raises(RewardContractError) as caught:
        host_of(source, timeout_seconds=limit, import_seconds=limit).start()
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "reward.py" in str(caught.value)


def test_rc59_signature_that_can_not_be_called(host_of):
    with pytest.raises(RewardContractError, match=r"can't be called: .*parameter 'x'.*Expected: reward_func\(queries, prompts, labels\)"):
        host_of("def reward_func(x): return [1, 2]").call(COLUMNS)


def test_rc59_answer_that_breaks_the_contract(host_of):
    host = host_of("def reward_func(labels): return eval(labels[0])")
    for returned, message in (
        ("None", "it returned None"),
        ("{'reward': [1, 2]}", "without the key 'rewards'; did you mean rewards instead of 'reward'"),
        ("{'rewards': [1, 2], 'extra_logs': [1]}", "extra_logs is a list"),
    ):
        with pytest.raises(RewardContractError, match=message):
            host.call({**COLUMNS, "labels": [returned, ""]})


def test_exception_names_line_code_and_keeps_the_traceback(host_of):
    host = host_of("""
        import json
        def helper(text):
            return json.loads(text)
        def reward_func(queries, prompts, labels):
            return [helper(q) for q in queries]
    """)
    with pytest.raises(RewardError, match=r"reward.py, line 4: JSONDecodeError: .*, at: return json.loads\(text\)") as caught:
        host.call(COLUMNS)
    assert "line 6, in" in caught.value.evidence
    assert "child.py" not in caught.value.evidence


def test_rc59_exit_and_seed_changes_stay_in_the_other_process(host_of):
    host = host_of("""
        import random, os, sys
        calls = 0
        def reward_func(queries, prompts, labels):
            global calls
            calls += 1
            random.seed(1)
            if labels[0] == 'exit':
                sys.exit(0)
            if labels[0] == 'die':
                os._exit(0)
            return [calls, calls]
    """)
    import random

    random.seed(5)
    expected = random.Random(5).random()
    with pytest.raises(RewardError, match="SystemExit"):
        host.call({**COLUMNS, "labels": ["exit", ""]})
    assert host.call(COLUMNS).rewards.values == [2, 2]
    with pytest.raises(RewardError, match="its process ended during one call with 2 rollouts"):
        host.call({**COLUMNS, "labels": ["die", ""]})
    assert host.call(COLUMNS).rewards.values == [1, 1]
    assert random.random() == expected


def test_rc59_ten_megabytes_of_print_are_bounded_in_the_log(host_of, caplog):
    host = host_of("""
        def reward_func(queries, prompts, labels):
            print('first words')
            print('x' * 10_000_000)
            return [1, 2]
    """)
    with caplog.at_level(logging.INFO, logger="rlhf_trainer.rewards"):
        assert host.call(COLUMNS).rewards.values == [1, 2]
        host.close()
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "reward.py: first words" in text
    assert "more bytes, not shown" in text
    assert len(text) < 20_000


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "import re; re.match('(a+)+$', 'a' * 64 + 'b')", "import time; time.sleep(600)"],
    ids=["loop", "regex that holds the interpreter lock", "sleep"],
)
def test_rc19_endless_reward_is_killed_and_the_next_call_works(host_of, body):
    host = host_of(
        f"""
        import subprocess
        def reward_func(queries, prompts, labels):
            if labels[0] == 'hang':
                subprocess.Popen(['sleep', '600'])
                {body}
            return [1, 2]
        """,
        timeout_seconds=1.0,
    )
    host.start()
    pid = host._process.pid
    begin = time.monotonic()
    with pytest.raises(RewardTimeoutError, match=r"reward.py: one call with 2 rollouts took longer than 1 s"):
        host.call({**COLUMNS, "labels": ["hang", ""]})
    assert time.monotonic() - begin < 5
    assert is_gone(pid)
    assert host.call(COLUMNS).rewards.values == [1, 2]


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "raise ValueError"])
def test_a_function_that_forks_and_returns_twice_answers_once(host_of, end):
    host = host_of(f"""
        import os, sys, time
        def reward_func(labels):
            if os.fork() == 0:
                time.sleep(float(labels[0]))
                {end}
                return [9, 9]
            return [float(label) for label in labels]
    """)
    for number in range(6):
        assert host.call({**COLUMNS, "labels": ["0.1" if number % 2 else "0", str(number)]}).rewards.values[1] == number
        time.sleep(0.05)


def test_a_reply_to_another_request_is_ignored(host_of):
    host = host_of("""
        import json, os, sys
        def reward_func(labels):
            for number in ({"number": 1}, {}):
                stale = json.dumps({"rewards": {"type_name": "list", "shape": [2], "values": [9, 9]}} | number).encode()
                os.write(int(sys.argv[2]), len(stale).to_bytes(8, "big") + stale)
            return [float(label) for label in labels]
    """)
    for _ in range(2):
        assert host.call({**COLUMNS, "labels": ["2", "3"]}).rewards.values == [2.0, 3.0]


def test_a_request_larger_than_the_pipe_reaches_a_slow_reader(host_of):
    host = host_of("def reward_func(queries): return [len(q) for q in queries]")
    assert host.call({**COLUMNS, "queries": ["x" * 3_000_000, ""]}).rewards.values == [3_000_000, 0]


def test_edited_file_is_read_anew(host_of):
    host = host_of("def reward_func(queries): return [1, 1]")
    assert host.call(COLUMNS).rewards.values == [1, 1]
    host.close()
    assert host_of("def reward_func(queries): return [2, 2]").call(COLUMNS).rewards.values == [2, 2]


def test_files_beside_the_reward_file_can_be_imported(host_of, tmp_path):
    (tmp_path / "judge_parts.py").write_text("VALUE = 4\n")
    (tmp_path / "pipeline.py").write_text("raise RuntimeError\n")
    host = host_of("import judge_parts\ndef reward_func(queries): return [judge_parts.VALUE] * len(queries)")
    assert host.call(COLUMNS).rewards.values == [4, 4]


def test_nothing_heavy_is_imported_in_the_users_process(host_of):
    source = """
        import sys
        def reward_func(queries):
            return [float(name in sys.modules) for name in ('torch', 'numpy')]
    """
    assert host_of(source).call(COLUMNS).rewards.values == [0.0, 0.0]


def test_a_stop_signal_to_every_process_of_a_job_leaves_the_reward_working(host_of):
    """Ray's Jobs API signals the driver and all its descendants; the driver still finishes its step."""
    host = host_of(
        """
        import multiprocessing, time
        def reward_func(queries, prompts, labels):
            helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            helper.start()
            time.sleep(1.0)
            helper.terminate()
            helper.join(5)
            return {"rewards": [float(helper.exitcode)] * len(queries)}
        """
    )
    host.start()
    members = group_members(host._process.pid)
    assert len(members) == 2
    answers = []
    caller = threading.Thread(target=lambda: answers.append(host.call(COLUMNS)))
    caller.start()
    time.sleep(0.5)
    for number in (signal.SIGTERM, signal.SIGINT):
        for pid in members:
            os.kill(pid, number)
    caller.join(20)
    assert answers[0].rewards.values == [-signal.SIGTERM] * 2, "user code can still stop what it started"


def test_closing_leaves_no_process_for_others_to_collect(tmp_path):
    """As in a container whose first process collects nobody: what is left as a zombie makes Ray wait its whole stop time."""
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': [1.0] * len(queries)}\n")
    program = """
        import ctypes, os, sys
        from pathlib import Path
        from rlhf_trainer.rewards.function_host import FunctionHost
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans come here, and nothing collects them
        host = FunctionHost(Path(sys.argv[1]) / "reward.py", "reward_func", 10.0, Path(sys.argv[1]))
        host.start()
        host.close()
        try:
            print("left:", os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            print("left: none")
    """
    root = str(Path(__file__).parents[3] / "trainer")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(Path(__file__).parents[3] / "crds")])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "left: none\n", done.stderr


def test_the_process_dies_with_its_driver_also_by_kill_9(tmp_path):
    (tmp_path / "reward.py").write_text("import time\ndef reward_func(queries):\n    time.sleep(600)\n")
    driver = textwrap.dedent(f"""
        import threading
        from pathlib import Path
        from rlhf_trainer.rewards.function_host import FunctionHost
        host = FunctionHost(Path({str(tmp_path / "reward.py")!r}), "reward_func", 600, Path({str(tmp_path)!r}))
        starter = threading.Thread(target=host.start)
        starter.start()
        starter.join()
        print(host._process.pid, flush=True)
        host.call({COLUMNS!r})
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert len(group_members(pid)) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert is_gone(pid)
