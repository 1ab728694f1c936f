import inspect

import pytest

from rlhf_trainer.rewards.binding import BY_NAME, POSITIONAL, Binding, Parameter, SignatureError, bind
from rlhf_trainer.rewards.child import parameters

ALL = POSITIONAL + BY_NAME


def bound(source: str, columns: tuple[str, ...] = ()) -> Binding:
    function = eval(f"lambda {source}: None")
    assert inspect.isfunction(function)
    return bind([Parameter(*entry) for entry in parameters(function)], columns)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("queries, prompts, labels", Binding((), POSITIONAL)),
        ("labels, queries", Binding((), ("labels", "queries"))),
        ("queries", Binding((), ("queries",))),
        ("q, p, l", Binding(POSITIONAL, ())),
        ("q, prompts, labels", Binding(POSITIONAL, ())),
        ("queries, prompts, labels, /", Binding(POSITIONAL, ())),
        ("*, queries, labels", Binding((), ("queries", "labels"))),
        ("*args", Binding(POSITIONAL, ())),
        ("*args, **kwargs", Binding(POSITIONAL, BY_NAME)),
        ("first, *rest", Binding(POSITIONAL, ())),
        ("**kwargs", Binding((), ALL)),
        ("q, p, l, metadata, truncated", Binding(POSITIONAL, ("metadata", "truncated"))),
        ("queries, prompts, labels, threshold=0.5", Binding((), POSITIONAL)),
        ("q, p, l, threshold=0.5", Binding(POSITIONAL, ())),
        (
            "prompts, completions, **kwargs",
            Binding((), ("prompts", "completions", *(n for n in ALL if n not in ("prompts", "completions")))),
        ),
    ],
)
def test_rc59_signatures_that_work(source, expected):
    assert bound(source) == expected


def test_data_columns_are_given_by_name():
    assert bound("queries, level", ("level", "tags")) == Binding((), ("queries", "level"))
    assert bound("q, p, l, *, level", ("level",)) == Binding(POSITIONAL, ("level",))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x", "nothing is known by the name of its parameter 'x'. Known names: "),
        ("", "takes 0 arguments"),
        ("query", "did you mean 'queries'"),
        ("q, p", "parameter 'q'"),
        ("q, p, l, levl", "did you mean 'level'"),
        ("queries, labels, other", "parameter 'other'"),
        ("labels, *rest", "'labels' stands where queries is given"),
        ("completion, **kwargs", "did you mean 'completions'"),
    ],
)
def test_rc59_signatures_that_do_not(source, message):
    with pytest.raises(SignatureError, match=message):
        bound(source, ("level",))
