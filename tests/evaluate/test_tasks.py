import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate.comparison import ExpectedScore, Verdict, load_expected
from sbert_search.evaluate.tasks import (
    EvalSuite,
    EvalTask,
    check_files,
    distinct_tasks,
    find_task,
    load_suite,
    load_task,
    suite_of,
)

EVAL = Path(__file__).parents[2] / "eval"
TASKS = sorted((EVAL / "tasks").glob("*.toml"))
SUITES = sorted((EVAL / "suites").glob("*.toml"))
EXPECTED = sorted((EVAL / "expected").glob("*.toml"))


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_every_task_names_revision_licence_and_source(path: Path) -> None:
    task = load_task(path)
    assert task.name == path.stem
    assert task.licence
    assert task.source
    assert all(len(digest) == 64 for digest in task.sha256.values())
    assert any(name.startswith(str(task.path)) for name in task.sha256)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_task_of_a_suite_is_there_or_says_why_not(path: Path) -> None:
    suite = load_suite(path)
    shipped = {task.stem for task in TASKS}
    assert {name for name in suite.tasks if name not in shipped} == set(suite.absent)
    assert set(suite.runnable) <= shipped


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.stem)
def test_every_expected_score_is_of_a_shipped_task(path: Path) -> None:
    expected = load_expected(path)
    assert set(expected.scores) <= {task.stem for task in TASKS}
    assert all(0 < score.tolerance < 0.02 for score in expected.scores.values())


def test_a_name_a_file_a_folder_and_a_task_file_are_all_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EVAL.parent)
    assert find_task("retrieval", "scifact").path == Path("scifact")
    assert find_task("sts", str(EVAL / "tasks" / "stsb.toml")).name == "stsb"
    (tmp_path / "mine").mkdir()
    folder = find_task("retrieval", str(tmp_path / "mine"), split="dev")
    assert (folder.name, folder.split, folder.main_metric) == ("mine", "dev", "nDCG@10")
    pairs = tmp_path / "pairs.jsonl.gz"
    pairs.touch()
    file = find_task("sts", str(pairs))
    assert (file.name, file.path, file.main_metric) == ("pairs", pairs, "spearman")


def test_what_is_no_task_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EVAL.parent)
    with pytest.raises(EvaluationError, match=r"scifcat is not a file.*cranfield, lisa, .*scifact"):
        find_task("retrieval", "scifcat")
    with pytest.raises(EvaluationError, match="is not a file of scored pairs"):
        find_task("sts", str(tmp_path))
    with pytest.raises(EvaluationError, match=r"is not a BEIR folder"):
        find_task("retrieval", str(EVAL / "README.md"))
    with pytest.raises(EvaluationError, match="stsb is a task for eval sts, not for eval retri"):
        find_task("retrieval", "stsb")


def test_outside_a_clone_a_shipped_task_is_not_found_and_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EvaluationError) as refused:
        find_task("sts", "stsb")
    assert str(refused.value) == (
        "stsb is not a file, a folder or a shipped task. The shipped tasks are in eval/tasks of a "
        "clone of the repository; run the command in that clone, or name a file of scored pairs."
    )


def test_a_wrong_task_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text('kind = "retrieval"\npath = "x"\ndepth = 0\n')
    with pytest.raises(ConfigError, match="depth is 0; it must be at least 1"):
        load_task(path)
    path.write_text('kind = "sts"\npath = "a.tsv"\nmore = ["b.tsv"]\n')
    with pytest.raises(ConfigError, match="more is given, but tasks of the kind sts read one file"):
        load_task(path)
    path.write_text('kind = "retrieval"\npath = "x"\nspilt = "dev"\n')
    with pytest.raises(ConfigError, match="'spilt'; did you mean 'split'"):
        load_task(path)
    path.write_text('kind = "reading"\npath = "x"\n')
    with pytest.raises(ConfigError, match="kind = reading"):
        load_task(path)


def test_another_revision_of_the_data_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "set" / "pairs.tsv"
    file.parent.mkdir()
    file.write_bytes(b"one")
    digest = hashlib.sha256(b"one").hexdigest()
    task = EvalTask(name="t", kind="sts", path=Path("set"), sha256={"set/pairs.tsv": digest})
    assert check_files(task, tmp_path, [file]) == {"set/pairs.tsv": digest}
    other = replace(task, sha256={"set/pears.tsv": digest})
    with pytest.raises(EvaluationError, match=r"names 'set/pears.tsv', which is none of the files"):
        check_files(other, tmp_path, [file])
    file.write_bytes(b"two!")
    with pytest.raises(EvaluationError, match="scores on different files cannot be compared"):
        check_files(task, tmp_path, [file])
    with pytest.raises(EvaluationError, match=r"gone\.tsv does not exist; point data at"):
        check_files(task, tmp_path, [tmp_path / "gone.tsv"])
    elsewhere = replace(task, path=tmp_path / "gone.tsv")
    with pytest.raises(EvaluationError, match=r"gone\.tsv does not exist; correct its path\."):
        check_files(elsewhere, tmp_path, [tmp_path / "gone.tsv"])


def test_files_of_one_name_outside_the_data_folder_keep_their_hashes(tmp_path: Path) -> None:
    files = [tmp_path / folder / "x.tsv" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text(file.parent.name)
    task = EvalTask(name="x", kind="tag", path=files[0], more=(files[1],))
    hashes = check_files(task, tmp_path / "data", files)
    assert [*hashes] == ["x.tsv", files[1].as_posix()]
    assert len({*hashes.values()}) == 2


def test_a_verdict_says_what_was_expected() -> None:
    expected = ExpectedScore(value=0.645, tolerance=0.005)
    assert Verdict("scifact", "nDCG@10", 0.6499, expected).ok
    low = Verdict("scifact", "nDCG@10", 0.6399, expected)
    assert not low.ok
    assert str(low) == "FAIL scifact nDCG@10 0.6399, expected 0.6450 ± 0.0050"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/t.jsonl", "b/t.jsonl"], ["a-t", "b-t"]),
        (["x/a/t.jsonl", "y/a/t.jsonl", "x/a/u.jsonl"], ["x-a-t", "y-a-t", "u"]),
        (["a/t.v1.jsonl", "a/t.v2.jsonl"], ["t.v1.jsonl", "t.v2.jsonl"]),
        (["a/T.jsonl", "b/t.jsonl"], ["a-T", "b-t"]),  # one file on some file systems
        (["a/t.jsonl", "b/t.jsonl", "c/a-t.jsonl"], ["a-t", "b-t", "a-t-2"]),
        (["a/t.jsonl", "deep/down/b/t.jsonl"], ["a-t", "b-t"]),
        (["a/t.jsonl", "a/t.jsonl"], ["t"]),
        (["a/t.jsonl", "b/u.jsonl"], ["t", "u"]),
    ],
)
def test_tasks_get_names_of_their_own(tmp_path: Path, paths: list[str], names: list[str]) -> None:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    tasks = distinct_tasks([find_task("sts", str(tmp_path / path)) for path in paths])
    assert [task.name for task in tasks] == names


def test_a_suite_names_its_tasks_as_their_reports_do(tmp_path: Path) -> None:
    for path in ("a/t.jsonl", "b/t.jsonl", "c.jsonl"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    one, two, three = (str(tmp_path / path) for path in ("a/t.jsonl", "b/t.jsonl", "c.jsonl"))
    suite = EvalSuite(title="All", tasks=(one, two, one), beside=(three, two), average=True)
    tasks = [find_task("sts", name) for name in suite.runnable]
    named = suite_of(suite, tasks)
    assert (named.tasks, named.beside) == (("a-t", "b-t"), ("c",))
    tasks[1] = tasks[-1] = replace(tasks[1], main_metric="pearson")
    with pytest.raises(ConfigError, match=r"'All' has average = true, .*: spearman, pearson; rem"):
        suite_of(suite, tasks)
    for alike in (replace(suite, average=False), replace(suite, absent={"x": "held out"})):
        assert suite_of(alike, tasks).tasks == ("a-t", "b-t")


def test_the_same_data_under_another_setting_get_a_number() -> None:
    one = EvalTask(name="t", kind="sts", path=Path("t.jsonl"))
    other = EvalTask(name="t", kind="sts", path=Path("t.jsonl"), main_metric="pearson")
    assert [task.name for task in distinct_tasks([one, other])] == ["t", "t-2"]


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "a\\b", "/etc/x", ".hidden"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid file name"):
        EvalTask(name=name, kind="sts", path=Path("t.jsonl"))
