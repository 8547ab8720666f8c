"""scripts/report.py: the content of its page, and the page itself in a headless Chromium: no errors, all curves,
keyboard, contrast and labels. Run it with .venv/bin/python; without Chromium the browser's part is skipped.
"""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import sys
import unittest

from trainer import ROOT, FinishedRun, corpus, new_path

sys.path.insert(0, os.path.join(ROOT, "scripts"))
import report  # noqa: E402

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None
CHROMIUM = shutil.which("chromium")

WIDE, NARROW = 1400, 390  # pixels; a phone's width
ROLES = ("x", "w", "dout")


def make(*runs):
    """The page of these run directories, as a file."""
    out = new_path("page") + ".html"
    with contextlib.redirect_stdout(io.StringIO()):
        code = report.main([*runs, "-o", out])
    assert code == 0, runs
    return out


def shown(value):
    """A number in the page's format."""
    return f"{float(f'{value:.6g}'):.5g}"


def data_of(page):
    with open(page, encoding="utf-8") as file:
        return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read())[1])


def text_of(page):
    with open(page, encoding="utf-8") as file:
        return file.read()


def write_records(records, info=None, name="run"):
    directory = new_path(name)
    os.makedirs(directory)
    with open(os.path.join(directory, "metrics.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    if info is not None:
        with open(os.path.join(directory, "run.json"), "w", encoding="utf-8") as file:
            json.dump(info, file)
    return directory


def step(number, **more):
    return dict(step=number, loss=5 - number / 4000, lr=1e-3, norm=1.0, tokens=100 * number, ms=1.0, tokens_per_s=1e5,
                products=dict(fp8=24, bf16=3, fp32=0), skipped=0, loss_scale=65536.0) | more


@functools.cache
def real_runs():
    """A BF16 and an FP8 run of the program, with validations and samples."""
    flags = ["--val", corpus().val, "--val-every", 10, "--val-batches", 1, "--sample-every", 15, "--sample-tokens", 8,
             "--max-steps", 30, "--signals-every", 10]
    return [FinishedRun(*flags, "--precision", precision) for precision in ("bf16", "fp8")]


@functools.cache
def page_of_two():
    return make(*(run.directory for run in real_runs()))


def left_fp8():
    """A run whose first layer leaves FP8 after step 2. The amax of the other is 4, 0, not finite, and 1."""
    def tensor(layer, amax, saturated=0):
        return dict(tensor=layer + ".x", amax=amax, scale=1.0, elements=4, saturated=saturated, underflowed=0, nonfinite=0)
    records = []
    for number, amax in enumerate((4.0, 0.0, None, 1.0), 1):
        first = [tensor("h.0.fc", 4.0, number - 1)] if number <= 2 else []
        records += [step(number), dict(step=number, fp8=[*first, tensor("h.1.fc", amax)])]
    return write_records(records)


def curves_of(data):
    return {f"{chart['name']}/{data['runs'][curve['run']]['name']}/{curve['name']}": curve
            for chart in data["charts"] for curve in chart["curves"]}


class Contents(unittest.TestCase):
    def test_every_curve_has_the_numbers_of_the_metrics(self):
        runs = real_runs()
        curves = curves_of(data_of(page_of_two()))
        names = [os.path.basename(run.directory) for run in runs]
        expected = {f"{kind}/{name}/{curve}" for name in names for kind, curve in (
            ("loss", "training"), ("loss", "validation"), ("lr", "learning rate"), ("norm", "norm"),
            ("speed", "tokens/s"), ("loss-scale", "loss scale"))}
        expected |= {f"gap/{names[1]}/training", f"gap/{names[1]}/validation"}
        expected |= {f"lost-{role}/{names[1]}/{count}" for role in ROLES for count in ("saturated", "underflowed")}
        expected |= {f"scale-{role}/{names[1]}/{which}" for role in ROLES for which in ("smallest", "median", "largest")}
        expected |= {f"{kind}/{name}/{which}" for which in ("median", "largest") for name in names
                     for kind in ("update-ratio", "gradient", "max-logit")}
        self.assertEqual(curves.keys(), expected)
        for run, name in zip(runs, names):
            loss = curves[f"loss/{name}/training"]
            self.assertEqual(loss["x"], [r["step"] for r in run.steps])
            for low, high, value in zip(loss["low"], loss["high"], run.losses):
                self.assertEqual((low, high), (float(f"{value:.6g}"),) * 2)
            validation = curves[f"loss/{name}/validation"]
            self.assertEqual(dict(zip(validation["x"], validation["y"])),
                             {s: float(f"{v:.6g}") for s, v in run.validations.items()})
        fp8 = [r for r in runs[1].records if "fp8" in r]
        saturated = [sum(t["saturated"] for t in r["fp8"] if t["tensor"].endswith(".x")) for r in fp8]
        elements = [sum(t["elements"] for t in r["fp8"] if t["tensor"].endswith(".x")) for r in fp8]
        self.assertEqual(curves[f"lost-x/{names[1]}/saturated"]["y"],
                         [float(f"{s / e:.6g}") for s, e in zip(saturated, elements)])

        signals = [r["signals"] for r in runs[0].records if "signals" in r]
        self.assertEqual([len(s) for s in signals], [2 + 2 * 12 + 2] * 3)  # embeddings, blocks, the last norm
        self.assertEqual(curves[f"max-logit/{names[0]}/largest"]["y"],
                         [float(f"{max(t['max_logit'] for t in s if 'max_logit' in t):.6g}") for s in signals])
        self.assertEqual(curves[f"update-ratio/{names[0]}/largest"]["y"],
                         [float(f"{max(t['update'] / t['weight'] for t in s if t['weight'] > 0):.6g}") for s in signals])

    def test_scores_of_tasks(self):
        run = write_records([step(1), dict(step=1, arc_easy_acc=0.25, arc_easy_acc_norm=0.5),
                             dict(step=1, arc_easy_acc=0.75, piqa_acc_norm=1.0), dict(step=2, arc_easy_acc=0.0)])
        name = os.path.basename(run)
        curves = curves_of(data_of(make(run)))
        found = {key: (curve["x"], curve["y"]) for key, curve in curves.items() if key.startswith("tasks/")}
        self.assertEqual(found, {f"tasks/{name}/arc_easy_acc": ([1, 2], [0.75, 0]),
                                 f"tasks/{name}/arc_easy_acc_norm": ([1], [0.5]),
                                 f"tasks/{name}/piqa_acc_norm": ([1], [1])})

    def test_a_long_run_keeps_its_spikes_and_the_page_stays_small(self):
        tensors = [f"h.{i}.{layer}.{role}" for i in range(12) for layer in ("qkv", "attn_proj", "fc", "fc_proj")
                   for role in ROLES]
        records = []
        for number in range(1, 10001):
            loss = {7777: 40.0, 5000: 0.5, 9000: None}.get(number, 5 - number / 4000)
            records.append(step(number, loss=loss, norm=1 + number % 7 / 3 + 1 / number, tokens_per_s=1e5 + number % 13 / 7))
            if number % 10 == 0:
                records.append(dict(step=number, fp8=[dict(tensor=t, amax=2.0 ** (number % 9), scale=1.0 + number, elements=1000,
                                                           saturated=5 if number == 4440 else 0, underflowed=number % 5,
                                                           nonfinite=0) for t in tensors]))
            if number % 100 == 0:
                records.append(dict(step=number, val_loss=5 - number / 4001))
        page = make(write_records(records))
        self.assertLess(os.path.getsize(page), 1e6)
        data = data_of(page)
        (loss,) = (c for key, c in curves_of(data).items() if key.endswith("/training"))
        self.assertLessEqual(len(loss["x"]), 500)
        self.assertEqual((loss["first"][0], loss["last"][-1]), (1, 10000))
        at = next(i for i, last in enumerate(loss["last"]) if last >= 7777)
        self.assertEqual(loss["high"][at], 40.0)
        self.assertEqual(min(loss["low"]), 0.5)
        self.assertTrue(all(a + 1 == b for a, b in zip(loss["last"], loss["first"][1:])))
        self.assertTrue("not finite in step 9000" in text_of(page))
        inputs, weights, _ = data["maps"]
        column = next(i for i, last in enumerate(inputs["last"]) if last >= 4440)
        rows = inputs["cells"]["saturated"]
        self.assertEqual(list(rows), list(dict.fromkeys(t.rsplit(".", 1)[0] for t in tensors)))
        self.assertTrue(all([i for i, v in enumerate(row) if v != report.ZERO] == [column] for row in rows.values()))
        self.assertEqual(max(weights["cells"]["amax"]["h.0.qkv"]), 800)  # hundredths of log2 of 2^8

    def test_a_map_tells_zero_from_missing(self):
        amax, saturated, underflowed = (data_of(make(left_fp8()))["maps"][0]["cells"][quantity]
                                        for quantity in ("amax", "saturated", "underflowed"))
        self.assertEqual(amax, {"h.0.fc": [200, 200, None, None], "h.1.fc": [200, report.ZERO, None, 0]})
        self.assertEqual(saturated, {"h.0.fc": [report.ZERO, -200, None, None], "h.1.fc": [report.ZERO] * 4})
        self.assertEqual(underflowed["h.1.fc"], [report.ZERO] * 4)

    def test_the_last_validation_of_a_run_that_diverged(self):
        page = text_of(make(write_records([dict(step=0, val_loss=5.5547), step(1), dict(step=1, val_loss=None)])))
        self.assertRegex(page, r'validation loss, last</th><td>not finite \(step 1\)</td>')
        self.assertIn("val_loss of step 1 is not finite", page)

    def test_warnings(self):
        records = [step(1), step(2, loss=None, nonfinite=dict(loss="nan"), skipped=1), step(3, skipped=1, spike=dict(loss=4.0)),
                   dict(step=3, fp8_fallback=[dict(layer="h.0.fc", tensor="x", reason="saturated", fraction=0.5)]),
                   dict(step=3, slow_rank=dict(rank=1, where="rank 1 on node7", ms=9.0)), dict(step=3, slow_rank=None),
                   dict(step=3, fp8=[dict(tensor="h.0.fc.x", amax=1.0, scale=1.0, elements=4, saturated=0, underflowed=0,
                                          nonfinite=2)]), step(6, skipped=1)]
        info = dict(config={"precision": "fp8", "max-steps": 8})
        page = text_of(make(write_records(records, info)))
        for part in ("not finite in step 2", "1 steps skipped", "spikes of loss or gradient norm in step 3",
                     "step 3: h.0.fc left FP8 for BF16, because its x saturated", "cast to FP8, by the records of step 3",
                     "step 3: rank 1 on node7 was slow", "metrics.jsonl lacks 2 steps, the first after step 3", "ends at step 6 of 8"):
            self.assertTrue(part in page, part)
        info = dict(config={"precision": "fp8", "max-steps": 2}, resumed=[dict(step=1, date="2026-01-01")])
        quiet = text_of(make(write_records([step(1), step(2)], info)))
        for part in ("Nothing to warn of", "Resumed at step 1 on 2026-01-01"):
            self.assertTrue(part in quiet, part)
        other = write_records([step(7), step(8)], dict(weights_hash="b", config={}))
        both = text_of(make(write_records([step(1)], dict(weights_hash="a", config={}), "b"), other))
        for part in ("no step in common", "did not start with the weights"):
            self.assertTrue(part in both, part)

    def test_records_of_two_runs_in_one_file(self):
        """They may be joined pieces of one run, too, with steps that a resume repeated."""
        text = "metrics.jsonl goes back from step 4 to step 2"
        self.assertIn(text, text_of(make(write_records([step(1), step(4), step(2), step(3)]))))
        self.assertNotIn("goes back", text_of(make(write_records([step(1), step(4)]))))

    def test_what_differs_is_said(self):
        a, b = (write_records([step(1)], dict(config={"lr": lr, "seed": 1, "out": lr}, device="x")) for lr in (0.5, 0.25))
        differing = re.findall(r"<tr class=differs>.*?</tr>", text_of(make(a, b)))
        self.assertEqual(len(differing), 2)  # once alone, once in the full list
        self.assertIn("≠ lr</th><td>0.5</td><td>0.25</td>", differing[0])
        self.assertTrue("Nothing differs" in text_of(make(a, a)))

    def test_sources_are_named(self):
        mixed = write_records([step(n, source_tokens={"a/*.bin": 3000 * n, "b.bin": 1000 * n}) for n in (1, 2)])
        page = text_of(make(mixed, write_records([step(1)])))
        self.assertIn("b.bin</th><td>2,000 tokens, 25.0 %</td><td>-</td>", page)
        self.assertFalse("Training data by source" in text_of(make(write_records([step(1)]))))

    def test_memory_by_kind(self):
        """Each size is in its run's column, and the least peak of a rank comes before the most."""
        sizes = lambda least, most: dict(planned=2 ** 34, least_peak=int(least * 2 ** 30), most_peak=int(most * 2 ** 30))
        runs = [write_records([step(1), *([dict(step=1, memory=kinds)] if kinds else [])]) for kinds in (
            dict(weights=sizes(9.5, 10), residuals=sizes(1, 1)), dict(weights=sizes(2, 2)), {},
            dict(weights=sizes(3, 3), residuals=sizes(4, 4), comm=sizes(5, 5)), dict(weights=sizes(6, 6)))]
        found = re.search("<caption>Memory of a rank, by kind.*?</table>", text_of(make(*runs)))[0]
        rows = {label: re.findall("<td>(.*?)</td>", cells) for label, cells in
                re.findall('<th scope="row">(.*?)</th>(.*?)</tr>', found)}
        taken = lambda text: f"16.0 GiB planned, {text} taken"
        self.assertEqual(rows, {
            "weights": [*map(taken, ("9.5 GiB to 10.0 GiB", "2.0 GiB", "3.0 GiB", "6.0 GiB"))],
            "residuals": [taken("1.0 GiB"), "-", taken("4.0 GiB"), "-"], "comm": ["-", "-", taken("5.0 GiB"), "-"],
            "all": [f"{total}.0 GiB taken on the device" for total in (11, 2, 12, 6)]})
        self.assertEqual(list(rows)[-1], "all")

    def test_text_of_a_run_cannot_become_markup(self):
        bad = '</script><script>alert("x")</script><!--'
        records = [step(1), dict(step=1, sample=bad)]
        page = text_of(make(write_records(records, dict(command=bad, config={"prompt": bad}), name=bad.replace("/", ""))))
        self.assertFalse("<script>alert" in page)
        self.assertEqual(page.count("<script"), 2)

    def test_what_cannot_be_shown(self):
        for arguments, part in ((["nowhere"], "does not exist"), ([new_path()], "does not exist"),
                                ([write_records([step(1)]), "-o", "/nowhere/x"], "/nowhere/x")):
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                self.assertEqual(report.main(arguments), 2)
            self.assertIn(part, err.getvalue())
            self.assertEqual(len(err.getvalue().splitlines()), 1)


# ---- in a browser --------------------------------------------------------------------------------------------------

# The lowest contrast of all texts in the drawings, which axe does not check, by WCAG's definition, and that text.
CONTRAST_IN_DRAWINGS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } };
  return [...document.querySelectorAll("svg text, svg .curve")].map((e) => {
    const style = getComputedStyle(e), is_text = e.tagName === "text";
    const [a, b] = [rgb(is_text ? style.fill : style.stroke), behind(e)].map((c) => light(c.slice(0, 3))).sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), is_text ? 4.5 : 3, e.textContent];
  }).filter(([ratio, least]) => !(ratio >= least));
}"""


@unittest.skipIf(os.environ.get("CI") != "true" and not (sync_playwright and CHROMIUM),
                 "needs chromium, playwright and axe-playwright-python (scripts/setup.sh --with-browser)")
class InBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.playwright = sync_playwright().start()
        # Containers do not support its sandbox, and the pages are our own.
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()

    def open(self, page, width=WIDE, scheme="light"):
        """Opens the page in a window. Collects errors in `self.errors` and network requests in `self.requests`."""
        self.errors, self.requests = [], []
        window = self.browser.new_page(viewport=dict(width=width, height=900), color_scheme=scheme)
        self.addCleanup(window.close)
        window.on("console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None)
        window.on("pageerror", lambda error: self.errors.append(str(error)))
        window.on("request", lambda request: self.requests.append(request.url))
        window.goto("file://" + page)
        return window

    def violations(self, window, *rules):
        found = Axe().run(window, options={"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})})
        return [(v["id"], v["nodes"][0]["html"][:150]) for v in found.response["violations"]]

    def drawn(self, window):
        """Returns {curve: numbers in its path}."""
        paths = window.eval_on_selector_all("[data-curve]", "all => all.map(e => [e.dataset.curve, e.getAttribute('d')])")
        return {name: [tuple(map(float, point)) for point in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", d)] for name, d in paths}

    def test_every_curve_is_drawn_without_errors_or_network(self):
        page = page_of_two()
        window = self.open(page)
        curves, drawn = curves_of(data_of(page)), self.drawn(window)
        self.assertEqual(drawn.keys(), curves.keys())
        for name, points in drawn.items():
            self.assertEqual(len(points), sum(y is not None for y in curves[name]["y"]), name)
            self.assertEqual(points, sorted(points), name)  # from left to right
            higher = [y for _, y in sorted(zip(curves[name]["y"], (y for _, y in points)))]
            self.assertEqual(higher, sorted(higher, reverse=True), name)  # greater is further up
        self.assertEqual(len(window.query_selector_all("[data-range]")), 2)
        self.assertEqual(self.errors, [])
        self.assertEqual([url for url in self.requests if not url.startswith(("file:", "data:"))], [])

    def test_a_page_that_is_broken_is_seen(self):
        broken = new_path("broken") + ".html"
        text = text_of(page_of_two())
        for old, new, reason in (("for (const chart of data.charts)", "none();for (const chart of data.charts)", "none"),
                                 ('<nav id="controls"', '<img src="https://example.org/x.png"><nav id="controls"', "example.org")):
            self.assertIn(old, text)
            with open(broken, "w", encoding="utf-8") as file:
                file.write(text.replace(old, new, 1))
            self.open(broken)
            self.assertIn(reason, " ".join(self.errors))

    def test_keys_pointer_and_controls(self):
        bf16, fp8 = real_runs()
        window = self.open(page_of_two())
        loss = window.locator("[aria-labelledby=chart-loss]")
        loss.focus()
        for key, number in (("Home", 1), ("ArrowRight", 2), ("End", 30), ("ArrowLeft", 29)):
            window.keyboard.press(key)
            window.wait_for_function("n => document.activeElement.ariaValueNow === String(n)", arg=number)
            said = loss.get_attribute("aria-valuetext")
            for run in (bf16, fp8):
                self.assertIn(f"({shown(run.losses[number - 1])})", said)
            self.assertIn(f"step {number}", said)
        self.assertIn(said.split("; ")[1], window.locator("figure:has(#chart-loss) .readout").inner_text())
        # Near the axis: step 1, in all charts.
        window.locator("[aria-labelledby=chart-norm]").hover(position=dict(x=53, y=50))
        window.wait_for_function("() => document.querySelector('[aria-labelledby=chart-lr]').ariaValueText.startsWith('step 1;')")
        name = os.path.basename(bf16.directory)
        window.get_by_label(name, exact=True).uncheck()
        self.assertFalse([curve for curve in self.drawn(window) if f"/{name}/" in curve])
        self.assertTrue(self.drawn(window))
        window.get_by_label("horizontal axis").select_option("tokens")
        tokens = bf16.steps[-1]["tokens"]
        self.assertEqual(loss.get_attribute("aria-valuemax"), str(tokens))
        window.locator("figure:has(#chart-norm) summary").click()
        window.wait_for_selector("figure:has(#chart-norm) tbody")
        cells = window.locator("figure:has(#chart-norm) tbody tr").last.locator("td").all_inner_texts()
        self.assertEqual(cells, ["30", shown(fp8.steps[-1]["norm"])])
        self.assertEqual(self.errors, [])

    def test_maps(self):
        fp8 = real_runs()[1]
        window = self.open(page_of_two())
        maps = window.locator("#heat-fp8 canvas")
        self.assertEqual(maps.count(), len(ROLES))
        colours = maps.nth(0).evaluate("c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
                                       ".data.buffer)).size")
        self.assertGreater(colours, 8)
        last = {t["tensor"]: t for r in fp8.records if "fp8" in r for t in r["fp8"]}
        maps.nth(2).focus()
        window.keyboard.press("ArrowDown")
        said = maps.nth(2).get_attribute("aria-valuetext")
        found = re.fullmatch(r"(\S+), step 30: amax ([\d.,e-]+)", said)
        # Hundredths of log2, in three digits.
        self.assertLess(abs(float(found[2].replace(",", "")) / last[found[1] + ".dout"]["amax"] - 1), 0.01)
        window.locator("#heat-fp8").get_by_label("colour").select_option("underflowed")
        self.assertIn("share underflowed", maps.nth(2).get_attribute("aria-valuetext"))

    def test_a_map_of_a_layer_that_left_fp8(self):
        window = self.open(make(left_fp8()))
        figure = window.locator("#heat-fp8 figure").nth(0)
        figure.locator("summary").click()
        window.wait_for_selector("#heat-fp8 tbody")
        rows = [row.locator("td").all_inner_texts() for row in figure.locator("tbody tr").all()]
        self.assertEqual(rows, [["h.0.fc", "-", "-", "-"], ["h.1.fc", "1", "0", "0"]])
        canvas, said = figure.locator("canvas"), []
        canvas.focus()
        for key in ("ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
            window.keyboard.press(key)
            said.append(canvas.get_attribute("aria-valuetext"))
        self.assertEqual(said, [f"h.1.fc, step {n}: amax {amax}" for n, amax in ((4, "1"), (3, "-"), (2, "0"), (1, "4"))])
        legend = figure.locator(".legend")
        self.assertEqual(legend.inner_text().split(), "≤ 1 ≥ 4, logarithmic; grey: 0; empty: no value".split())
        window.locator("#heat-fp8").get_by_label("colour").select_option("underflowed")
        self.assertEqual(legend.inner_text(), "grey: 0; empty: no value")
        self.assertEqual(self.errors, [])

    def test_maps_of_signals(self):
        """Each run has a map, whose rows are the tensors that have the quantity, kind by kind."""
        window = self.open(page_of_two())
        (heat, map_of_fp8), last = window.locator("#heat-signals canvas").all(), {}
        self.assertTrue(heat.is_visible())
        for record in real_runs()[1].records:
            last |= {t["tensor"]: t for t in record.get("signals", [])}
        blocks = [f"h.{block}.qkv.weight" for block in (0, 1)]
        for quantity, name, value in (
                ("max_logit", "largest attention logit", lambda t: t["max_logit"]),
                ("gradient", "norm of gradient", lambda t: t["gradient"]),
                ("update_ratio", "norm of update over weights", lambda t: t["update"] / t["weight"])):
            window.locator("#heat-signals").get_by_label("colour").select_option(quantity)
            rows = list(data_of(page_of_two())["maps"][-1]["cells"][quantity])
            self.assertEqual(len(rows), 2 if quantity == "max_logit" else len(last))
            self.assertEqual(rows[rows.index(blocks[0]):][:2], blocks)
            map_of_fp8.focus()
            for row in rows:
                found = re.fullmatch(rf"(\S+), step 30: {name} ([\d.,e-]*\d)", map_of_fp8.get_attribute("aria-valuetext"))
                self.assertEqual(found[1], row)
                self.assertAlmostEqual(float(found[2].replace(",", "")) / value(last[row]), 1, delta=0.01)
                window.keyboard.press("ArrowDown")
            for _ in rows:
                window.keyboard.press("ArrowUp")
        self.assertEqual(self.errors, [])

    def test_contrast_and_labels(self):
        fp8 = real_runs()[1]
        alone = make(write_records([r for r in fp8.records if "val_loss" not in r]))  # a run without validation
        for page, width, scheme in ((page_of_two(), WIDE, "light"), (alone, NARROW, "dark")):
            with self.subTest(width=width, scheme=scheme):
                window = self.open(page, width, scheme)
                # One of the many tables of curves and maps, since all are made alike.
                window.eval_on_selector_all("section:not(#curves, [id$=maps]) details, figure:has(#chart-loss) details, "
                                            "figure:has(canvas) details", "all => all.forEach((e) => (e.open = true))")
                window.wait_for_selector("#curves tbody tr, [id$=maps] tbody tr")
                self.assertEqual(self.violations(window), [])
                self.assertEqual(window.evaluate(CONTRAST_IN_DRAWINGS), [])
                self.assertEqual(self.errors, [])

    def test_a_phone_need_not_scroll_sideways(self):
        window = self.open(page_of_two(), NARROW, "dark")
        window.eval_on_selector_all("details", "all => all.forEach((e) => (e.open = true))")
        self.assertLessEqual(window.evaluate("document.documentElement.scrollWidth"), NARROW)
        self.assertEqual(window.evaluate(CONTRAST_IN_DRAWINGS), [])
        self.assertEqual(self.errors, [])

    def test_bad_contrast_and_missing_labels_are_seen(self):
        window = self.open(page_of_two())
        window.evaluate("document.documentElement.style.setProperty('--quiet', '#b0b0b0')")
        window.evaluate("document.documentElement.style.setProperty('--run1', '#e0d0d0')")
        window.eval_on_selector("[role=slider]", "e => e.removeAttribute('aria-labelledby')")
        rules = {"color-contrast", "aria-input-field-name"}
        self.assertEqual({name for name, _ in self.violations(window, *rules)}, rules)
        faint = window.evaluate(CONTRAST_IN_DRAWINGS)
        self.assertEqual({least for _, least, _ in faint}, {3, 4.5})


if __name__ == "__main__":
    unittest.main()
