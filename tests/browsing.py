"""Chromium of the system, driven by Playwright, for tests of pages; axe-core looks for barriers."""

from __future__ import annotations

import shutil

import pytest

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A Chromium with an empty profile."""
    reason = "in a browser: expected {}, found none; `make test-slow` installs it where it can"
    path = shutil.which("chromium")
    if path is None:
        pytest.skip(reason.format("chromium"))
    pytest.importorskip("axe_playwright_python", reason=reason.format("axe-playwright-python"))
    playwright = pytest.importorskip("playwright.sync_api", reason=reason.format("playwright"))
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=path, args=ARGUMENTS
        )
        yield context
        context.close()


def barriers(tab, *impacts):
    """What axe-core finds on a page: rules, and elements; of these impacts, or of any."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab).response["violations"]
    kept = [v for v in found if not impacts or v["impact"] in impacts]
    return [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in kept]
