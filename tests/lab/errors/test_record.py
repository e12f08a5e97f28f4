from sbert_search.lab.errors.report import ErrorItem, ErrorReport, cut
from sbert_search.lab.errors.slices import ErrorSlice

SLICE = ErrorSlice(
    feature="words in the query",
    low=2.0,
    high=5.0,
    items=3,
    mean=0.25,
    interval=(0.1, 0.4),
    difference=-0.5,
    difference_interval=(-0.7, -0.3),
    worse=True,
)
ITEM = ErrorItem(
    item="q<1>",
    value=0.0,
    texts=("why </script> do bees dance",),
    words=(4,),
    expected="at rank 12",
    came="honey: Bees make honey",
    shared=("bees",),
    features={"words in the query": 4.0},
)
REPORT = ErrorReport(
    task="mini",
    kind="retrieval",
    model="a-model",
    metric="nDCG@10",
    higher_is_better=True,
    mean=0.5,
    items=6,
    left_out=0,
    language="english",
    slices=(SLICE,),
    worst=(ITEM,),
)


def test_tables_have_every_figure() -> None:
    columns, rows = REPORT.slice_table()
    assert columns[4] == "nDCG@10"
    assert rows == [
        [
            *("words in the query", "2", "5", 3, 0.25, "0.1000 to 0.4000"),
            *("-0.5000", "-0.7000 to -0.3000", "worse"),
        ]
    ]
    columns, rows = REPORT.worst_table(5)
    assert len(columns) == len(rows[0])
    assert rows[0][:2] == ["q<1>", 0.0]
    assert REPORT.worst_table(0)[1] == []


def test_json_has_every_field() -> None:
    mapping = REPORT.to_mapping()
    assert mapping["task"] == "mini"
    assert isinstance(mapping["slices"], list | tuple)
    assert mapping["slices"][0]["difference_interval"] in ([-0.7, -0.3], (-0.7, -0.3))


def test_texts_are_cut_to_one_line() -> None:
    assert cut("a  b\nc") == "a b c"
    assert cut("x" * 100) == "x" * 57 + "..."
    assert len(cut("word " * 100)) <= 60
