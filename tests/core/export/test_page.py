"""The HTML form: what stands in it, what can never act in it, and how it works in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.core.export.browser import CHROMIUM, Browser

from watchkeeper.records.messages import Cost, PriceStatus, Usage
from watchkeeper.store import database
from watchkeeper.transcripts import export as pages
from watchkeeper.transcripts.export import data_block

Export = Callable[..., Any]
Make = Callable[..., Any]

HOSTILE = (
    "</script><script>document.title='taken'</script>",
    "<!--<script>",
    "<img src=x onerror=document.title='taken'>",
    "]]></style><svg onload=alert(1)>",
    '" onmouseover="alert(1)',
    "\u2028document.title='taken'\u2029",
    "<base href='http://evil.invalid/'><link rel=stylesheet href=http://evil.invalid/x.css>",
    "javascript:alert(1)",
    "\x1b[31mred\x07 \u202etxt.exe \x00 &amp; &#60;",
)


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        if tag == "script":
            self._in_script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def hostile_session(made: Make) -> Any:
    one = made()
    trap = " ".join(HOSTILE)
    planner = one.agent("planner")
    one.tx.execute(
        "UPDATE agents SET name = ?, model = ?, role = ?, current_goal = ?", (trap, trap, trap, trap)
    )
    one.tx.execute(
        "UPDATE sessions SET goal = ?, workspace = ?, model = ?, title = ?, tags = ?",
        (trap, trap, trap, trap, json.dumps([trap])),
    )
    for text in HOSTILE:
        one.say(planner, text, [{"type": "text", "text": text}, {"type": "thinking", "thinking": text},
                                {"type": "tool_use", "id": text, "name": text, "input": {text: text}},
                                {"type": text, "source": {"media_type": text}}])  # fmt: skip
        one.say(
            planner,
            [
                {
                    "type": "tool_result",
                    "tool_use_id": text,
                    "content": [{"type": "text", "text": text}],
                    "is_error": True,
                }
            ],
        )
        one.task(text, instructions=text, result=text, error=text, status_reason=text)
        one.fact(text, sources=[text, f"message://{planner}/1", "message://x/<b>"])
        one.artifact(text, text, text)
    one.compact(planner, 4, trap, (1, 3))
    one.tx.execute(
        "UPDATE compactions SET reason = ?, instructions = ?, model = ?, trigger = ?",
        (trap, trap, trap, trap),
    )
    one.done()
    return one


def test_what_a_session_holds_never_becomes_an_element_or_an_attribute(made: Make, export: Export) -> None:
    one = hostile_session(made)
    text = export(one.connection, one.session_id, "html").text
    elements = Elements(text)
    plain = made("plain001")
    plain.say(plain.agent(), "Hello")
    plain.task("a", result="b", error="c")
    plain.fact("a fact", sources=["message://x/1"])
    plain.artifact("a", "b")
    plain.compact(plain.agent("other"), 1, "s", (1,))
    plain.done()
    allowed = {tag for tag, _ in Elements(export(plain.connection, plain.session_id, "html").text).found}
    assert {tag for tag, _ in elements.found} <= allowed | {"ul", "li", "p"}
    for tag, attributes in elements.found:
        assert not any(name.startswith("on") or name in ("src", "style", "srcset") for name in attributes), (
            tag,
            attributes,
        )
        assert (attributes.get("href") or "#").startswith("#")
    executable = [script for (_, about), script in zip((e for e in elements.found if e[0] == "script"), elements.scripts, strict=True)
                  if about.get("type") != "application/json"]  # fmt: skip
    assert len(executable) == 1
    for bad in ("\x1b", "\u202e", "\x00", "\u2028"):
        assert bad not in text


def test_data_in_a_script_element_can_end_neither_it_nor_a_line() -> None:
    text = data_block(HOSTILE)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == list(HOSTILE)


def test_the_policy_lets_only_the_pages_own_program_and_style_act(made: Make, export: Export) -> None:
    one = hostile_session(made)
    text = export(one.connection, one.session_id, "html").text
    head = text[: text.index("</head>")]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', head)
    assert policy is not None
    assert head.index("Content-Security-Policy") < head.index("<title>") < head.index("<style>")

    def digest(element: str, begin: str) -> str:
        inner = text[text.index(begin) + len(begin) :].partition(f"</{element}>")[0]
        return base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()

    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest('script', '<script>')}'"
    assert rules["style-src"] == f"'sha256-{digest('style', '<style>')}'"
    assert not re.search(r"https?://", policy[1])


def test_every_message_is_in_the_page_once(demo: Path, export: Export) -> None:
    connection = database.open_readonly(demo)
    session_id = connection.execute("SELECT id FROM sessions").fetchone()[0]
    elements = Elements(export(connection, session_id, "html").text)
    found: list[tuple[int, int]] = []
    scripts = [about for tag, about in elements.found if tag == "script"]
    for about, script in zip(scripts, elements.scripts, strict=True):
        if about.get("class") == "chunk":
            messages = json.loads(script)
            assert [messages[0][0], messages[-1][0]] == [
                int(about["data-first"] or 0),
                int(about["data-last"] or 0),
            ]
            found += [(int(about["data-agent"] or 0), message[0]) for message in messages]
    counts = connection.execute(
        "SELECT last_seq FROM agents WHERE session_id = ? ORDER BY rowid", (session_id,)
    ).fetchall()
    assert found == [(place, seq) for place, (count,) in enumerate(counts) for seq in range(1, count + 1)]


def test_figures_say_what_they_are_worth(made: Make, export: Export) -> None:
    one = made()
    exact, guess, none, mixed = (one.agent(name) for name in ("exact", "guess", "none", "mixed"))
    one.call(exact, Usage(1000, 200), Cost(1.25, PriceStatus.EXACT))
    one.call(guess, Usage(1000, 200), Cost(1.25, PriceStatus.EXACT), exact=False)
    one.call(none, Usage(1000, 200), Cost(None, PriceStatus.UNPRICED))
    one.call(mixed, Usage(10, 2), Cost(0.5, PriceStatus.EXACT))
    one.call(mixed, Usage(10, 2), Cost(None, PriceStatus.UNPRICED))
    one.done()
    text = export(one.connection, one.session_id, "md").text
    rows = {
        row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[-3:-1]]
        for row in text.splitlines()
        if row.startswith("| ")
    }
    assert rows["exact"] == ["\\$1.25", "exact"]
    assert rows["guess"] == ["\\$1.25", "estimated"]
    assert rows["none"] == ["unpriced", "unpriced"]
    assert rows["mixed"] == ["\\$0.50", "partly unpriced"]
    assert rows["All"] == ["\\$3.00", "partly unpriced"]


def test_the_reason_of_a_session_is_shown_whole(made: Make, export: Export) -> None:
    outcome = "## Done\n" + "".join(f"- point {number} <b>\n" for number in range(2_000))
    one = made()
    one.agent("planner")
    one.tx.execute("UPDATE sessions SET status_reason = ?", (outcome,))
    one.tx.execute("UPDATE agents SET status_reason = ?", (outcome,))
    one.done()
    page = export(one.connection, one.session_id, "html").text
    assert page.count(outcome.strip().replace("<b>", "&lt;b&gt;")) == 2
    assert "point 1999" in export(one.connection, one.session_id, "md").text


def test_a_very_long_session_is_cut_with_a_note(made, export, monkeypatch):
    one = made()
    one.say(one.agent(), *(f"message {number} " + "x" * 500 for number in range(200)))
    one.done()
    monkeypatch.setattr(pages, "LARGEST_TRANSCRIPTS", 20_000)
    text = export(one.connection, one.session_id, "html").text
    assert re.search(r"The \d+ messages after #\d+ are left out", text)
    assert "message 199" not in text
    assert len(text) < 100_000


def test_texts_of_very_many_compactions_are_left_out_with_a_note(made, export, monkeypatch):
    one = made()
    for number in range(5):
        agent = one.agent(f"agent-{number}")
        one.say(agent, "a", "b", "c")
        one.compact(agent, 2, f"summary {number} " + "y" * 1000, (1,))
    one.done()
    monkeypatch.setattr(pages, "LARGEST_KEPT", 2_500)
    text = export(one.connection, one.session_id, "html").text
    assert ["summary 1" in text, "summary 2" in text] == [True, False]
    assert text.count("[omitted: the page would be too large]") == 3
    assert text.count('class="pass"') == 5


def test_agents_that_name_each_other_as_callers_are_drawn_once_each(made: Make, export: Export) -> None:
    one = made()
    a, b, c = one.agent("lead"), one.agent("first"), one.agent("second")
    one.tx.execute("UPDATE agents SET parent_agent_id = ? WHERE id = ?", (c, b))
    one.tx.execute("UPDATE agents SET parent_agent_id = ? WHERE id = ?", (b, c))
    one.tx.execute("UPDATE agents SET parent_agent_id = ? WHERE id = ?", (a, a))
    one.done()
    text = export(one.connection, one.session_id, "html").text
    for section, after in (("plan", "timeline"), ("timeline", "cost")):
        part = text[text.index(f'<section id="{section}">') : text.index(f'<section id="{after}">')]
        assert [part.count(f">{name}</a>") for name in ("lead", "first", "second")] == [1, 1, 1]


def test_the_timeline_draws_each_activity_at_its_place_on_the_axis(made: Make, export: Export) -> None:
    one = made()
    agent = one.agent("lead")
    sql = "UPDATE agents SET created_at = 1000, started_at = 1000, ended_at = 2000, last_active = 2000 WHERE id = ?"
    one.tx.execute(sql, (agent,))
    one.tx.execute(
        "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, started_at, latency_seconds)"
        " VALUES (?, ?, 1, 'turn', 'm', 'done', 1250, 500)",
        (one.session_id, agent),
    )
    one.tx.execute("UPDATE events SET at = 1000 WHERE session_id = ?", (one.session_id,))
    one.done()
    text = export(one.connection, one.session_id, "html").text
    assert '<rect class="model" x="250.0" y="2" width="500.0" height="10"/>' in text
    assert '<rect class="alive" x="0.0" y="7" width="1000.0" height="2"/>' in text
    assert "<title>working 8 min 20 s</title>" in text


needs_browser = pytest.mark.skipif(
    not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed: the page is not opened in a browser"
)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    one = Browser(tmp_path / "profile")
    yield one
    one.close()


@pytest.fixture
def demo_page(demo: Path, tmp_path: Path, export: Export) -> Path:
    connection = database.open_readonly(demo)
    session_id = connection.execute("SELECT id FROM sessions").fetchone()[0]
    path = tmp_path / "page.html"
    path.write_text(export(connection, session_id, "html").text, encoding="utf-8")
    connection.close()
    return path


@needs_browser
def test_in_a_browser_hostile_text_is_shown_and_does_nothing(made, tmp_path, export, browser):
    one = hostile_session(made)
    path = tmp_path / "hostile.html"
    path.write_text(export(one.connection, one.session_id, "html").text, encoding="utf-8")
    browser.open(path, "#m-0-1")
    browser.until("document.querySelectorAll('.message').length > 20")
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.until("document.querySelectorAll('.gone li').length >= 4")
    shown = browser.run("document.querySelector('.messages').textContent")
    assert "</script><script>document.title='taken'</script>" in shown
    assert "<img src=x onerror=document.title='taken'>" in shown
    assert browser.run("document.querySelectorAll('img, iframe, object, link, base').length") == 0
    assert browser.run("document.title") != "taken"
    assert browser.console == []
    assert browser.asked == [path.as_uri()]


@needs_browser
def test_in_a_browser_nothing_can_be_loaded_or_run_beside_the_program(demo_page, browser):
    text = demo_page.read_text(encoding="utf-8")
    injected = "<script>document.title='taken'</script><img src='http://127.0.0.1:9/x.png' onerror=\"document.title='taken'\">"
    demo_page.write_text(text.replace('<main id="main">', f'<main id="main">{injected}'), encoding="utf-8")
    browser.open(demo_page)
    assert browser.run("document.title") != "taken"
    assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'loaded', () => 'refused')") == "refused"
    assert sum("Content Security Policy" in line for line in browser.console) >= 3


@needs_browser
def test_in_a_browser_search_finds_messages_and_goes_there(demo_page: Path, browser: Browser) -> None:
    browser.open(demo_page)
    browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
    assert browser.run("document.activeElement.id") == "search"
    browser.send("Input.insertText", text="create_plan explorers")
    browser.until("/^[1-9].* found$/.test(document.querySelector('#results h2')?.textContent)")
    assert browser.run("document.querySelectorAll('#results mark').length") > 0
    browser.run(
        "[...document.querySelectorAll('#results button')].find(one => /#\\d+,"
        " assistant/.test(one.textContent)).click()"
    )
    browser.until("document.querySelector('.message.found')")
    inside = "document.querySelector('.message.found').getBoundingClientRect()"
    assert browser.until(f"{inside}.top >= 0 && {inside}.top < innerHeight")
    assert "create_plan" in browser.run("document.querySelector('.message.found').textContent")


@needs_browser
def test_in_a_browser_a_compaction_shows_what_it_dropped_and_what_is_cited(made, tmp_path, export, browser):
    one = made()
    planner = one.agent()
    one.say(
        planner, "first words", "second words", "third words", "fourth words", "fifth words", "last words"
    )
    one.compact(planner, 4, "what was said", (1, 3))
    one.done()
    path = tmp_path / "page.html"
    path.write_text(export(one.connection, one.session_id, "html").text, encoding="utf-8")
    browser.open(path)
    browser.run("document.querySelector('.pass').open = true")
    browser.until("document.querySelectorAll('.gone li').length === 4")
    cited = "[...document.querySelectorAll('.gone li')].map(one => [one.querySelector('.what').textContent, !!one.querySelector('.cited')])"
    assert browser.run(cited) == [
        ["first words", True],
        ["second words", False],
        ["third words", True],
        ["fourth words", False],
    ]
    browser.run("document.querySelector('.cites .jump:last-of-type').click()")
    browser.until("document.querySelector('.message.found')?.id === 'm-0-3'")


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser_the_page_fits_its_width_and_an_address_leads_to_a_message(demo_page, tmp_path, width):
    browser = Browser(tmp_path / "narrow", width=width)
    try:
        browser.open(demo_page, "#m-1-3")
        browser.until("document.getElementById('m-1-3')")
        browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelector('.transcript[data-agent=\"1\"]').open")
    finally:
        browser.close()


@needs_browser
def test_in_a_browser_a_print_shows_plan_and_compactions_unfolded(demo_page: Path, browser: Browser) -> None:
    browser.open(demo_page)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("[...document.querySelectorAll('.tree details, .pass')].every(one => one.open)")
    assert browser.run("[...document.querySelectorAll('.gone')].every(one => one.children.length > 0)")
    browser.send("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.querySelector('.top')).display") == "none"
    assert len(browser.send("Page.printToPDF")["data"]) > 10_000


def test_passes_are_in_the_order_of_their_times_and_what_they_replaced_is_said_to_be_stored(made, export):
    one = made()
    late, early = one.agent("late"), one.agent("early")
    for agent, at in (
        (late, 5_000.0),
        (early, 2_000.0),
    ):  # as the logs of two agents are imported, one after the other
        one.say(agent, "first words", "second words", "third words", "last words")
        one.compact(agent, 3, "what was said", (1, 3))
        one.connection.execute(
            "UPDATE compactions SET requested_at = ?, ended_at = ? WHERE agent_id = ?", (at, at, agent)
        )
    one.done()
    text = export(one.connection, one.session_id, "html").text
    section = text[text.index('<section id="compactions">') :]
    assert section.index("<b>early</b>") < section.index("<b>late</b>")
    assert "1 are not in the summary (still stored)" in section
    assert "ropped" not in section[: section.index("</section>")]


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_an_excerpt_of_a_search_does_not_run_the_words_of_neighbouring_elements_together() -> None:
    script = (Path(pages.__file__).parent / "templates" / "page.js").read_text(encoding="utf-8")
    body = script[script.index("function wordsOf") :].partition("\n  }\n")[0] + "\n}"
    texts = ["Explore core", "  done\n", "", "42 tok"]
    program = f"""
    const NodeFilter = {{ SHOW_TEXT: 4 }};
    const document = {{ createTreeWalker: () => {{
        const left = {json.dumps(texts)}.map((data) => ({{ data }}));
        return {{ nextNode() {{ return (this.currentNode = left.shift()); }} }};
    }} }};
    {body}
    console.log(wordsOf(null));
    """
    said = subprocess.run(
        ["node", "-e", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert said == "Explore core done 42 tok\n"
