from dataclasses import replace

from samebits.reports.deployment import Deployment, agree, deployment_text, listed, unproved
from samebits.reports.report import Report
from samebits.verification.compare import Verdict

SAME = Verdict("torch", total=3590, sample_count=359)
FLOAT = Verdict("onnxruntime", 65, 42560, 13, 160, note="scale 0.3 is no power of two")
REFUSED = Verdict("onnxruntime-float", skipped="onnxruntime-float refuses the model:\n Op Fail.")
MISSING = Verdict("cortex-m3", skipped="cortex-m3: expected arm-none-eabi-gcc; install it")


def test_agreement_needs_a_comparison_and_no_difference_that_may_not_be():
    assert agree([SAME, FLOAT, REFUSED])
    assert not agree([SAME, replace(FLOAT, note="")])
    assert not agree([REFUSED, MISSING])


def test_what_is_not_proved_is_said_once_with_its_reason():
    board = replace(MISSING, backend="cortex-m55", skipped=MISSING.skipped.replace("m3", "m55"))
    found = unproved(
        {
            "the CNN": [SAME, MISSING, board],
            "the LSTM": [FLOAT, MISSING, board, REFUSED],
        }
    )
    assert found == [
        "not counted: onnxruntime on the LSTM, where 65 of 42,560 outputs differ",
        "not compared: cortex-m3 and cortex-m55 on the CNN and the LSTM: expected "
        "arm-none-eabi-gcc; install it",
        "not compared: onnxruntime-float on the LSTM: refuses the model: Op Fail",
    ]
    assert unproved({"the CNN": [SAME, replace(FLOAT, differing=0)]}) == []


def test_words_are_listed_as_in_a_sentence():
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


def test_the_text_of_a_deployment():
    deployment = Deployment(
        "the LSTM",
        "From a float LSTM to C",
        "",
        [("float32 model", 97.5), ("integers", 98.0)],
        [SAME, FLOAT, REFUSED],
        [("constants in flash", 59161), ("arena in RAM", 896)],
        {"pairs": 10, "tables": 3, "bytes": 3072, "unshared": 10240},
    )
    assert str(Report("", "", [deployment_text(deployment)])) == "\n".join(
        [
            "From a float LSTM to C",
            "backend                                  differing       samples",
            "integer graph in PyTorch                 0 of 3,590     0 of 359",
            "onnxruntime, tables, not optimized       65 of 42,560  13 of 160",
            "onnxruntime, float functions, optimized  not compared",
            "Why onnxruntime, tables, not optimized differs: scale 0.3 is no power of two.",
            "accuracy 97.50 % float32 model",
            "accuracy 98.00 % integers",
            "arena 896 bytes, constants 59,161",
            "10 transfer functions share 3 tables, 3,072 bytes",
        ]
    )
