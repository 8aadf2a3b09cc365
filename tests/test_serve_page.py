"""The page in a real browser: what it shows, what it copies, keyboard, contrast, names for screen readers, no leaks."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import socket
import threading
import time

import pytest
from service_world import WORDS, StubRanker, until

from ranker.service.app import create_app
from ranker.service.settings import Settings

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (extra dev)")
uvicorn = pytest.importorskip("uvicorn")
expect = playwright.expect  # waits without eval, which the page's policy forbids
expect.set_options(timeout=120_000)

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VACANCY = "🚀 Join us <b>now</b>\nYou weld metal & more\nand paint walls and weld metal\nA teach job"


def run(ranker, **settings):
    """Start a server in a thread; return its address and a function that stops it."""
    app = create_app(Settings(**settings), lambda: ranker)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: app.state.service.status == "ready")

    def stop():
        server.should_exit = True
        thread.join(20)
        listener.close()

    return f"http://127.0.0.1:{listener.getsockname()[1]}", stop


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
        options = {"args": ["--no-sandbox"]} if hasattr(os, "geteuid") and os.geteuid() == 0 else {}
        try:
            browser = driver.chromium.launch(executable_path=path, timeout=300_000, **options)
        except playwright.Error as error:
            pytest.skip(f"no Chromium to be had: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address():
    address, stop = run(StubRanker())
    yield address
    stop()


@pytest.fixture
def page(browser, address):
    clipboard = ["clipboard-read", "clipboard-write"]
    context = browser.new_context(permissions=clipboard, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(120_000)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("request", lambda r: None if r.url.startswith((address, "data:")) else wrong.append(f"went to {r.url}"))
    page.goto(address)
    yield page
    context.close()
    assert not wrong


def analyse(page, text=VACANCY):
    page.fill("#text", text)
    page.press("#text", "Control+Enter")
    page.wait_for_selector("#reading:not([hidden])")


def labels(page):
    return page.locator(".show").all_text_contents()


def lit(page):
    return page.locator("mark.on").all_text_contents()


def test_skills_in_groups_with_evidence(page):
    analyse(page)
    assert page.locator(".group h3").all_text_contents() == ["Very likely2", "Possible1"]
    assert labels(page) == ["weld metal", "paint walls", "teach music"]
    first = page.locator(".skill").first
    assert first.locator(".meter").text_content() == "95 %"
    assert first.locator(".why").text_content() == "named weld metal in You weld metal & more and 1 more"
    link = first.locator("a.open")
    assert link.get_attribute("href") == (
        "https://esco.ec.europa.eu/en/classification/skills?uri=http%3A%2F%2Fdata.europa.eu%2Fesco%2Fskill%2F0"
    )
    assert "noopener" in link.get_attribute("rel")
    first.locator("summary").click()
    assert first.locator("tbody tr").all_text_contents() == ["bm253.0"]
    assert page.text_content("#status") == "3 skills found."
    assert page.text_content("#system") == "stub · ESCO 1.1.0 · 6 skills"


def test_the_text_stays_text_and_spans_light_up_in_the_right_place(page):
    analyse(page)
    assert page.text_content("#reading") == VACANCY
    assert page.locator("#reading b").count() == 0
    page.locator(".skill").first.hover()
    assert lit(page) == ["You weld metal & more", "and paint walls and weld metal"]
    page.locator(".skill").nth(2).hover()
    assert lit(page) == ["A teach job"]
    page.locator("h1").hover()
    assert lit(page) == []
    page.locator("mark").nth(1).hover()
    assert page.locator(".skill.on .show").all_text_contents() == ["weld metal", "paint walls"]


def test_by_keyboard_alone(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the skills"
    page.fill("#text", VACANCY)
    page.focus("#go")
    page.keyboard.press("Enter")
    page.wait_for_selector(".skill")
    assert page.evaluate("document.activeElement.id") == "skills-title"
    for _ in range(4):  # copy as JSON, copy as CSV, threshold, first skill
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "weld metal"
    assert lit(page) == ["You weld metal & more", "and paint walls and weld metal"]
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "3px"
    page.locator("mark").nth(2).click()
    assert page.evaluate("document.activeElement.textContent") == "teach music"


def test_the_threshold_hides_skills_and_their_marks(page):
    analyse(page)
    page.focus("#threshold")
    for _ in range(2):  # from 50 to 60 in steps of 5
        page.keyboard.press("ArrowRight")
    assert page.text_content("#level") == "60 %"
    assert labels(page) == ["weld metal", "paint walls"]
    assert page.text_content("#status") == "2 of 3 skills shown."
    assert page.locator("mark.off").all_text_contents() == ["A teach job"]
    page.keyboard.press("End")
    assert labels(page) == ["weld metal", "paint walls"]


def test_copy_as_json_and_csv(page):
    analyse(page, "weld metal\n=HYPERLINK(1), teach music")
    page.click("#json")
    expect(page.locator("#json")).to_have_text("Copied")
    rows = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert [row["label"] for row in rows] == ["weld metal", "teach music"]
    assert rows[0]["spans"] == [{"start": 0, "end": 10}]
    page.click("#csv")
    expect(page.locator("#csv")).to_have_text("Copied")
    table = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert [row["label"] for row in table] == ["weld metal", "teach music"]
    assert table[1]["quotes"] == "'=HYPERLINK(1), teach music"  # no formula for a spreadsheet to run
    assert float(table[0]["probability"]) == pytest.approx(0.95)
    assert page.text_content("#status") == "2 skills copied."


def test_edit_and_again(page):
    page.click("#sample")
    assert "technician" in page.input_value("#text")
    analyse(page, "teach music")
    assert labels(page) == ["teach music"]
    page.click("#edit")
    assert page.evaluate("document.activeElement.id") == "text"
    analyse(page, "nothing here")
    assert labels(page) == []
    assert page.text_content("#status") == "No skill found: no sentence speaks."


def test_nothing_to_read_is_said(page):
    page.click("#go")
    assert page.text_content("#problem") == "There is no text yet. Paste a vacancy first."
    assert page.get_attribute("#problem", "role") == "alert"


def test_everything_has_a_name_for_screen_readers(page):
    analyse(page)
    tree = page.locator("body").aria_snapshot()
    for part in ('heading "Skills in a vacancy" [level=1]', 'heading "Skills" [level=2]', 'slider "Show from"',
                 'button "Copy JSON"', 'link "weld metal in ESCO, new tab"', "status: 3 skills found.",
                 'region "The vacancy, with the sentences that ask for skills marked"'):  # fmt: skip
        assert part in tree, tree
    unnamed = page.evaluate(
        """[...document.querySelectorAll('button, a, input, textarea, [tabindex="0"]')].filter((e) => !e.hidden &&
        !(e.ariaLabel || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


CONTRAST = """() => {
  const channel = (v) => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const rgb = (css) => css.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const low = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility()) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${e.tagName}.${e.className} ${e.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_in_both_schemes(page, scheme):
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    before = page.evaluate(CONTRAST)
    page.click("#go")
    analyse(page)
    page.locator(".skill").first.hover()
    assert before + page.evaluate(CONTRAST) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"
    assert dark == (scheme == "dark")


def test_a_narrow_screen_needs_no_sideways_scrolling(page):
    page.set_viewport_size({"width": 320, "height": 700})
    analyse(page, "weld metal " + "x" * 300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_docs_page_is_plain(page, address):
    page.goto(f"{address}/docs")
    assert page.locator("h3", has_text="POST /v1/tag").count() == 1
    assert page.locator("script").count() == 0


def test_a_key_is_asked_for_and_kept_in_the_tab(browser):
    from ranker.service.settings import read_settings

    address, stop = run(StubRanker(), api_keys=read_settings({"api_keys": "open sesame"}, {}).api_keys)
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    page.fill("#text", "weld metal")
    page.click("#go")
    page.wait_for_selector("#lock:not([hidden])")
    assert page.text_content("#problem") == "This service asks for a key."
    page.fill("#key", "open sesame")
    page.keyboard.press("Enter")
    page.wait_for_selector(".skill")
    page.reload()
    assert page.input_value("#key") == "open sesame"
    page.close()
    stop()


def test_a_busy_service_and_one_that_is_gone_are_said(browser):
    ranker = StubRanker()
    address, stop = run(ranker, queue=1, max_texts=1)
    first, page = browser.new_page(), browser.new_page()
    for one in (first, page):
        one.set_default_timeout(120_000)
        one.goto(address)
        one.fill("#text", WORDS[0])
    ranker.gate.clear()
    first.click("#go")
    until(lambda: ranker.calls)
    page.click("#go")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.text_content("#problem").startswith("The service is busy. Try again in ")
    ranker.gate.set()
    first.wait_for_selector(".skill")
    stop()
    time.sleep(0.1)
    page.click("#go")
    expect(page.locator("#problem")).to_have_text("The service cannot be reached.")
    first.close()
    page.close()
