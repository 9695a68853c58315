import json

from samebits.explanations import explanations


def test_a_code(samebits):
    done = samebits("explain", "unsupported-onnx")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"unsupported-onnx\n\n{explanations()['unsupported-onnx'].text}"


def test_the_list_of_topics(samebits):
    done = samebits("explain")
    assert [line.split()[0] for line in done.out.splitlines()] == list(explanations())
    assert json.loads(samebits("explain", "--json").out) == {
        each.topic: each.title for each in explanations().values()
    }


def test_json(samebits):
    record = json.loads(samebits("explain", "file", "--json").out)
    assert record == explanations()["file"].to_dict()


def test_an_error_names_its_code(samebits, shelf):
    for command, topic in (
        (("inspect", shelf["none"]), "input-model"),
        (("inspect", shelf["broken"]), "input-onnx"),
        (("compile", shelf["float"], "--out", "x"), "input-model"),
        (("verify", shelf["quantized"], "--backends", "abacus"), "input-verification"),
        (("eval", shelf["run"], "--data", shelf["samples"]), "input-data"),
        (("inspekt",), "usage"),
        (("train", "--batch", "none"), "usage"),
        (("explain", "nothing"), "input-options"),
    ):
        done = samebits(*command)
        assert (done.code, done.explained) == (2, topic), done


def test_a_file_that_cannot_be_read(samebits, shelf, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "x.onnx")

    monkeypatch.setattr("samebits.api.inspect", refuse)
    done = samebits("inspect", shelf["float"])
    assert (done.code, done.explained) == (2, "file")


def test_memory_that_ends(samebits, shelf, monkeypatch):
    def ask(*_, **__):
        raise MemoryError

    monkeypatch.setattr("samebits.api.inspect", ask)
    assert samebits("inspect", shelf["float"]).explained == "memory"
