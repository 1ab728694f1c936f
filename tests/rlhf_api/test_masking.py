"""What others say, without secrets and without what a terminal obeys."""

from __future__ import annotations

import json
import time

import pytest

from rlhf_api.masking import heard, mask, plain

HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("token hf_abcdefghijklmnopqrstuvwxyz0123456, and more", "token ***, and more"),
        ("key=hf_abcdefghijklmnopqrstuvwxyz_tail", "key=***_tail"),
        ("https://user:p@ss@host/x", "https://***@host/x"),
        ("https://ghp_" + "a" * 36 + "@github.com/x", "https://***@github.com/x"),
        ("https://0123456789abcdef0123@host/x", "https://***@host/x"),
        ("AKIAIOSFODNN7EXAMPLE ASIAIOSFODNN7EXAMPLE", "*** ***"),
        ("github_pat_" + "a1" * 20, "***"),
        ("sk-proj-" + "a1" * 20, "***"),
        ("xoxb-1234567890-1234567890-abcdef", "***"),
        ("glpat-" + "a" * 20, "***"),
        ("AIza" + "a" * 35, "***"),
        (f"WANDB_API_KEY={HEX}", "WANDB_API_KEY=***"),
        (f"api key: {HEX}", "api key: ***"),
        (f'{{"wandb_key": "{HEX}"}}', '{"wandb_key": "***"}'),
        ("wandb_v1_" + "aB3" * 20, "***"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("authorization: basic dXNlcjpwYXNzd29yZDEy", "authorization: basic ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def", "***"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = ***"),
        ("password='correct horse'", "password='*** horse'"),
        ("https://bucket/x?X-Amz-Signature=abc&y=1", "https://bucket/x?X-Amz-Signature=***&y=1"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nend", "***\nend"),
    ],
)
def test_rc13_secrets_that_programs_print_are_masked(text: str, masked: str) -> None:
    assert mask(text) == masked
    assert mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        f"commit {HEX}",
        f"sha256:{HEX}{HEX[:24]}",
        "Bearer authentication is not configured",
        "https://host:8265/models/a@main",
        "git+https://git@github.com/team/repo",
        "pad_token=<|endoftext|> tokens: 512",
        "risk-adjusted-return-of-the-portfolio",
        "ValueError: key 'answer' is missing in line 7",
        "pod gsm8k-workers-worker-w1 on node gpu-1, container ray: OOMKilled (exit code 137)",
    ],
)
def test_words_that_are_no_secret_stay(text: str) -> None:
    assert heard(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m\x07", "red"),
        ("\x1b]0;title\x07x\x1b]8;;http://evil\x1b\\y", "xy"),
        ("a\u202eb\u2066c\u200bd\ufeff", "abcd"),
        ("10%\r20%\r\nend\u2028x", "10%\n20%\nend\nx"),
        ("a\x00b\x9bc\tz", "abc\tz"),
        ("\ud800 é漢\U0001f600", "? é漢\U0001f600"),
    ],
)
def test_characters_that_a_terminal_obeys_or_nobody_sees_are_left_out(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_rc13_json_stays_json() -> None:
    text = json.dumps({"message": 'password=abcdefgh"quoted" https://u:p@h Bearer abc123456789012\n', "step": 3})
    assert json.loads(heard(text)) == {"message": 'password=***"quoted" https://***@h Bearer ***\n', "step": 3}


@pytest.mark.parametrize(
    "piece", ["://a:", "hf_", "eyJ-", "sk-a-", "key=", "Bearer 1", "-----BEGIN PRIVATE KEY-----", "\x1b]", "?sig=", "xoxb-"]
)
def test_no_text_makes_masking_slow(piece: str) -> None:
    text = piece * (65_536 // len(piece))
    began = time.process_time()
    heard(text)
    assert time.process_time() - began < 2.0, "a text of 64 KiB takes milliseconds where no pattern backtracks"
