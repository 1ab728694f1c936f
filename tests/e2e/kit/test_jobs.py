import yaml

from e2e.kit.jobs import Row, derived, merged, rows

# As kubectl 1.36 prints it: once the head line, then a line a change; columns without a value stay empty.
WATCH = """\
NAME        PHASE   ALGORITHM   STEP   REWARD   KL    ATTEMPT   GPUS   AGE
tiny-grpo                                                              0s
tiny-grpo   Pending   grpo                                        0      0s
tiny-grpo   Provisioning   grpo                                        0      1s
tiny-grpo   Starting       grpo                              1         0      2m49s
tiny-grpo   Running        grpo        0                     1         0      3m24s
tiny-grpo   Running        grpo        1      0.292    0     1         0      5m8s
tiny-grpo   Running        grpo        12     0.435    0.198   1         0      5m38s
tiny-grpo   Succeeded      grpo        60     0.990    2.029   1         0      7m51s
"""


def test_complete_lines_of_kubectl_are_read() -> None:
    assert rows(WATCH) == [
        Row("tiny-grpo", "Running", "grpo", 1, 0.292, 0.0, 1, 0),
        Row("tiny-grpo", "Running", "grpo", 12, 0.435, 0.198, 1, 0),
        Row("tiny-grpo", "Succeeded", "grpo", 60, 0.99, 2.029, 1, 0),
    ]


def test_changes_are_put_in_map_by_map_and_leave_the_base_alone() -> None:
    base = {"training": {"maxSteps": 60, "seed": 0}, "suspend": False}
    assert merged(base, {"training": {"maxSteps": 5}, "suspend": None}) == {"training": {"maxSteps": 5, "seed": 0}}
    assert base == {"training": {"maxSteps": 60, "seed": 0}, "suspend": False}


def test_a_derived_manifest_differs_from_the_shipped_one_in_what_was_asked_for() -> None:
    name, text = derived("grpo.yaml", {"training": {"maxSteps": 5}})
    plain_name, plain = derived("grpo.yaml", {})
    changed, shipped = list(yaml.safe_load_all(text)), list(yaml.safe_load_all(plain))
    assert name == plain_name == "tiny-grpo"
    assert changed[-1]["spec"]["training"].pop("maxSteps") == 5
    shipped[-1]["spec"]["training"].pop("maxSteps")
    assert changed == shipped


def test_a_slowed_job_differs_in_its_reward_file_alone() -> None:
    slowed, shipped = (list(yaml.safe_load_all(derived("grpo.yaml", {}, seconds)[1])) for seconds in (1.5, 0.0))
    file = slowed[0]["data"].pop("reward.py")
    assert "time.sleep(1.5)" in file
    compile(file, "reward.py", "exec")
    shipped[0]["data"].pop("reward.py")
    assert slowed == shipped
