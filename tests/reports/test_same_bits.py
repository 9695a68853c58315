from samebits.reports.html import render_page
from samebits.reports.same_bits import same_bits_page, same_bits_section

BFP = {"1 thread": "aa" * 32, "2 threads": "aa" * 32, "eager torch": "aa" * 32}
FLOAT = {"1 thread": "bb" * 32, "2 threads": "cc" * 32}


def test_a_way_without_float32_has_an_empty_cell():
    text = render_page("", "", [same_bits_section(BFP, FLOAT)])
    rows = text.split("<tbody>")[1].split("</tr>")
    assert [row.count("aa" * 32) for row in rows] == [1, 1, 1, 0]
    assert "bb" * 32 in rows[0]
    assert "cc" * 32 in rows[1]
    assert rows[2].endswith('<td class="code"></td>')
    assert "The BFP run was computed in 3 ways: the hash is the same." in text
    assert "The run in float32 was computed in 2 ways: there are 2 different hashes." in text


def test_a_difference_is_said():
    text = render_page("", "", [same_bits_section({**BFP, "2 workers": "ab" * 32})])
    assert "computed in 4 ways: there are 2 different hashes." in text
    assert "float32" not in text


def test_the_page_escapes_and_names_what_did_not_run():
    page = same_bits_page(
        BFP, FLOAT, run="<resnet8>", machine={"cores": 2}, skipped={"AVX-512": "none & nothing"}
    )
    assert "&lt;resnet8&gt;" in page
    assert "none &amp; nothing" in page
    assert "<resnet8>" not in page
    assert "cores" in page
