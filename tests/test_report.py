"""The decision report: its words, its structure, and what an offline browser makes of it."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from helpers import refusal, run

from m2bayes.reporting import sentences
from m2bayes.reporting.report import joined

QUESTION = ["--llm", "llama-3.1-8b", "--sku", "h100", "h200", "a10", "--draws", "80"]
STEPS = ["prefill:tokens=128", "prefill:tokens=2048", "prefill:tokens=8192"]
VOID = {"meta", "link", "br", "img", "input", "hr"}
NUMBER = re.compile(r"[\d,]+\.?\d*")


@dataclass
class Page(HTMLParser):
    """What a page is made of: every tag with its attributes, text by tag, and what is nested."""

    tags: list = field(default_factory=list)
    texts: list = field(default_factory=list)
    open: list = field(default_factory=list)
    wrong: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), [*self.open]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs), [*self.open]))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, *names):
        return [(attrs, inside) for tag, attrs, inside in self.tags if tag in names]

    def text(self, *names):
        return [text for tag, text in self.texts if tag in names]


def parsed(text):
    page = Page()
    page.feed(text)
    return page


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Report of three workloads on three SKUs, one of which nobody measured."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    code, out, err = run("report", *QUESTION, "--workload", *STEPS, "--out", str(path))
    assert code == 0, err
    assert str(path) in out
    return path


@pytest.fixture(scope="module")
def text(made):
    return made.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return parsed(text)


@pytest.fixture(scope="module")
def ranked():
    """What ``m2bayes rank --json`` says of the same question."""
    code, out, err = run("rank", *QUESTION, "--workload", *STEPS, "--json", "--quiet")
    assert code == 0, err
    return json.loads(out)


def table(text, label):
    """Rows of one table, each cell with its text and what it is sorted by."""
    body = re.search(rf'<table id="{label}".*?<tbody>(.*?)</tbody>', text, re.S).group(1)
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.S)
    cells = [re.findall(r"<td([^>]*)>(.*?)</td>", row, re.S) for row in rows]
    value = re.compile(r'data-value="([^"]*)"')
    return [
        [(said, float(v.group(1)) if (v := value.search(attrs)) else None) for attrs, said in row]
        for row in cells
    ]


# --- what it says ----------------------------------------------------------------------------


def test_it_answers_in_words_before_anything_else(page, ranked):
    assert page.text("h2")[0] == "Answer"
    words = " ".join(page.text("p"))
    for entry in ranked["results"]:
        assert f"{entry['workload']}: " in words
        assert entry["choice"] in words
    assert words.index("The choice is") < words.index("Expected regret:")


def test_the_ranking_table_holds_the_numbers_of_rank(text, ranked):
    rows = table(text, "table-ranking")
    skus = [(entry, sku) for entry in ranked["results"] for sku in entry["skus"]]
    assert len(rows) == len(skus) == 9
    for row, (entry, sku) in zip(rows, skus, strict=True):
        assert (row[0][0], row[1][0]) == (entry["workload"], sku["sku"])
        numbers = [row[i][1] for i in (2, 3, 4, 5)]
        wanted = [sku["median"], sku["interval"]["low"], sku["p_best"], sku["relative_regret"]]
        assert numbers == wanted
        open_ = "fits: " if sku["p_fits"] < 1 else ""
        says = entry["verdict"] if sku["sku"] == entry["choice"] else open_
        assert row[7][0].startswith(says)
        assert bool(row[7][0]) == bool(says)
    assert text.count('<tr class="chosen">') == 3


def test_evpi_is_the_expected_regret_of_the_choice(text, ranked):
    rows = table(text, "table-values")
    for row, entry in zip(rows, ranked["results"], strict=True):
        chosen = next(s for s in entry["skus"] if s["sku"] == entry["choice"])
        assert row[2][1] == chosen["expected_regret"]
        assert row[3][1] == chosen["relative_regret"]
        assert row[4][1] == pytest.approx(1 - chosen["p_best"])


def test_every_sku_has_its_basis_and_its_datasheet(page, ranked):
    basis = {s["sku"]: s["basis"] for s in ranked["results"][0]["skus"]}
    assert set(page.text("h3")) == {f"{sku}: {basis[sku]}" for sku in basis}
    assert "Nobody measured it" in " ".join(page.text("p"))
    assert len(page.all("details")) == len(basis)
    assert page.text("td").count("989.4 TFLOP/s") == 2  # of the H100 and the H200


def test_diagnostics_and_data_of_every_part_are_named(text, database):
    names = database.assembly("step_bf16").parts.values()
    assert [row[0][0] for row in table(text, "table-diagnostics")] == list(names)
    data = [(row[0][0], row[2][0]) for row in table(text, "table-data")]
    wanted = [(n, s["name"]) for n in names for s in database.posterior(n).data]
    assert data == wanted


def test_the_exact_command_stands_in_it(page, made):
    (command,) = page.text("code")[-1:]
    assert command.startswith("m2bayes report --llm llama-3.1-8b --sku h100 h200 a10")
    assert command.endswith(f"--out {made}")


def test_what_would_change_the_decision_is_said(page):
    said = " ".join(page.text("li"))
    assert "What bounds the step" in said
    assert "Timings of what nobody measured here: A10-24GB-PCIe" in said


def test_a_name_with_markup_in_it_stays_text(tmp_path, database):
    card = json.loads((database.root / "data" / "datasheets" / "H100-80GB-SXM.json").read_text())
    card |= {"name": "<b>X&Y-80GB-SXM", "aliases": []}
    file, out = tmp_path / "card.json", tmp_path / "a.html"
    file.write_text(json.dumps(card))
    argv = ["--llm", "llama-3.1-8b", "--sku", str(file), "h200", "--draws", "40"]
    code, _, err = run("report", *argv, "--workload", STEPS[0], "--out", str(out))
    assert code == 0, err
    content = parsed(out.read_text(encoding="utf-8"))
    assert not content.all("b")
    assert "<b>X&Y-80GB-SXM" in content.text("td")


def test_one_workload_of_kernels_is_reported_too(tmp_path):
    out = tmp_path / "kernel.html"
    argv = ["--sku", "h100", "l40s", "--regime", "benchmark", "--draws", "40"]
    work = ["--workload", "gemm:m=64,n=6144,k=4096"]
    code, _, err = run("report", *argv, *work, "--out", str(out))
    assert code == 0, err
    content = parsed(out.read_text())
    assert len(content.all("figure")) == 2
    assert content.text("h1") == ["Which GPU for these kernels?"]


@pytest.mark.slow
def test_many_workloads_are_summed_up(tmp_path):
    steps = [
        f"decode:batch={b},context={c}"
        for b in range(1, 8)
        for c in (64, 128, 256, 512, 1024, 2048)
    ]
    out = tmp_path / "many.html"
    argv = ["report", "--llm", "llama-3.1-8b", "--sku", "h100", "h200", "--draws", "20"]
    code, _, err = run(*argv, "--workload", *steps, "--out", str(out))
    assert code == 0, err
    content = out.read_text()
    assert len(table(content, "table-ranking")) == 2 * 40
    assert "2 more workloads are not shown" in content
    assert content.count("Of the first 40 workloads.") == 2
    assert out.stat().st_size < 5e6


def test_what_cannot_be_served_is_code_3_and_writes_nothing(tmp_path):
    out = tmp_path / "a.html"
    argv = ["report", "--llm", "llama-3.1-405b", "--sku", "l4", "--workload", STEPS[0]]
    refusal(run(*argv, "--out", str(out)), code=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "reason"), [("a.pdf", "name a .html file"), ("no/a.html", "no such folder")]
)
def test_a_file_that_is_no_page_is_refused(tmp_path, name, reason):
    argv = ["report", *QUESTION, "--workload", STEPS[0], "--out", str(tmp_path / name)]
    assert reason in refusal(run(*argv))
    assert not list(tmp_path.iterdir())


def test_json_names_the_file(tmp_path):
    out = tmp_path / "a.html"
    argv = ["report", *QUESTION, "--workload", STEPS[0], "--out", str(out), "--json"]
    code, said, _ = run(*argv)
    assert code == 0
    assert json.loads(said) == {"out": str(out), "bytes": out.stat().st_size}


# --- how it is made --------------------------------------------------------------------------


def test_it_is_one_file_that_asks_for_nothing(page, made):
    assert made.stat().st_size < 5e6
    for _, attrs, _ in page.tags:
        for name, value in attrs.items():
            reaches = name in ("src", "srcset", "action", "poster", "data", "href", "xlink:href")
            assert not reaches or value.startswith(("#", "data:")), (name, value)
            assert "@import" not in (value or "")
            assert not re.search(r"url\((?!#)", value or "")
    (policy,) = [a["content"] for a, _ in page.all("meta") if "Security" in a.get("http-equiv", "")]
    assert policy.startswith("default-src 'none'")


def test_tags_are_closed_and_ids_are_unique(page):
    assert page.wrong == []
    assert page.open == []
    ids = [attrs["id"] for _, attrs, _ in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    pointed = {
        name
        for _, attrs, _ in page.tags
        for key in ("aria-labelledby", "href")
        for name in (attrs.get(key) or "").replace("#", " ").split()
        if not name.startswith("data:")
    }
    assert pointed <= set(ids)


def test_headings_nest(page):
    levels = [int(tag[1]) for tag, _, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_figure_has_a_title_a_description_and_a_caption(page):
    figures, drawings = page.all("figure"), page.all("svg")
    assert len(figures) == len(drawings) == len(page.text("figcaption")) == 4
    for attrs, _ in drawings:
        assert attrs["role"] == "img"
        assert len(attrs["aria-labelledby"].split()) == 2
    assert len(page.all("desc")) == len(drawings)
    assert not page.all("img")


def test_figures_say_their_values_under_the_pointer(page, ranked):
    titles = [t for t, inside in [(text, tag) for tag, text in page.texts] if inside == "title"]
    assert len(titles) > 50
    first = ranked["results"][0]["skus"][0]
    said = next(t for t in titles if t.startswith(f"{first['sku']}, 128:") and "p_best" not in t)
    shown = [float(n.replace(",", "")) for n in NUMBER.findall(said.partition(": ")[2])]
    wanted = [
        1e3 * v for v in (first["median"], first["interval"]["low"], first["interval"]["high"])
    ]
    assert shown == pytest.approx(wanted, rel=1e-3)


def test_tables_have_captions_and_headers_and_can_be_scrolled_by_keyboard(page):
    assert len(page.all("caption")) == 5
    assert all(attrs["scope"] in ("col", "row") for attrs, _ in page.all("th"))
    scrolls = [a for a, _ in page.all("div") if a.get("class") == "scroll"]
    assert scrolls
    assert all(
        a["tabindex"] == "0" and ("aria-label" in a or "aria-labelledby" in a) for a in scrolls
    )


def test_a_phone_and_a_screen_reader_know_how_to_read_it(page):
    assert any(a.get("name") == "viewport" for a, _ in page.all("meta"))
    assert page.all("html")[0][0]["lang"] == "en"
    for landmark in ("header", "main", "footer", "nav"):
        assert page.all(landmark)
    assert page.all("title")


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_has_the_contrast_that_readers_need(text):
    """WCAG 2.2, 1.4.3: 4.5 to 1, on white and on the chosen row."""
    style = re.search("<style>(.*?)</style>", text, re.S).group(1)
    colours = {c if len(c) == 7 else "#" + "".join(2 * d for d in c[1:])
               for c in re.findall(r"[ ;{]color: (#[0-9a-f]+)", style)}  # fmt: skip
    assert len(colours) >= 4
    for ground in ("#ffffff", "#e8f1f8"):
        for colour in colours:
            assert (luminance(ground) + 0.05) / (luminance(colour) + 0.05) >= 4.5, colour


def test_it_has_rules_for_print(text):
    assert "@media print" in text
    assert "beforeprint" in text


def test_the_question_is_put_in_one_sentence(page):
    (question,) = page.text("p")[:1]
    assert question == (
        "Of H100-80GB-SXM, H200-141GB-SXM and A10-24GB-PCIe, which has the least step time for "
        "llama-3.1-8b, bf16, in these 3 workloads?"
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_names_are_listed_as_people_do(names, said):
    assert sentences.listed(names) == said


def test_a_sku_that_nobody_measured_is_named_beside_the_answer():
    sku = {"sku": "X500", "basis": "architecture", "p_best": 0.3}
    rows = [{"skus": [sku, sku | {"sku": "H100", "basis": "measured"}]}]
    rows += [
        {"skus": [sku | {"sku": "slow", "p_best": 0.0}, sku | {"sku": "none", "p_best": None}]}
    ]
    assert list(sentences._never_measured(rows)) == [
        "X500 was never measured: its figures rest on its datasheet and on cards of its "
        "architecture."
    ]


@pytest.mark.parametrize(
    ("host", "calibrated", "said"),
    [
        (3.0, (), "host takes most, 75.0 %, and is mostly prior."),
        (3.0, ("a",), "host takes most, 75.0 %, and is learnt from timed steps."),
        (0.5, (), "gate up takes most, 66.7 %; the host, which is mostly prior, 33.3 %."),
    ],
)
def test_the_host_is_told_once(host, calibrated, said):
    ops = [{"op": "host", "median": host}, {"op": "gate_up", "median": 1.0}]
    entry = {"workload": "w", "skus": [{"sku": "a", "median": 1.0, "ops": ops}]}
    (line,) = sentences._bounds([entry], calibrated)
    assert line == f"What bounds the step, w on a: {said}"


def test_a_number_keeps_its_per_cent_sign():
    assert " %" not in joined("1 % and 2 %")


# --- in a browser ----------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
in_a_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed: page not opened"
)
OFFLINE = ["--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9"]


def opened(path, folder):
    """Page as the browser has it once its scripts have run, and what it said of that page."""
    done = subprocess.run(
        [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", *OFFLINE, "--no-first-run",
         f"--user-data-dir={folder}", "--window-size=1200,900", "--enable-logging=stderr",
         "--dump-dom", path.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    own = [line for line in done.stderr.splitlines() if "CONSOLE" in line and path.name in line]
    return done.stdout, own


def scripted(made, folder, script):
    """Copy of the page with one more script at its end."""
    copy = folder / "scripted.html"
    end = f"<script>{script}</script></body>"
    copy.write_text(made.read_text(encoding="utf-8").replace("</body>", end), encoding="utf-8")
    return copy


@in_a_browser
def test_the_page_loads_offline_without_a_word_on_the_console(made, tmp_path):
    content, said = opened(made, tmp_path)
    assert said == []
    assert content.count('<button type="button">') == content.count('<th scope="col">') - 9
    assert "Which GPU for llama-3.1-8b?" in content


@in_a_browser
def test_a_message_on_the_console_would_be_noticed(made, tmp_path):
    copy = scripted(made, tmp_path, "console.log('hello'); fetch('https://example.org/x');")
    _, said = opened(copy, tmp_path / "profile")
    assert any("hello" in line for line in said)
    assert any("Content Security Policy" in line for line in said)


@in_a_browser
def test_tables_sort_by_value_both_ways(made, tmp_path):
    click = 'document.querySelectorAll("#table-ranking button")[2].click();'
    (tmp_path / "once").mkdir()
    medians = {}
    for name, script in (("up", click), ("down", click * 2)):
        content, said = opened(scripted(made, tmp_path, script), tmp_path / name)
        assert said == []
        medians[name] = [row[2][1] for row in table(content, "table-ranking")]
        assert (
            f'aria-sort="{name}'.replace("up", "ascending").replace("down", "descending") in content
        )
    assert medians["up"] == sorted(medians["up"])
    assert medians["down"] == medians["up"][::-1]
    before = [row[2][1] for row in table(made.read_text(), "table-ranking")]
    assert before != medians["up"]


@in_a_browser
def test_a_text_column_sorts_with_its_numbers_in_order(made, tmp_path):
    script = 'document.querySelectorAll("#table-ranking button")[0].click();'
    content, _ = opened(scripted(made, tmp_path, script), tmp_path / "profile")
    names = [row[0][0] for row in table(content, "table-ranking")]
    assert names == [step for step in STEPS for _ in range(3)]  # 128, 2048, 8192


@in_a_browser
@pytest.mark.parametrize("width", [375, 1200])
def test_the_page_is_no_wider_than_the_window(made, tmp_path, width):
    """In a frame, since a browser without a screen has no window as narrow as a phone's."""
    content = json.dumps(made.read_text(encoding="utf-8")).replace("</", r"<\/")
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'''<!DOCTYPE html><iframe id="phone" width="{width}" height="800"></iframe><script>
        const phone = document.getElementById("phone");
        phone.onload = () => {{
          const inner = phone.contentWindow;
          document.body.dataset.window = inner.innerWidth;
          document.body.dataset.needed = inner.document.documentElement.scrollWidth;
          document.body.dataset.title = inner.document.title;
        }};
        phone.srcdoc = {content};
        </script>''',
        encoding="utf-8",
    )
    held, said = opened(frame, tmp_path / "profile")
    assert said == []
    assert re.search('data-title="([^"]*)"', held).group(1) == "Which GPU for llama-3.1-8b?"
    window, needed = (
        int(re.search(rf'data-{name}="(\d+)"', held).group(1)) for name in ("window", "needed")
    )
    assert needed <= window == width
