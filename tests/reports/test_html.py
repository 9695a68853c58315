from samebits.reports.html import Figure, Paragraph, Section, Table, render_page


def test_all_text_of_a_page_is_escaped():
    nasty = "<script>alert('x')</script>\"&"
    page = render_page(
        nasty,
        nasty,
        [
            Section(
                nasty,
                [
                    Paragraph(nasty),
                    Table((nasty,), [(nasty,)], caption=nasty, code=(nasty,)),
                    Figure(b"<svg/>", nasty, nasty),
                ],
            )
        ],
    )
    assert "<script>" not in page
    assert 'alt="&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;"' in page
