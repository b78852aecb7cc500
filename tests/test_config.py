"""Configurations: what is read is what was meant, and a mistake is named with its place and its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from ups.config.load import config_hash, packaged_configs, read_config, save_config
from ups.config.text import parse_yaml
from ups.errors import UserError
from ups.pipeline.config import load_run


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Spectral(Section):
    kind: Literal["spectral"] = "spectral"
    width: int = 48
    modes: int = 24


class Transformer(Section):
    kind: Literal["transformer"] = "transformer"
    width: int = 256
    heads: int = 8


class Task(Section):
    name: str
    parameters: dict[str, float] = {}


class Config(Section):
    name: str = "run"
    operator: Annotated[Spectral | Transformer, Field(discriminator="kind")] = Spectral()
    learning_rate: float = 1e-3
    tasks: list[Task] = []
    root: Path | None = None
    flag: bool = False


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "mine.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refusal(path: str | Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        read_config(path, overrides).checked(Config)
    return str(caught.value)


def test_numbers_in_exponent_form_are_numbers(write):
    assert parse_yaml("[1e-3, 1E5, -2e+1, .5, 5., 010, 0x10, 12]") == [1e-3, 1e5, -20.0, 0.5, 5.0, 10, 16, 12]
    assert read_config(write("learning_rate: 3e-4"), []).checked(Config).learning_rate == 3e-4


def test_words_of_older_yaml_stay_words():
    assert parse_yaml("[no, yes, on, 1:30, 2024-01-01, 1e, e3]") == [
        "no",
        "yes",
        "on",
        "1:30",
        "2024-01-01",
        "1e",
        "e3",
    ]
    assert parse_yaml("[true, False, null, ~]") == [True, False, None, None]


def test_a_later_include_wins_and_the_file_itself_wins_over_both(write):
    write("operator: {kind: spectral, width: 1, modes: 1}\nname: first\nlearning_rate: 0.5", "a.yaml")
    write("operator: {kind: spectral, width: 2}\nname: second", "b.yaml")
    config = read_config(write("include: [a.yaml, b.yaml]\nname: third"), []).checked(Config)
    assert config == Config(name="third", operator=Spectral(width=2, modes=1), learning_rate=0.5)


def test_an_include_is_found_beside_the_file_that_names_it(write, tmp_path):
    (tmp_path / "deep").mkdir()
    write("name: base", "deep/base.yaml")
    write("include: base.yaml", "deep/middle.yaml")
    assert read_config(write("include: deep/middle.yaml"), []).checked(Config).name == "base"


def test_files_that_include_each_other_are_refused(write):
    write("include: mine.yaml", "other.yaml")
    message = refusal(write("include: other.yaml"))
    assert "includes itself" in message and "mine.yaml → other.yaml → mine.yaml" in message


def test_two_files_may_include_the_same_third(write):
    write("learning_rate: 0.25", "base.yaml")
    write("include: base.yaml", "a.yaml")
    write("include: base.yaml", "b.yaml")
    assert read_config(write("include: [a.yaml, b.yaml]"), []).checked(Config).learning_rate == 0.25


def test_overrides_win_in_order_and_reach_into_lists(write):
    path = write("tasks: [{name: advection, parameters: {beta: 0.1}}, {name: burgers}]")
    overrides = ["operator.kind=spectral", "operator.width=64", "operator.width=96", "learning_rate=1e-2"]
    overrides += ["tasks.1.parameters.nu=1e-3", "root=null", "name=a=b"]
    config = read_config(path, overrides).checked(Config)
    assert config.operator == Spectral(width=96)
    assert config.learning_rate == 1e-2
    assert [task.parameters for task in config.tasks] == [{"beta": 0.1}, {"nu": 1e-3}]
    assert config.name == "a=b"


def test_an_override_changes_one_place_even_if_the_yaml_shares_it(write):
    path = write("tasks: [{name: a, parameters: &p {nu: 1}}, {name: b, parameters: *p}]")
    config = read_config(path, ["tasks.0.parameters.nu=2"]).checked(Config)
    assert [task.parameters["nu"] for task in config.tasks] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("operator.width", "not of the form key.key=value"),
        ("=3", "not of the form key.key=value"),
        ("operator..width=3", "not of the form key.key=value"),
        ("name.inner=3", "name is 'n', which has no keys inside it"),
        ("tasks.2.name=x", "tasks is a list of 1, so '2' must be a number from 0 to 0"),
        ("tasks.first.name=x", "tasks is a list of 1, so 'first' must be a number"),
        ("name=[1", "override 'name=[1': line 1: this is not valid YAML"),
        (
            "operator.widht=96",
            "operator.widht is not a known key (override operator.widht=96); did you mean operator.width?",
        ),
        (
            "operator.width=wide",
            "operator.width is 'wide' (override operator.width=wide), but it should be a valid integer",
        ),
    ],
)
def test_a_bad_override_is_refused_with_its_reason(write, override, expected):
    path = write("name: n\noperator: {kind: spectral}\ntasks: [{name: a}]")
    assert expected in refusal(path, override)


def test_an_unknown_key_names_its_file_and_the_nearest_valid_key(write):
    write("operator: {kind: transformer, haeds: 4}", "base.yaml")
    message = refusal(write("include: base.yaml\nlearning_rate: 0.1"))
    assert message.startswith("operator.haeds is not a known key") and "base.yaml" in message
    assert message.endswith("did you mean operator.heads?") and "\n" not in message


def test_a_key_that_belongs_into_a_section_is_told_where_it_goes(write):
    assert refusal(write("width: 3")).endswith("it goes under operator, as operator.width")
    run = "tasks: {advection: {make: {equation: advection, trajectories: 20, values: {beta: [0.4]}}}}\n"
    for more, place in (
        ("operator: {width: 9}", "stages, as stages.operator"),  # the schema of a run that says nothing of stages
        ("stages: {mine: {kind: operator}}\noperator: {width: 9}", "stages, as stages.operator"),
        ("fno: {width: 9}", "compare, as compare.fno"),
        ("steps: 9", "training, as training.steps"),
        ("make: {}", "tasks.NAME, as tasks.NAME.make"),
    ):
        with pytest.raises(UserError, match=f"is not a known key .*; it goes under {place}$"):
            load_run(write(run + more), [])


def test_a_network_of_one_task_is_no_stage_of_several(write):
    task = "{make: {equation: advection, trajectories: 20, values: {beta: [0.4]}}}"
    stage = "stages: {mine: {architecture: fno}}"
    assert load_run(write(f"tasks: {{advection: {task}}}\n{stage}"), [])
    with pytest.raises(UserError, match=r"stages.mine has the architecture 'fno', .* put it under compare:.* one task"):
        load_run(write(f"tasks: {{advection: {task}, other: {task}}}\n{stage}"), [])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            "stages: {operator: {like: other}}",
            r"stages.operator.like is 'other', a task of `start`, which is not given",
        ),
        (
            "compare: {spectral: {tasks: {other: {width: 8}}}}",
            r"compare.spectral.tasks is of networks of one task each",
        ),
        ("stages: {model: {kind: operator}}", r"'model' cannot be the name of a stage"),
        ("compare: {train: {architecture: fno}}", r"'train' cannot be the name of a stage or of what it is compared"),
        ("stages: {operator: {architecture: pdet_stack, width: 64, heads: 5}}", r"heads 5 does not divide width 64"),
        ("stages: {operator: {architecture: pdet_unet, width: 32, heads: 3}}", r"heads 3 does not divide width 32"),
        ("training: {batch_size: 1}", r"stages.operator has the batch_size 1 for 2 tasks"),
        ("compare: {spectral: {training: {batch_size: 1}}}", r"compare.spectral has the batch_size 1 for 2 tasks"),
    ],
)
def test_what_would_fail_or_be_ignored_once_the_data_are_there_is_refused_before(write, more, sentence):
    task = "{make: {equation: advection, trajectories: 20, values: {beta: [0.4]}}}"
    with pytest.raises(UserError, match=sentence):
        load_run(write(f"tasks: {{advection: {task}, other: {task}}}\n{more}"), [])


def test_an_unknown_key_deep_in_a_list_has_its_full_path(write):
    message = refusal(write("tasks: [{name: a}, {name: b, paramters: {}}]"))
    assert "tasks.1.paramters is not a known key" in message and "did you mean tasks.1.parameters?" in message


def test_an_unknown_key_near_nothing_lists_the_valid_ones(write):
    assert refusal(write("operator: {kind: spectral, zzz: 1}")).endswith(
        "valid keys here: operator.kind, operator.width, operator.modes"
    )


def test_a_wrong_type_names_field_value_and_expectation(write):
    path = write("tasks: [{name: a, parameters: {nu: thick}}]")
    assert refusal(path).startswith(f"tasks.0.parameters.nu is 'thick' ({path}), but it should be a valid number")


def test_a_missing_field_and_a_wrong_kind_are_named(write):
    assert "tasks.0.name is missing" in refusal(write("tasks: [{parameters: {}}]"))
    assert "'spectral', 'transformer'" in refusal(write("operator: {kind: fourier}"))


def test_several_problems_are_listed_one_a_line_and_not_without_end(write):
    message = refusal(write("nmae: x\nlearning_rate: fast\n" + "".join(f"zz{n}: 1\n" for n in range(9))))
    lines = message.splitlines()
    assert "has 11 problems" in lines[0] and len(lines) == 7 and lines[-1] == "  and 6 more"


@pytest.mark.parametrize("name", ["../../evil", "/evil", ".evil", "e/vil", "e vil", ""])
def test_names_that_would_leave_the_run_s_folder_are_refused_in_words(write, name):
    task = "{make: {equation: advection, trajectories: 3}}"
    words = "it names files: begin with a letter or digit"
    for text, start in (
        (f"name: {name!r}\ntasks: {{a: {task}}}", f"name is {name!r} ("),
        (f"name: a\ntasks: {{{name!r}: {task}}}", f"tasks has the key {name!r} ("),
        (
            f"name: a\ntasks: {{a: {{files: {{train: [x], validation: 1, test: {{{name!r}: y}}}}}}}}",
            f"tasks.a.files.test has the key {name!r} (",
        ),
    ):
        with pytest.raises(UserError) as caught:
            load_run(write(text), [])
        assert str(caught.value).startswith(start) and words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n- b", "not a mapping"),
        ("just words", "not a mapping"),
        ("name: a\nflag: true\nname: b", "line 3: the key 'name' is given twice"),
        ("name: [a", "not valid YAML"),
        ("operator:\n\twidth: 3", "line 2"),
        ("1: x", "line 1: the key 1 is not text"),
        ("[a, b]: x", "line 1: a key must be a plain word"),
        ("tasks: &t [*t]", "contains itself"),
        ("name: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("include: 3", "include is 3"),
        ("include: missing.yaml", "there is no configuration file"),
    ],
)
def test_a_broken_file_is_refused_with_its_name_and_reason(write, text, expected):
    path = write(text)
    message = refusal(path)
    assert expected in message and str(path) in message and "\n" not in message


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\x89HDF\r\n\xff\xfe")
    assert "not a text file" in refusal(tmp_path / "binary.yaml")


def test_a_name_or_path_that_is_not_there_is_refused(tmp_path):
    assert "there is no configuration named 'nosuch'" in refusal("nosuch")
    assert "check the path" in refusal(tmp_path / "nosuch.yaml")
    assert "is a folder" in refusal(tmp_path)


def test_every_packaged_config_is_named_when_one_is_not_found():
    message = refusal("quikstart")
    assert all(name in message for name in packaged_configs())


@pytest.mark.parametrize("name", packaged_configs())
def test_every_packaged_config_is_valid(name):
    assert load_run(name, []).tasks


names = st.text(min_size=1, max_size=20)
numbers = st.floats(allow_nan=False)
tricky = st.sampled_from(
    ["1e-3", "no", "~", "", "0o17", "12", ".inf", "a: b", "# x", "- x", "<<", "ν", "\x85", "\u2028", " "]
)
operators = st.one_of(
    st.builds(Spectral, width=st.integers(), modes=st.integers()), st.builds(Transformer, heads=st.integers())
)
configs = st.builds(
    Config,
    name=names | tricky,
    operator=operators,
    learning_rate=numbers,
    tasks=st.lists(
        st.builds(Task, name=names | tricky, parameters=st.dictionaries(names | tricky, numbers)), max_size=3
    ),
    root=st.none() | st.sampled_from([Path("a/b"), Path("1e3"), Path("/x y")]),
    flag=st.booleans(),
)


@given(configs)
def test_a_saved_config_reads_back_equal(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    save_config(config, path)
    again = read_config(path, []).checked(Config)
    assert again == config
    assert config_hash(again) == config_hash(config)


@given(configs, configs)
def test_the_hash_tells_configurations_apart(one, other):
    assert (config_hash(one) == config_hash(other)) == (one.model_dump_json() == other.model_dump_json())


def test_a_config_that_cannot_be_written_says_where(tmp_path):
    with pytest.raises(UserError, match=r"cannot write the configuration to .*nowhere"):
        save_config(Config(), tmp_path / "nowhere" / "config.yaml")
