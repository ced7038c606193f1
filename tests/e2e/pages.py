"""Looks at a page that a command wrote, in a headless Chromium without a network: nothing may go
wrong in it, it may ask for nothing, and on a phone nothing lies beyond its edge.
"""

import os
import pathlib
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def look(path, check):
    """Opens `path` wide in the light and on a phone in the dark and calls check(page, where)."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    wide = {"viewport": {"width": 1280, "height": 900}}
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for where, options in (("wide", wide), ("phone", phone)):
            page, faults = browser.new_page(**options), []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
            url = path.absolute().as_uri()
            page.on(
                "request",
                lambda r: faults.append(r.url) if not r.url.startswith((url, "data:")) else None,
            )
            page.goto(url)
            page.wait_for_timeout(300)
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= options["viewport"]["width"]
            check(page, where)
            folder = os.environ.get("TERRACE_SCREENSHOTS")
            if folder:
                name = f"{path.stem}-{where}.png"
                page.screenshot(path=pathlib.Path(folder) / name, full_page=True)
            found = [(each["id"], [n["target"] for n in each["nodes"]][:3])
                     for each in Axe().run(page).response["violations"]]
            assert not found, found
            assert not faults, faults
        browser.close()
