import logging
import re

import pytest

from rlhf_trainer.telemetry import log


@pytest.fixture(autouse=True)
def _logger_as_before():
    logger = logging.getLogger("rlhf_trainer")
    before = logger.propagate, logger.level
    yield
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate, logger.level = before


def lines(folder) -> list[str]:
    return (folder / "driver.log").read_text().splitlines()


def test_one_event_a_line_with_its_fields(tmp_path):
    events = log.setup(tmp_path, job="default/job", attempt=2)
    events.event("step", step=3, reward=0.6123456789, note="two words", empty="")
    (line,) = lines(tmp_path)
    assert re.match(r"time=\d{4}-\d\d-\d\dT[\d:.]+Z level=info event=step job=default/job attempt=2 step=3 reward=0\.612346 ", line)
    assert line.endswith('note="two words" empty=""')


def test_a_message_with_line_breaks_stays_one_line(tmp_path):
    log.setup(tmp_path).warning("a\nb")
    assert len(lines(tmp_path)) == 1


def test_later_attempts_append(tmp_path):
    log.setup(tmp_path, attempt=1).event("first")
    log.setup(tmp_path, attempt=2).event("second")
    assert [re.search(r"event=(\w+) attempt=(\d)", line).groups() for line in lines(tmp_path)] == [("first", "1"), ("second", "2")]


def test_module_loggers_reach_the_file(tmp_path):
    log.setup(tmp_path)
    logging.getLogger("rlhf_trainer.checkpoint.store").warning("step-000002 is damaged")
    assert 'event="step-000002 is damaged"' in lines(tmp_path)[0]


def test_failure_carries_the_traceback(tmp_path):
    events = log.setup(tmp_path)
    try:
        raise ValueError("https://me:pw@host is down")
    except ValueError as error:
        events.failure("failed", error, phase="reward")
    text = (tmp_path / "driver.log").read_text()
    assert "Traceback" in text
    assert "ValueError: https://***@host is down" in text


def test_rc13_secrets_of_the_environment_never_reach_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    events = log.setup(tmp_path)
    events.event("start", command="run --key 0123456789abcdef", hub="hf_secretsecretsecret")
    text = lines(tmp_path)[0]
    assert "0123456789abcdef" not in text
    assert "secretsecret" not in text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://user:p@ss@host/x", "https://***@host/x"),
        ("s3://key:secret@bucket/a?b=c", "s3://***@bucket/a?b=c"),
        ("http://host/a?token=abc&x=1", "http://host/a?token=***&x=1"),
        ("http://host/a?X-Amz-Signature=abc", "http://host/a?X-Amz-Signature=***"),
        ("Authorization: Bearer abcdefgh12", "Authorization: Bearer ***"),
        ("hf_abcdefghijklmnopqrst", "***"),
        ("https://host/models/a@main", "https://host/models/a@main"),
        ("mail a@b, 3 tokens=5", "mail a@b, 3 tokens=5"),
    ],
)
def test_rc13_urls_and_tokens_are_masked(text, masked):
    assert log.mask(text, ()) == masked


def test_only_variables_named_like_a_secret_count():
    names = {"A_TOKEN": "x" * 8, "TOKENIZERS_PARALLELISM": "false-false", "API_KEY": "short", "KEYBOARD": "y" * 8, "DB_PASSWORD": "z" * 9}
    assert log.secret_values(names) == ("z" * 9, "x" * 8)
