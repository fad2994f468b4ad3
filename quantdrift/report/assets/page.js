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
};
const TONES = { harmful: "bad", neutral: "plain", beneficial: "good" };

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
const count = (number) => number.toLocaleString("en-US");
const plural = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const known = (value) => value !== null && value !== undefined;

// --- charts: drawn one after another when there is time, and again in the other colours -------------

/** @type {Map<Element, {figure: Figure, drawn: string|null}>} */
const charts = new Map();
const hidden = () => Promise.reject(new Error("a report loads nothing"));
let theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
let drawing = Promise.resolve();

/** What stands under the pointer in a chart, as text. */
function tip(handler, event, item, value) {
  let box = document.getElementById("tip");
  if (!known(value)) return box && box.remove();
  if (!box) document.body.append((box = el("div", { id: "tip", role: "tooltip" })));
  const rows = typeof value === "object" ? Object.entries(value) : [["", String(value)]];
  box.replaceChildren(el("dl", {}, rows.map(([key, text]) => [el("dt", {}, key), el("dd", {}, outside(String(text)))])));
  const { clientX: x, clientY: y } = event;
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${y + 18 + box.offsetHeight > innerHeight ? y - box.offsetHeight - 10 : y + 18}px`;
}

async function draw(place, chart) {
  if (!window.vegaEmbed || chart.drawn === theme || !place.offsetParent) return;
  const { spec } = chart.figure;
  const single = ("mark" in spec || "layer" in spec) && typeof (spec.width || 0) === "number";
  const fitted = single ? { width: "container", autosize: { type: "fit-x", contains: "padding" } } : {};
  chart.drawn = theme;
  const { view } = await window.vegaEmbed(place, { description: chart.figure.title, ...chart.figure.spec, ...fitted }, {
    ast: true, // no code is made of what a spec says
    actions: false,
    config: page.themes[theme],
    defaultStyle: false,
    loader: { load: hidden, sanitize: hidden, http: hidden, file: hidden },
    mode: "vega-lite",
    renderer: "svg",
    tooltip: tip,
  });
  // a datum that has a place in the page, "#NAME", leads there
  view.addEventListener("click", (_, item) => {
    const to = item && item.datum && item.datum.open;
    if (typeof to === "string" && to.startsWith("#")) location.hash = to;
  });
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
  const place = el("div.chart", { role: "img", "aria-label": one.title });
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

function grid(one) {
  const words = (place) => one.words.includes(place);
  const longest = one.head.map((_, place) => Math.max(...one.rows.map((row) => row[place].length)));
  const name = (place) => (!words(place) ? "number" : longest[place] > LONG ? "long" : "short");
  const cell = (tag, text, place, made = outside(text)) => {
    const tone = tag === "td" && words(place) && VERDICTS[text];
    return el(`${tag}.${name(place)}`, {}, tone ? el(`span.badge.${tone}`, {}, `${SIGNS[tone]} ${text}`) : made);
  };
  const rows = one.rows.map((texts, at) => ({
    texts,
    row: el("tr", {}, texts.map((text, place) => (place || !one.links[at] ? cell(place ? "td" : "th", text, place)
      : cell("th", text, place, el("a", { href: `#${one.links[at]}` }, outside(text)))))),
  }));
  const body = el("tbody", {}, rows.map((each) => each.row));
  const heads = one.head.map((text, place) => cell("th", text, place, rows.length < 2 ? outside(text) : el("button.sort", { click: () => sort(place) }, outside(text))));
  const sort = (place) => {
    const up = heads[place].getAttribute("aria-sort") === "descending";
    const by = words(place) ? (a, b) => a.texts[place].localeCompare(b.texts[place], "en", { numeric: true }) : (a, b) => number(a.texts[place]) - number(b.texts[place]);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[place].setAttribute("aria-sort", up ? "ascending" : "descending");
    body.replaceChildren(...[...rows].sort((a, b) => (up ? by(a, b) : by(b, a))).map((each) => each.row));
  };
  const search = el("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", input: () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { texts, row } of rows) row.hidden = !wanted.every((word) => texts.join(" ").toLowerCase().includes(word));
  } });
  return el("div.grid", {},
    one.title && el("h3", {}, one.title),
    rows.length >= MANY && search,
    rows.length > 0 && el("div.scroll", { tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)),
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
    this.list = el("ol.changes", { role: "listbox", tabindex: 0, "aria-label": "Changed inputs" });
    this.pager = el("div.pager");
    this.pane = el("section.pane", { "aria-live": "polite", "aria-label": "The chosen input" });
    const chips = Object.entries(data.kinds).map(([kind, number]) =>
      el("label.chip", {}, el("input", { type: "checkbox", checked: true, change: (event) => this.toggle(kind, event.target.checked) }), this.badge(kind), ` ${count(number)}`));
    this.box = el("div.explorer", {},
      el("div.filters", {}, this.search, chips.length > 1 && el("div.chips", { role: "group", "aria-label": "Kinds of changes" }, chips)),
      el("div.columns", {}, el("div.master", {}, this.list, this.pager), this.pane),
      data.notes.map((line) => el("p.note", {}, line)));
    this.filter();
  }

  badge(kind) {
    return el(`span.badge.${TONES[kind] || "plain"}`, {}, `${SIGNS[TONES[kind] || "plain"]} ${kind || "no label"}`);
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
      this.haystack = changed.map((one) => [one.id, one.text, ...this.item(one.before), ...this.item(one.after)].filter(Boolean).join("\n").toLowerCase());
    this.found = changed.map((_, place) => place).filter((place) =>
      (!this.data.labelled || this.kinds.has(changed[place].kind)) && words.every((word) => this.haystack[place].includes(word)));
    this.at = -1;
    this.first = 0;
    this.draw();
    if (wide.matches && !this.started) this.choose(0, { quiet: true });
    this.started = true;
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
    const figures = [known(one.gap) && `gap ${short(one.gap)}`, known(one.separation) && `separation ${short(one.separation)}`];
    return el("li", { id: `change-${place}`, role: "option", "aria-selected": "false", click: () => this.choose(place, { focus: true }) },
      el("div.head", {}, this.badge(one.kind), outside(one.id, "b"), one.part && outside(one.part), one.new === true && el("span.badge.warn", {}, "new")),
      one.text && outside(one.text, "p"),
      el("div.note", {}, figures.filter(Boolean).join(", ")));
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
    if (!quiet) history.replaceState(null, "", this.link(this.data.changed[this.found[this.at]]));
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
    const rankings = one.reference && one.reference.length;
    return [
      el("header", {},
        el("div.head", {}, this.badge(one.kind), outside(one.id, "b"), el("a", { href: this.link(one), title: "Link to this input" }, "link"),
          el("span.space"),
          el("button", { click: () => this.choose(this.at - 1), disabled: this.at <= 0, "aria-label": "Previous" }, "‹"),
          el("button", { click: () => this.choose(this.at + 1), disabled: this.at + 1 >= this.found.length, "aria-label": "Next" }, "›"),
          el("button", { click: () => this.close(), "aria-label": "Close" }, "✕")),
        one.text && outside(one.text, "p"),
        el("dl.figures", {}, this.facts(one).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))))),
      el("div.arms", {}, ["reference", "candidate"].map((arm, place) =>
        el("div.arm", {}, el("h4", {}, data.arms[place]), rankings ? this.ranking(one, arm) : this.answer(one, place)))),
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
      return el("li", { class: row[0] === one.before || row[0] === one.after ? "answer" : null },
        el("div.head", {}, el("span.rank", {}, String(place + 1)), outside(id, "b"),
          row[3] > 0 && el("span.badge.good", {}, `✓ ${this.data.right}`),
          arm === "candidate" && moved && el("span.note", {}, moved),
          el("span.space"),
          el("span.score", { title: `reference ${score(row[1])}, candidate ${score(row[2])}` }, score(row[own]))),
        known(text) && this.text(text));
    });
    return el("ol.ranking", {}, listed);
  }

  /** Where rankings are not known: the first answer alone. */
  answer(one, arm) {
    const place = arm ? one.after : one.before;
    const right = arm ? one.is_right : one.was_right;
    const [id, text] = this.item(place);
    return el("ol.ranking", {}, el("li.answer", {},
      el("div.head", {}, known(id) ? outside(id, "b") : "–", right === true && el("span.badge.good", {}, `✓ ${this.data.right}`), right === false && el("span.note", {}, `not ${this.data.right}`),
        el("span.space"), el("span.score", {}, score(arm ? one.score_after : one.score_before))),
      known(text) && this.text(text)));
  }
}

// --- the page --------------------------------------------------------------------------------------

/** @type {Changes|null} */
let changes = null;

/** @type {Map<string, {part: object, place: Element}>} sections of which one is shown at a time */
const parts = new Map();

function choice(listed) {
  const place = el("div.part", { "aria-live": "polite" }, el("p.note", {}, "Choose a square of the map, a point of a chart or a row of the table."));
  listed.forEach((part) => parts.set(part.name, { part, place }));
  return place;
}

function section(one) {
  const inside = [
    one.about.map((line) => el("p", {}, line)),
    one.figures.length > 0 && el("div.figures", {}, one.figures.map(figure)),
    one.grids.map(grid),
    one.parts.length > 0 && choice(one.parts),
  ];
  if (one.changed) inside.push((changes = new Changes(one.changed)).box);
  const title = el("h2", {}, one.title);
  if (!one.folded) return el("section", { id: one.name }, title, inside);
  return el("details", { id: one.name, toggle: drawAll }, el("summary", {}, title), inside);
}

function command(text) {
  const copy = el("button", { "aria-label": "Copy", click: () => navigator.clipboard && navigator.clipboard.writeText(text).then(() => { copy.textContent = "copied"; }, () => {}) }, "copy");
  return el("div.command", {}, el("code", {}, text), copy);
}

function paint(to) {
  root.dataset.theme = theme = to;
  drawAll();
}

function help() {
  const keys = [["j, k", "next and previous change"], ["/", "search"], ["Enter", "open the chosen change"], ["Esc", "close"], ["?", "this help"]];
  return el("dialog", { id: "help", click: (event) => event.target.id === "help" && event.target.close() },
    el("h2", {}, "Keys"), el("dl", {}, keys.map(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)])),
    el("button", { click: () => document.getElementById("help").close() }, "Close"));
}

function build() {
  const links = page.sections.map((one) => el("a", { href: `#${one.name}` }, one.title));
  document.title = `${page.word}: ${page.title}`;
  document.body.append(
    el("header.bar", {}, el("span.brand", {}, "quantdrift"), el("nav", { "aria-label": "Sections" }, links), el("span.space"),
      el("button", { click: () => paint(theme === "dark" ? "light" : "dark"), "aria-label": "Light or dark" }, "◐"),
      el("button", { click: () => document.getElementById("help").showModal(), "aria-label": "Keys" }, "?")),
    el("main", {},
      el("section.first", { id: "top" },
        el("p.title", {}, outside(page.title), page.about && el("span.note", {}, page.about)),
        el("h1", {}, el(`span.verdict.${page.tone}`, {}, `${SIGNS[page.tone]} ${page.word}`), page.verdict),
        el("div.numbers", {}, page.numbers.map((one) => el("div", {}, el("span.label", {}, one.label), el("strong", {}, one.value), el("span.note", {}, one.note)))),
        el("div.split", {},
          el("div", {}, page.words.length > 0 && el("h2", {}, "What it means"), page.words.map((line) => el("p", {}, line)),
            page.warnings.map((line) => el("p.warning", {}, `▲ ${line}`))),
          page.steps.length > 0 && el("div.steps", {}, el("h2", {}, "What to do"),
            el("ul", {}, page.steps.map((one) => el("li", {}, one.text, one.command && command(one.command))))))),
      page.sections.map(section)),
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
  if (name.startsWith("q=") && changes && changes.find(name.slice(2))) return;
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
addEventListener("DOMContentLoaded", drawAll);
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
