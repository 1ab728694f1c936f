import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rlhf_api.spec import RLHFJob
from rlhf_trainer.data.prepare import PreparedData, prepare
from rlhf_trainer.errors import ConfigError, DataError

WORDS = ["<unk>", "<s>", "</s>", "[gMASK]", "one", "two", "three", "four", "five", "ask", "say"]
BOS, GMASK = 1, 3
PLAIN_TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}say{% endif %}"


def word_tokenizer(front: tuple[str, ...] = (), back: tuple[str, ...] = (), bos: str | None = "<s>", template: str | None = None) -> Any:
    """Words split at spaces; ``front`` and ``back`` are what the tokenizer itself adds."""
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    added = [*front, *back]
    if added:
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join([*front, "$A", *back]), special_tokens=[(token, WORDS.index(token)) for token in set(added)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token=bos, eos_token="</s>", additional_special_tokens=["[gMASK]"]
    )
    tokenizer.chat_template = template
    return tokenizer


def job_of(**data: Any) -> RLHFJob:
    return RLHFJob.model_validate(
        {
            "apiVersion": "rlhf.dev/v1alpha1",
            "kind": "RLHFJob",
            "metadata": {"name": "prepare-test"},
            "spec": {
                "rl": {"algorithm": "grpo"},
                "models": {"actor": {"path": "unused"}},
                "data": {"datasets": [{"path": "rows.jsonl"}], **data},
            },
        }
    )


def run(folder: Path, rows: list[Any], tokenizer: Any, **data: Any) -> PreparedData:
    lines = [json.dumps(row if isinstance(row, dict) else {"prompt": row}) for row in rows]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return prepare(job_of(**data), folder, tokenizer)


def ids_of(prepared: PreparedData) -> list[list[int]]:
    return [list(prompt.ids) for prompt in prepared.prompts["rows"]]


def words(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


@pytest.mark.parametrize("template_bos", ["", "{{ bos_token }} ", "<s> <s> "])
@pytest.mark.parametrize("front", [(), ("<s>",)])
def test_rc25_exactly_one_bos_from_template_and_tokenizer(tmp_path, template_bos, front):
    tokenizer = word_tokenizer(front=front, template=template_bos + PLAIN_TEMPLATE)
    prepared = run(tmp_path, ["one two"], tokenizer, applyChatTemplate=True)
    body = words("<unk> one two say")
    expected = [BOS, *body] if template_bos or front else body
    assert ids_of(prepared) == [expected]


def test_rc25_plain_text_gets_the_tokenizers_bos_once_and_no_eos(tmp_path):
    tokenizer = word_tokenizer(front=("<s>",), back=("</s>",))
    prepared = run(tmp_path, ["one two", "<s> three"], tokenizer)
    assert ids_of(prepared) == [[BOS, *words("one two")], [BOS, *words("three")]]


def test_rc25_bos_inside_the_text_stays(tmp_path):
    prepared = run(tmp_path, ["<s> one <s> two"], word_tokenizer())
    assert ids_of(prepared) == [[BOS, *words("one"), BOS, *words("two")]]


def test_rc55_tokenizer_without_bos_puts_no_none_in_ids(tmp_path):
    for front, expected in ((), words("one")), (("[gMASK]",), [GMASK, *words("one")]):
        prepared = run(tmp_path, ["one", *(["[gMASK] one"] if front else [])], word_tokenizer(front=front, bos=None))
        assert all(ids == expected for ids in ids_of(prepared))


def test_several_front_tokens_are_kept_whole(tmp_path):
    prepared = run(tmp_path, ["one", "<s> one", "[gMASK] <s> one"], word_tokenizer(front=("[gMASK]", "<s>")))
    assert ids_of(prepared) == [[GMASK, BOS, *words("one")]] * 3


def test_keys_template_and_metadata(tmp_path):
    rows = [{"q": "one", "a": "two", "level": 3, "tags": ["x"]}]
    prepared = run(tmp_path, rows, word_tokenizer(), promptKey="q", labelKey="a", promptTemplate="ask {} say {braces}")
    (prompt,) = prepared.prompts["rows"]
    assert (prompt.text, prompt.label, prompt.metadata, prompt.row) == ("ask one say {braces}", "two", {"level": 3, "tags": ["x"]}, 0)


def test_messages_take_the_template_at_the_last_user_turn_and_continue_a_prefill(tmp_path):
    messages = [{"role": "ask", "content": "one"}, {"role": "user", "content": "two"}]
    tokenizer = word_tokenizer(template=PLAIN_TEMPLATE)
    prepared = run(tmp_path, [{"prompt": messages}], tokenizer, applyChatTemplate=True, promptTemplate="three {}")
    assert prepared.prompts["rows"][0].text == "ask one user three two say"
    prefilled = [*messages, {"role": "assistant", "content": "four"}]
    prepared = run(tmp_path, [{"prompt": prefilled}], tokenizer, applyChatTemplate=True)
    assert prepared.prompts["rows"][0].text.endswith("assistant four")


def test_given_chat_template_replaces_the_tokenizers(tmp_path):
    tokenizer = word_tokenizer(template=PLAIN_TEMPLATE)
    prepared = run(tmp_path, ["one"], tokenizer, applyChatTemplate=True, chatTemplate="ask {{ messages[0]['content'] }}")
    assert prepared.prompts["rows"][0].text == "ask one"


def test_overlong_prompts_are_filtered_and_counted(tmp_path):
    rows = ["one two three four", "one two", "one two three"]
    prepared = run(tmp_path, rows, word_tokenizer(), maxLength=4, minResponseTokens=2)
    assert [prompt.row for prompt in prepared.prompts["rows"]] == [1]
    assert prepared.counts == {"rows": 3, "prompts": 1, "overlong_filtered": 2, "overlong_truncated": 0, "empty_filtered": 0}


def test_overlong_prompts_are_cut_left_behind_the_bos(tmp_path):
    tokenizer = word_tokenizer(front=("<s>",))
    prepared = run(tmp_path, ["one two three four"], tokenizer, maxLength=4, overlongPrompts="truncate")
    assert ids_of(prepared) == [[BOS, *words("three four")]]
    assert prepared.prompts["rows"][0].text == "<s> three four"
    assert prepared.counts["overlong_truncated"] == 1


def test_exact_fit_is_kept(tmp_path):
    prepared = run(tmp_path, ["one two three"], word_tokenizer(), maxLength=4)
    assert prepared.counts["prompts"] == 1


def test_max_samples_reads_the_first_rows_and_empty_prompts_are_counted(tmp_path):
    prepared = run(tmp_path, ["one", "", "two", "three"], word_tokenizer(), maxSamples=3)
    assert [prompt.row for prompt in prepared.prompts["rows"]] == [0, 2]
    assert prepared.counts["empty_filtered"] == 1


def test_nothing_left_says_why_and_what_would_work(tmp_path):
    with pytest.raises(DataError) as caught:
        run(tmp_path, ["one two three", "one two three four"], word_tokenizer(), maxLength=3)
    text = str(caught.value)
    assert "spec.data.maxLength: 3" in text
    assert "2 of 2 rows are longer" in text
    assert "Nearest: 4 or more" in text


@pytest.mark.parametrize(
    ("rows", "data", "field", "parts"),
    [
        ([{"prompts": "one"}], {}, "spec.data.promptKey", ["has prompts", "Nearest: prompts"]),
        ([{"prompt": "one", "Answer": 1}], {"labelKey": "answer"}, "spec.data.labelKey", ["prompt, Answer", "Nearest: Answer"]),
        ([{"prompt": "one"}, {"text": "two"}], {}, "spec.data.promptKey", ["line 2", "the row has text"]),
        ([{"prompt": "one"}, {"prompt": None}], {}, "spec.data.promptKey", ["line 2", "null"]),
        ([{"prompt": 7}], {}, "spec.data.promptKey", ["line 1", "neither text nor a list"]),
        ([{"prompt": [{"role": "user"}]}], {"applyChatTemplate": True}, "spec.data.promptKey", ["no chat message"]),
        ([{"prompt": [{"role": "user", "content": "x"}]}], {}, "spec.data.promptKey", ["need applyChatTemplate"]),
        (
            ["one"],
            {"applyChatTemplate": True, "chatTemplate": "{{ raise_exception('no') }}"},
            "spec.data.promptKey",
            ["line 1", "refused by"],
        ),
    ],
)
def test_faults_name_column_and_line(tmp_path, rows, data, field, parts):
    with pytest.raises(DataError) as caught:
        run(tmp_path, rows, word_tokenizer(template=PLAIN_TEMPLATE), **data)
    assert caught.value.violation.field == field
    assert all(part in str(caught.value) for part in parts)


def test_bad_templates_are_configuration_errors(tmp_path):
    with pytest.raises(ConfigError, match="exactly once"):
        run(tmp_path, ["one"], word_tokenizer(), promptTemplate="no place")
    with pytest.raises(ConfigError, match="has no chat template"):
        run(tmp_path, ["one"], word_tokenizer(), applyChatTemplate=True)


def test_two_sets_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"datasets\[1\].name"):
        run(tmp_path, ["one"], word_tokenizer(), datasets=[{"path": "rows.jsonl"}, {"path": "./rows.jsonl"}])
