"use strict";
// Draws the report that stands in the page as JSON. Every text goes in as text, never as markup.

/** @typedef {{name: string, title: string, caption: string, spec: object}} Figure */

const page = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const wide = matchMedia("(min-width: 62rem)");
const PER_PAGE = 50;
const SIGNS = { good: "✓", warn: "▲", bad: "✕", plain: "●" };
const LONG = 32; // letters of a cell that is broken into lines
const VERDICTS = {
  pass: "good", better: "good", "no worse": "good", fail: "bad", worse: "bad", error: "bad", damaged: "bad", failed: "bad",
  incomparable: "warn", underpowered: "warn",
  "safe to deploy": "good", "answers stay": "good", "answers change": "warn", "answers change, right ones stay": "warn",
  "right answers lost": "bad", "quality fell": "bad", open: "plain", "no verdict": "plain", "no answers": "plain",
};
const TONES = { harmful: "bad", neutral: "plain", beneficial: "good" };
const NARROW = 480; // pixels of a chart below which its legend stands above it
const COLUMNS = 7; // of a table, from which it stands closer
const EXAMPLES = 10; // changed inputs of the first screen, and of paper
/** What words mean, as docs/reference/glossary.md has them; shown where the pointer or the focus is on one. */
const TERMS = {
  "flip@1": "Share of the inputs whose first answer (top-1) differs between reference and candidate.",
  "top-1": "The first answer to an input: the document, class or text that a model ranks first.",
  "noise floor": "What the reference changes against itself, run again with another batch size and order.",
  "separation": "The gap in units of 2 epsilon. At 1 or more the first answer cannot change.",
  "at risk": "Share of the inputs with a separation below 1: the change of scores is large enough to move the first answer.",
  "epsilon": "The largest change of any score of one input, over all items.",
  "gap": "Score of rank 1 minus that of rank 2, at full precision: by how much the first answer leads.",
  "right answers lost": "Of the inputs whose first answer was right, the share where it is right no more (gold_lost@1).",
  "gold_lost": "Of the inputs with a relevant item in the reference's first k, the share where one of these left the candidate's.",
  "harmful": "A relevant first answer was replaced by one that is not relevant.",
  "beneficial": "A first answer that was not relevant was replaced by a relevant one.",
  "neutral": "Another first answer, and as many relevant ones as before.",
  "coverage": "Share of the answers that the stability check accepts, without labels.",
  "nDCG@10": "How well relevant documents rank among the first ten, from 0 to 1.",
  "rbo": "Rank-biased overlap of two rankings: 1 if they are the same, 0 if they share nothing.",
  "bits per weight": "Mean bits that a weight of the quantized layers takes; scales are counted.",
  "95 %": "The interval that holds the true value in 95 of 100 such measurements.",
  "Holm": "p values adjusted for the number of rules that are asked at once.",
  "underpowered": "Too few inputs to tell.",
};
const TERM = new RegExp(`(?<![\\w@.-])(${Object.keys(TERMS).sort((a, b) => b.length - a.length).join("|")})(?![\\w-])`, "i");
const MEANINGS = Object.fromEntries(Object.entries(TERMS).map(([name, text]) => [name.toLowerCase(), text]));

/**
 * An element; children that are no elements become text. What is null, false or undefined is left out.
 * @param {string} name of the element, with classes: "p.note"
 * @param {Object<string, any>} [given] attributes; functions are listeners
 */
function el(name, given = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  made.classList.add(...classes);
  for (const [key, value] of Object.entries(given)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (known(value) && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((each) => known(each) && each !== false && each !== ""));
  return made;
}

/** A name or text from outside: whatever its direction, it does not turn what stands around it. */
const outside = (text, name = "bdi") => el(name, { dir: "auto" }, text);
/** A name from outside, which is broken into lines where its parts end. */
const named = (text, name) => outside(text.split(/(?<=[_./:=@])(?=\w)/).flatMap((part, place) => (place ? [el("wbr"), part] : part)), name);

/** Text in which the first word that has a meaning here tells it, to the pointer and, unless it is in a list, to the keyboard. */
function told(text, focus = true) {
  const found = TERM.exec(text);
  if (!found) return [text];
  const word = el("span.term", { tabindex: focus ? 0 : null, "data-term": found[1].toLowerCase() }, found[1]);
  return [text.slice(0, found.index), word, text.slice(found.index + found[1].length)];
}

const count = (number) => number.toLocaleString("en-US");
const plural = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const known = (value) => value !== null && value !== undefined;

// --- charts: drawn one after another when there is time, and again in the other colours -------------

/** @type {Map<Element, {figure: Figure, drawn: string|null}>} */
const charts = new Map();
const hidden = () => Promise.reject(new Error("a report loads nothing"));
let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
let drawing = Promise.resolve();

/** A box with text beside a place of the screen; none without text. */
function box(value, x, y, above = y) {
  let shown = document.getElementById("tip");
  if (!known(value)) return shown && shown.remove();
  if (!shown) document.body.append((shown = el("div", { id: "tip", role: "tooltip" })));
  const rows = typeof value === "object" ? Object.entries(value) : null;
  shown.replaceChildren(rows ? el("dl", {}, rows.map(([key, text]) => [el("dt", {}, key), el("dd", {}, outside(String(text)))])) : outside(String(value)));
  shown.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - shown.offsetWidth - 8))}px`;
  shown.style.top = `${y + 18 + shown.offsetHeight > innerHeight ? Math.max(4, above - shown.offsetHeight - 10) : y + 18}px`;
}

/** What stands under the pointer in a chart, as text. */
const tip = (handler, event, item, value) => box(value, event.clientX, event.clientY);

/** What a word means, or what a mark of a chart stands for, where the pointer or the focus is. */
function meaning({ target, type }) {
  const word = target instanceof Element && target.closest("[data-term]");
  if (word) {
    const { left, bottom, top } = word.getBoundingClientRect();
    word.setAttribute("aria-describedby", "tip");
    box(MEANINGS[word.dataset.term], left - 14, bottom - 12, top);
  } else if (type === "focusout" || (target instanceof Element && !target.closest(".chart"))) box(null);
}

/** The marks of a chart that tell something, each once, in their order. */
function marksOf(place) {
  const found = new Map();
  for (const mark of place.querySelectorAll("svg [aria-roledescription]"))
    if (mark.__data__ && mark.__data__.datum && known(mark.__data__.tooltip) && !found.has(mark.getAttribute("aria-label"))) found.set(mark.getAttribute("aria-label"), mark);
  return [...found.values()];
}

/** The arrow keys go through the marks of a chart, and Enter goes where one leads. */
function steps(place, event) {
  const marks = marksOf(place);
  const at = marks.indexOf(document.activeElement);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marks.length - 1 }[event.key];
  if (event.target instanceof HTMLSelectElement || !marks.length) return;
  if (known(next)) {
    const mark = marks[Math.max(0, Math.min(next, marks.length - 1))];
    mark.setAttribute("tabindex", "-1");
    mark.focus({ preventScroll: true });
    const { left, bottom, top, width } = mark.getBoundingClientRect();
    box(mark.__data__.tooltip, left + width / 2, bottom - 12, top);
  } else if (event.key === "Enter" && at >= 0) lead(marks[at].__data__.datum.open);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** Go to a place in the page, "#NAME", or to another page of the same server, "/NAME". */
function lead(to) {
  if (typeof to !== "string") return;
  if (to.startsWith("#")) location.hash = to;
  else if (/^\/(?!\/)/.test(to)) location.assign(to);
}

async function draw(place, chart) {
  if (!window.vegaEmbed || chart.drawn === theme || !place.offsetParent) return;
  const { spec } = chart.figure;
  const room = place.clientWidth;
  const fitted = "mark" in spec || "layer" in spec ? { width: "container", autosize: { type: "fit-x", contains: "padding" } } : {};
  if (spec.width && spec.width.step) { // squares are as wide as there is room for, beside the names of rows
    delete fitted.autosize;
    const { x, y } = spec.encoding;
    const across = new Set(spec.data.values.map((row) => row[x.field])).size;
    const limit = Math.min(y.axis.labelLimit, room / 3);
    const names = Math.min(limit, 6.5 * Math.max(...spec.data.values.map((row) => String(row[y.field]).length)));
    fitted.width = { step: Math.max(24, Math.min(spec.width.step, Math.floor((room - names - 24) / across))) };
    fitted.encoding = { ...spec.encoding, y: { ...y, axis: { ...y.axis, labelLimit: limit } } };
  }
  // several charts: as many beside each other as fit, and none wider than the page
  if (spec.facet) Object.assign(fitted, { columns: Math.max(1, Math.floor(room / 330)), spec: { ...spec.spec, width: Math.min(spec.spec.width, room - 80) } });
  if (spec.vconcat) fitted.vconcat = spec.vconcat.map((each) => ({ ...each, width: Math.min(each.width, room - 110) }));
  chart.drawn = theme;
  const { view } = await window.vegaEmbed(place, { description: chart.figure.title, ...chart.figure.spec, ...fitted }, {
    ast: true, // no code is made of what a spec says
    actions: false,
    config: place.clientWidth < NARROW ? { ...page.themes[theme], legend: { ...page.themes[theme].legend, orient: "top", columns: 2 } } : page.themes[theme],
    defaultStyle: false,
    loader: { load: hidden, sanitize: hidden, http: hidden, file: hidden },
    mode: "vega-lite",
    renderer: "svg",
    tooltip: tip,
  });
  // a datum that has a place in the page, "#NAME", leads there
  view.addEventListener("click", (_, item) => item && item.datum && lead(item.datum.open));
}

/** Draw what is to be seen and is not drawn yet in these colours. */
function drawAll() {
  root.dataset.charts = theme;
  for (const [place, chart] of charts)
    drawing = drawing.then(() => draw(place, chart)).catch((error) => {
      place.replaceChildren(el("p.note", {}, "This chart could not be drawn."));
      console.error(error);
    });
}

function figure(one) {
  const place = el("div.chart", { role: "group", tabindex: 0, keydown: (event) => steps(place, event), "aria-label": `${one.title}. Arrow keys go from mark to mark.` });
  charts.set(place, { figure: one, drawn: null });
  // several small charts beside each other take the whole width
  return el("figure", { id: `figure-${one.name}`, class: "mark" in one.spec || "layer" in one.spec ? null : "wide" }, el("h3", {}, one.title), place, el("figcaption", {}, one.caption));
}

// --- tables ----------------------------------------------------------------------------------------

const MANY = 12; // rows from which a table can be searched

/** What a cell is sorted by: its first number; what has none comes last. */
function number(text) {
  const found = /[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?/i.exec(text);
  return text.includes("∞") ? Infinity : found ? parseFloat(found[0].replaceAll(",", "")) : -Infinity;
}

/** What a column is about, if its head has a meaning. */
const meant = (text) => (TERM.exec(text) || [])[1]?.toLowerCase() || null;

/** What a cell of numbers looks like: "-0.3 %", "-0.02 to +0.01", "+1.2 pp (-0.3 to +2.7)"; it is no formula. */
const NUMBERS = /^[-+]?[\d.,]+( %| pp)?( to [-+]?[\d.,]+( %| pp)?)?( \([-+\d.,% to]*\))?$/;

/** A cell of CSV that no spreadsheet runs. */
function csvCell(value) {
  const text = known(value) ? String(value) : "";
  const safe = typeof value === "string" && /^[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(text) && !NUMBERS.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** A button that saves rows, which it asks for when it is pressed, as a CSV file. */
function save(name, rows) {
  return el("button.save", { title: "Save what is shown as CSV", click: () => {
    const text = `\ufeff${rows().map((row) => row.map(csvCell).join(",")).join("\r\n")}\r\n`;
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    el("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  } }, "CSV");
}

// --- what is searched for and chosen stands in the address -----------------------------------------

/** The parts of the address behind #, as a form has them; none where it names a section. */
const kept = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

/** Keep parts in the address; what is empty goes. */
function keep(parts) {
  const now = kept();
  for (const [name, value] of Object.entries(parts)) known(value) && value !== "" ? now.set(name, value) : now.delete(name);
  const text = now.toString().replaceAll("+", "%20");
  if (`#${text}` !== location.hash && (text || location.hash.includes("="))) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

/** A number and its interval, of which neither is broken into lines. */
const inParts = (text) => el("bdi", { dir: "auto" }, text.split(/( )(?=\()/).map((part) => (part === " " ? part : el("span.part-of", {}, part))));

function grid(one, at) {
  const words = (place) => one.words.includes(place);
  const longest = one.head.map((_, place) => Math.max(...one.rows.map((row) => row[place].length)));
  const name = (place) => (!words(place) ? "number" : longest[place] > LONG ? "long" : "short");
  const cell = (tag, text, place, made = words(place) ? named(text) : inParts(text)) => {
    const tone = tag === "td" && words(place) && VERDICTS[text];
    return el(`${tag}.${name(place)}`, { "data-head": one.head[place] }, tone ? el(`span.badge.${tone}`, {}, `${SIGNS[tone]} ${text}`) : made);
  };
  const rows = one.rows.map((texts, row) => ({
    texts,
    row: el("tr", {}, texts.map((text, place) => (place || !one.links[row] ? cell(place ? "td" : "th", text, place)
      : cell("th", text, place, el("a", { href: `#${one.links[row]}` }, named(text)))))),
  }));
  const body = el("tbody", {}, rows.map((each) => each.row));
  const heads = one.head.map((text, place) => cell("th", text, place, rows.length < 2 ? outside(text) : el("button.sort", { click: () => sort(place), "data-term": meant(text) }, outside(text))));
  const sort = (place) => {
    const up = heads[place].getAttribute("aria-sort") === "descending";
    const by = words(place) ? (a, b) => a.texts[place].localeCompare(b.texts[place], "en", { numeric: true }) : (a, b) => number(a.texts[place]) - number(b.texts[place]);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[place].setAttribute("aria-sort", up ? "ascending" : "descending");
    body.replaceChildren(...[...rows].sort((a, b) => (up ? by(a, b) : by(b, a))).map((each) => each.row));
  };
  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { texts, row } of rows) row.hidden = !wanted.every((word) => texts.join(" ").toLowerCase().includes(word));
  };
  const search = el("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", input: () => {
    filter();
    keep({ [`rows-${at}`]: search.value });
  } });
  search.value = kept().get(`rows-${at}`) || "";
  filter();
  // of the rows that are shown, in the order that they are shown in
  const shown = () => [...body.children].filter((row) => !row.hidden).map((row) => [...row.children].map((each) => each.textContent));
  return el("div.grid", {},
    one.title && el("h3", {}, one.title),
    rows.length >= MANY && el("div.filters", {}, search, save(`${at}.csv`, () => [one.head, ...shown()])),
    rows.length > 0 && el(rows.length >= MANY ? "div.scroll.tall" : "div.scroll", { tabindex: 0 }, el(one.head.length > COLUMNS ? "table.close" : "table", {}, el("thead", {}, el("tr", {}, heads)), body)),
    one.lines.map((line) => el("p.note", {}, line)));
}

// --- the inputs that changed -----------------------------------------------------------------------

const score = (value) => (known(value) ? value.toFixed(4) : "–");
const short = (value) => (known(value) ? String(+value.toPrecision(3)) : "–");

class Changes {
  constructor(data) {
    this.data = data;
    this.kinds = new Set(Object.keys(data.kinds));
    this.found = data.changed.map((_, place) => place);
    this.at = -1; // the place in `found` that is chosen
    this.open = false;
    this.first = 0; // of those listed
    this.haystack = null;
    this.search = el("input", { type: "search", placeholder: "Search ids and texts", "aria-label": "Search ids and texts", input: () => this.filter() });
    this.search.value = kept().get("find") || "";
    const wanted = kept().get("kinds");
    if (known(wanted)) this.kinds = new Set(wanted.split(",").filter((kind) => kind in data.kinds));

    this.list = el("ol.changes", { role: "listbox", tabindex: 0, "aria-label": "Changed inputs" });
    this.pager = el("div.pager");
    this.pane = el("section.pane", { "aria-live": "polite", "aria-label": "The chosen input" });
    const chips = Object.entries(data.kinds).map(([kind, number]) =>
      el("label.chip", {}, el("input", { type: "checkbox", checked: this.kinds.has(kind), change: (event) => this.toggle(kind, event.target.checked) }), this.badge(kind), ` ${count(number)}`));
    this.box = el("div.explorer", {},
      el("div.filters", {}, this.search, chips.length > 1 && el("div.chips", { role: "group", "aria-label": "Kinds of changes" }, chips), save("changed.csv", () => this.table())),
      el("div.columns", {}, el("div.master", {}, this.list, this.pager), this.pane),
      data.notes.map((line) => el("p.note", {}, line)));
    this.filter();
  }

  badge(kind) {
    return el(`span.badge.${TONES[kind] || "plain"}`, { "data-term": meant(kind || "") }, `${SIGNS[TONES[kind] || "plain"]} ${kind || "no label"}`);
  }

  item(place) {
    return known(place) ? this.data.items[place] : [null, null];
  }

  toggle(kind, wanted) {
    this.kinds[wanted ? "add" : "delete"](kind);
    this.filter();
  }

  /** List what has every word that is searched for, in its id or its texts, and is of a kind that is wanted. */
  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { changed } = this.data;
    if (words.length && !this.haystack)
      this.haystack = changed.map((one) => [one.id, one.text, ...this.firsts(one).flatMap((place) => this.item(place))].filter(Boolean).join("\n").toLowerCase());
    this.found = changed.map((_, place) => place).filter((place) =>
      (!this.data.labelled || this.kinds.has(changed[place].kind)) && words.every((word) => this.haystack[place].includes(word)));
    this.at = -1;
    this.first = 0;
    if (this.started) keep({ find: this.search.value, kinds: this.kinds.size === Object.keys(this.data.kinds).length ? "" : [...this.kinds].join(",") || "none", q: "" });
    this.draw();
    if (wide.matches && !this.started) this.choose(0, { quiet: true });
    this.started = true;
  }

  /** The first answers of an input, in both arms. */
  firsts(one) {
    return [one.before, one.after];
  }

  /** What is listed, as rows with a head. */
  table() {
    const arms = this.data.arms.flatMap((arm) => [`${arm}: answer`, `${arm}: its text`]);
    const head = ["input", "text", "kind", ...arms, "gap", "separation", "new answer was at rank", "old answer is at rank"];
    return [head, ...this.found.map((place) => this.data.changed[place]).map((one) => [
      one.id, one.text, one.kind, ...this.firsts(one).flatMap((item) => this.item(item)), one.gap, one.separation, one.rank_before, one.rank_after])];
  }

  /** The worst inputs with their texts, for the first screen and for paper; none where no text is known. */
  examples() {
    const { data } = this;
    const listed = data.changed.slice(0, EXAMPLES);
    if (!listed.some((one) => one.text || this.firsts(one).some((place) => this.item(place)[1]))) return null;
    const rights = (one) => [one.was_right, one.is_right];
    const line = (one, item, arm) => {
      const [id, text] = this.item(item);
      const right = rights(one)[arm];
      const sign = right === true ? "✓" : right === false ? "✕" : "";
      return el("div", {}, el("dt", {}, data.arms[arm]), el("dd", {},
        sign && el(`b.${right ? "good" : "bad"}`, { "aria-label": right ? data.right : `not ${data.right}`, role: "img" }, sign), outside(text || id || "–")));
    };
    return el("section.examples", { id: "examples" },
      el("h2", {}, listed.length < data.changed.length ? `The worst of ${plural(Object.values(data.kinds).reduce((a, b) => a + b, 0) || data.changed.length, "change")}` : "What changed"),
      el("ol", {}, listed.map((one) => el("li", {},
        el("p", {}, this.badge(one.kind), el("a", { href: this.link(one) }, outside(one.text || one.id))),
        el("dl", {}, this.firsts(one).map((item, arm) => line(one, item, arm)))))),
      data.changed.length > 3 && el("p.note", {}, el("a", { href: "#changed" }, `${plural(data.changed.length, "change")} below`)));  // a phone shows 3
  }

  draw() {
    const { data, found } = this;
    const last = Math.min(this.first + PER_PAGE, found.length);
    this.list.replaceChildren(...found.slice(this.first, last).map((place, row) => this.row(data.changed[place], this.first + row)));
    const turn = (to, text, can) => el("button", { disabled: !can, click: () => this.turn(to) }, text);
    const told = found.length ? `${count(this.first + 1)} to ${count(last)} of ${plural(found.length, "change")}` : "No change is like that.";
    this.pager.replaceChildren(...[
      el("span", {}, told),
      found.length > PER_PAGE && turn(this.first - PER_PAGE, "Earlier", this.first > 0),
      found.length > PER_PAGE && turn(this.first + PER_PAGE, "Later", last < found.length)].filter(Boolean));
    this.show();
  }

  turn(first) {
    this.first = Math.max(0, first);
    this.draw();
    this.list.scrollTop = 0;
  }

  row(one, place) {
    const figures = [known(one.gap) && `gap ${short(one.gap)}`, known(one.separation) && `separation ${short(one.separation)}`].filter(Boolean);
    return el("li", { id: `change-${place}`, role: "option", "aria-selected": "false", click: () => this.choose(place, { focus: true }) },
      el("div.head", {}, this.badge(one.kind), named(one.id, "b")),
      one.text && outside(one.text, "p"),
      el("div.note", {}, figures.map((text, place) => [place > 0 && ", ", told(text, false)])));
  }

  /** Choose an input, and open it. */
  choose(place, { quiet = false, focus = false } = {}) {
    if (!this.found.length) return;
    this.at = Math.max(0, Math.min(place, this.found.length - 1));
    this.open = true;
    if (this.at < this.first || this.at >= this.first + PER_PAGE) this.turn(this.at - (this.at % PER_PAGE));
    else this.show();
    const row = document.getElementById(`change-${this.at}`);
    if (row && !quiet) row.scrollIntoView({ block: "nearest" });
    if (focus) this.list.focus({ preventScroll: true });
    if (!quiet) keep({ q: this.data.changed[this.found[this.at]].id });
  }

  link(one) {
    return `#q=${encodeURIComponent(one.id)}`;
  }

  /** Open the input of a name, whatever is filtered. */
  find(id) {
    const place = this.data.changed.findIndex((one) => one.id === id);
    if (place < 0) return false;
    if (!this.found.includes(place)) {
      this.search.value = "";
      this.kinds = new Set(Object.keys(this.data.kinds));
      this.box.querySelectorAll(".chip input").forEach((each) => { each.checked = true; });
      this.filter();
    }
    this.choose(this.found.indexOf(place));
    this.box.scrollIntoView({ block: "start" });
    return true;
  }

  close() {
    this.open = false;
    this.show();
  }

  show() {
    const one = this.open && this.at >= 0 ? this.data.changed[this.found[this.at]] : null;
    for (const row of this.list.children) row.setAttribute("aria-selected", String(row.id === `change-${this.at}`));
    this.list.setAttribute("aria-activedescendant", this.at >= 0 ? `change-${this.at}` : "");
    this.pane.classList.toggle("open", one !== null);
    root.classList.toggle("reading", one !== null);
    this.pane.replaceChildren(...(one ? this.detail(one) : [el("p.note", {}, "Choose an input to see both answers.")]));
    this.pane.scrollTop = 0;
  }

  detail(one) {
    const { data } = this;
    return [
      el("header", {},
        el("div.head", {}, this.badge(one.kind), outside(one.id, "b"), el("a", { href: this.link(one), title: "Link to this input" }, "link"),
          el("span.space"),
          el("button", { click: () => this.choose(this.at - 1), disabled: this.at <= 0, "aria-label": "Previous" }, "‹"),
          el("button", { click: () => this.choose(this.at + 1), disabled: this.at + 1 >= this.found.length, "aria-label": "Next" }, "›"),
          el("button", { click: () => this.close(), "aria-label": "Close" }, "✕")),
        one.text && outside(one.text, "p"),
        el("dl.figures", {}, this.facts(one).map(([name, value]) => el("div", {}, el("dt", {}, told(name)), el("dd", {}, value))))),
      el("div.arms", {}, ["reference", "candidate"].map((arm, place) =>
        el("div.arm", {}, el("h4", {}, data.arms[place]), this.ranking(one, arm)))),
      one.missed && el("div.missed", {}, el("h4", {}, `${data.right[0].toUpperCase()}${data.right.slice(1)}, but not shown above`),
        el("ul", {}, one.missed.map(([item, before, after]) => el("li", {},
          outside(this.item(item)[0], "b"), `: rank ${known(before) ? count(before) : "unknown"} before, ${known(after) ? count(after) : "unknown"} now`,
          known(this.item(item)[1]) && this.text(this.item(item)[1]))))),
    ].filter(Boolean);
  }

  facts(one) {
    const found = [["gap", short(one.gap)]];
    if (known(one.separation)) found.push(["separation", short(one.separation)]);
    if (known(one.rank_before)) found.push(["new answer was at rank", count(one.rank_before)]);
    if (known(one.rank_after)) found.push(["old answer is at rank", count(one.rank_after)]);
    return found;
  }

  /** A text that opens where it is cut. */
  text(text) {
    const made = outside(text, "p");
    made.classList.add("cut");
    made.addEventListener("click", () => made.classList.toggle("cut"));
    return made;
  }

  ranking(one, arm) {
    const own = arm === "reference" ? 1 : 2;
    const listed = one[arm].map((row, place) => {
      const [id, text] = this.item(row[0]);
      const was = row[4];
      const moved = !known(was) ? "new" : was === place + 1 ? "" : `${was > place + 1 ? "▲" : "▼"} from ${count(was)}`;
      return el("li", { class: this.firsts(one).includes(row[0]) ? "answer" : null },
        el("div.head", {}, el("span.rank", {}, String(place + 1)), named(id, "b"),
          row[3] > 0 && el("span.badge.good", {}, `✓ ${this.data.right}`),
          arm !== "reference" && moved && el("span.note", {}, moved),
          el("span.space"),
          el("span.score", { title: `reference ${score(row[1])}, candidate ${score(row[2])}` }, score(row[own]))),
        known(text) && this.text(text));
    });
    return el("ol.ranking", {}, listed);
  }
}

// --- the page --------------------------------------------------------------------------------------

/** @type {Changes|null} */
let changes = null;

/** @type {Map<string, {part: object, place: Element}>} sections of which one is shown at a time */
const parts = new Map();

function choice(listed) {
  const place = el("div.part", { "aria-live": "polite" });
  listed.forEach((part) => parts.set(part.name, { part, place }));
  if (listed.length) place.append(el("p.note", {}, "The first run of the study; a square of the map, a point of a chart or a row of the table opens another."), section(listed[0]));
  return place;
}

function section(one) {
  const inside = [
    one.about.map((line) => el("p", {}, told(line))),
    one.figures.length > 0 && el("div.figures", {}, one.figures.map(figure)),
    one.grids.map((each, place) => grid(each, `${one.name}${place || ""}`)),
    one.parts.length > 0 && choice(one.parts),
  ];
  if (one.changed) inside.push((changes = new Changes(one.changed)).box);
  const title = el("h2", {}, one.title);
  if (!one.folded) return el("section", { id: one.name }, title, inside);
  return el("details", { id: one.name, toggle: drawAll }, el("summary", {}, title), inside);
}

function command(text) {
  const copy = el("button", { "aria-label": "Copy", click: () => navigator.clipboard && navigator.clipboard.writeText(text).then(() => { copy.textContent = "copied"; }, () => {}) }, "copy");
  return el("div.command", {}, el("code", {}, text.split(/( )/).map((word) => (word === " " ? word : el("span.word", {}, word)))), copy);
}

function paint(to) {
  root.dataset.theme = theme = to;
  drawAll();
}

function help() {
  const keys = [["j, k", "next and previous change"], ["/", "search"], ["Enter", "open the chosen change, or what a mark of a chart leads to"], ["← →", "marks of a chart that has the focus"], ["Esc", "close"], ["?", "this help"]];
  return el("dialog", { id: "help", click: (event) => event.target.id === "help" && event.target.close() },
    el("h2", {}, "Keys"), el("dl", {}, keys.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
    el("button", { click: () => document.getElementById("help").close() }, "Close"));
}

/** The first sentence is the headline; the rest stands below it. */
const sentences = (text) => text.split(/(?<=[.?!]) (?=[A-Z])/);

function firstScreen() {
  const [headline, ...more] = sentences(page.verdict);
  const examples = changes && changes.examples();
  const meant = (page.words.length > 0 || page.warnings.length > 0) && el("div.means", {},
    page.words.length > 0 && el("h2", {}, "What it means"), page.words.map((line) => el("p", {}, told(line))),
    page.warnings.map((line) => el("p.warning", {}, `▲ ${line}`)));
  const steps = page.steps.length > 0 && el("div.steps", {}, el("h2", {}, "What to do"),
    el("ul", {}, page.steps.map((one) => el("li", {}, one.text, one.command && command(one.command)))));
  return el("section.first", { id: "top" },
    el("p.title", {}, outside(page.title), page.about && el("span.note", {}, page.about)),
    el("h1", {}, page.word && el(`span.verdict.${page.tone}`, {}, `${SIGNS[page.tone]} ${page.word}`), headline),
    more.length > 0 && el("p.rule", {}, more.join(" ")),
    page.numbers.length > 0 && el("div.numbers", {}, page.numbers.map((one) => el("div", {}, el("span.label", {}, told(one.label)), el("strong", {}, one.value), el(/\d/.test(one.note) ? "span.note" : "span.note.said", {}, told(one.note))))),
    examples ? el("div.split.wide-left", {}, examples, el("div.side", {}, steps, meant)) : el("div.split", {}, meant, steps));
}

function build() {
  const links = page.sections.map((one) => el("a", { href: `#${one.name}` }, one.title));
  const sections = page.sections.map(section);
  document.title = page.word ? `${page.word}: ${page.title}` : page.title;
  document.body.append(
    el("header.bar", {}, el("span.brand", {}, "quantdrift"), el("nav", { "aria-label": "Sections" }, links), el("span.space"),
      el("button", { click: () => paint(theme === "dark" ? "light" : "dark"), "aria-label": "Light or dark" }, "◐"),
      el("button", { click: () => document.getElementById("help").showModal(), "aria-label": "Keys" }, "?")),
    el("main", {}, firstScreen(), sections),
    el("footer", {}, `Made by quantdrift ${page.version}. This file is whole: it loads nothing.`),
    help());
  go();
}

/** Where the address says: to an input, or to a section, which is opened. */
function go() {
  let name = location.hash.slice(1);
  try {
    name = decodeURIComponent(name);
  } catch { /* it stays as it is */ }
  const id = kept().get("q");
  if (id && changes && changes.find(id)) return;
  if (changes && (kept().has("find") || kept().has("kinds"))) changes.box.scrollIntoView();
  const chosen = parts.get(name);
  if (chosen) {
    chosen.place.replaceChildren(section(chosen.part));
    drawAll();
  }
  const place = document.getElementById(name);
  if (place instanceof HTMLDetailsElement) place.open = true;
  if (place) place.scrollIntoView();
}

function keys(event) {
  const typing = event.target instanceof HTMLInputElement && event.target.type === "search";
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "?" && !typing) return document.getElementById("help").showModal();
  if (event.key === "Escape") box(null);
  if (!changes) return;
  const listed = event.target === changes.list;
  const step = { j: 1, k: -1, ...(listed ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
  if (event.key === "Escape") {
    if (typing) changes.list.focus({ preventScroll: true });
    else changes.close();
  } else if (event.key === "Enter" && (typing || listed)) changes.choose(Math.max(changes.at, changes.first), { focus: true });
  else if (typing) return;
  else if (step) changes.choose(changes.at + step, { focus: true });
  else if (event.key === "/") changes.search.focus();
  else return;
  event.preventDefault();
}

build();
addEventListener("hashchange", go);
addEventListener("keydown", keys);
for (const type of ["pointerover", "focusin", "focusout"]) addEventListener(type, meaning);
addEventListener("DOMContentLoaded", drawAll);
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open]):not(#all-metrics)")];
  folded.forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
