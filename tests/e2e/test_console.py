"""The console on the admin port, in a headless Chromium: it shows the server, loads a model, chats,
has no error in its log and no fault that axe-core finds, in light and dark, wide and on a phone.
Screenshots go to TERRACE_SCREENSHOTS if that is set, for a person to look at.
"""

import os
import pathlib
import shutil

import pytest
import server_process
from conftest import TINY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("Chromium is not installed", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

MODEL = "tiny-qwen2"


@pytest.fixture(scope="module")
def server(module_servers):
    return module_servers.start(
        TINY,
        memory={"device_budget": "64MiB"},
        server={"admin_port": server_process.free_port()},
    )


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, server):
    """Opens the console; afterwards nothing may have gone wrong in it."""
    faults, contexts = [], []

    def open_page(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console", lambda line: faults.append(line.text) if line.type == "error" else None
        )
        page.on("requestfailed", lambda request: faults.append(request.url))
        url = f"http://127.0.0.1:{server.config['server']['admin_port']}/"
        # What is asked of other machines would not come without the internet.
        page.on(
            "request", lambda r: None if r.url.startswith((url, "data:")) else faults.append(r.url)
        )
        page.goto(url)
        expect(page.locator("#model-rows tr")).to_have_count(len(TINY), timeout=20_000)
        return page

    yield open_page
    assert not faults, faults
    for context in contexts:
        context.close()


def screenshot(page, name):
    folder = os.environ.get("TERRACE_SCREENSHOTS")
    if folder:
        page.evaluate("scrollTo(0, 0)")  # the head of the page stays at its top
        page.screenshot(path=pathlib.Path(folder) / f"{name}.png", full_page=True)


def check_accessibility(page):
    results = Axe().run(page)
    found = [
        (fault["id"], [node["target"] for node in fault["nodes"]][:3])
        for fault in results.response["violations"]
    ]
    assert not found, found


def test_models_load_and_chat(open_page, server):
    page = open_page(viewport={"width": 1280, "height": 900})
    row = page.locator(f'tr[data-model="{MODEL}"]')
    expect(row).to_contain_text("ready")
    page.get_by_role("button", name=f"evict {MODEL}", exact=True).click()
    expect(page.locator("#action")).to_have_text(f"evict {MODEL}: done")
    page.get_by_role("button", name=f"load {MODEL}", exact=True).click()
    expect(page.locator("#action")).to_have_text(f"load {MODEL}: done")
    bar = page.get_by_role("progressbar", name=f"{MODEL} in memory")
    expect(bar).to_have_js_property("position", 1, timeout=20_000)  # all of it has come
    page.get_by_role("button", name=f"unload {MODEL}", exact=True).click()
    expect(row).to_contain_text("unloaded")
    page.get_by_role("button", name=f"load {MODEL}", exact=True).click()
    expect(row.locator("span")).to_have_text("ready")

    page.get_by_label("Model", exact=True).select_option(MODEL)
    page.get_by_label("Message").fill("Where does the river go?")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-note")).to_contain_text("tokens", timeout=60_000)
    assert page.locator(".message.assistant").inner_text().strip()
    expect(page.locator("#terraces .step span").first).to_be_visible()
    expect(page.locator("#log-lines")).to_contain_text("model opened")
    expect(page.locator("#link-rows tr").first).to_be_visible()
    assert page.locator("canvas").count() == 4
    page.wait_for_timeout(2500)  # so that the charts have a few points
    screenshot(page, "light")
    check_accessibility(page)


def test_colours_are_the_same_on_every_page(open_page):
    read = "[...document.querySelectorAll('#legend li')].map(l => [l.textContent, l.querySelector"
    read += "('i')?.style.backgroundColor]).filter(each => each[1])"

    def legend(page, model):
        expect(page.locator("#legend")).to_contain_text(model, timeout=20_000)
        return dict(page.evaluate(read))

    def press(page, verb, model):
        page.get_by_role("button", name=f"{verb} {model}", exact=True).click()
        expect(page.locator("#action")).to_have_text(f"{verb} {model}: done")

    first = open_page()
    for model in TINY:
        press(first, "evict", model)
    press(first, "load", "tiny-qwen3")
    before = legend(first, "tiny-qwen3")
    press(first, "load", "tiny-gemma3")
    expect(first.locator("#legend")).to_contain_text("tiny-gemma3", timeout=20_000)
    press(first, "evict", "tiny-qwen3")
    press(first, "load", "tiny-qwen3")
    # A page that sees the other model first.
    after = legend(open_page(), "tiny-gemma3")
    assert before["tiny-qwen3"] == after["tiny-qwen3"]
    assert len(set(after.values())) == len(after), after
    names = [f"model-{number}" for number in range(18)]
    colours = first.evaluate("names => names.map(palette(names))", names)
    assert len(set(colours)) == len(names)


def test_dark(open_page):
    page = open_page(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in back[4:-1].split(",")) < 150, back
    page.wait_for_timeout(2500)
    screenshot(page, "dark")
    check_accessibility(page)


def test_phone(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, device_scale_factor=2)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390, f"the page is {wide} px wide"
    # Nothing that one would press lies beyond the edge, also not in a part that scrolls.
    for name in ("load", "evict", "unload"):
        box = page.get_by_role("button", name=f"{name} {MODEL}", exact=True).bounding_box()
        assert box and 0 <= box["x"] and box["x"] + box["width"] <= 390, (name, box)
    page.wait_for_timeout(1500)
    screenshot(page, "phone")
    check_accessibility(page)


def test_phone_in_the_dark(open_page):
    page = open_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    screenshot(page, "phone-dark")
    check_accessibility(page)
