"""Chromium for the tests of the pages. A module that imports this is skipped where there is no browser."""

import os
import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

MISSING = "THE PAGES ARE NOT TESTED IN A BROWSER: there is no {}; run `make browser`"
if CHROMIUM is None or sync_playwright is None:
    pytest.skip(MISSING.format("chromium" if CHROMIUM is None else "playwright"), allow_module_level=True)
expect.set_options(timeout=60_000)


@contextmanager
def launched():
    with sync_playwright() as playwright:
        words = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=words)
        yield browser
        browser.close()


@contextmanager
def person(chromium, address, **options):
    """Opens the address; nothing may go wrong in the page: no script error, no breach of its own policy."""
    context = chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
    context.set_default_timeout(60_000)
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.said = said
    page.goto(address)
    try:
        yield page
        assert said == []
    finally:
        context.close()
