// Draws rows, one large or a grid of small ones, and the buttons for both. Text is never inserted as HTML.
"use strict";

const FEW_NUMBERS = 18; // in a tile
const KEPT_VIEWS = 12; // large pictures that are kept in memory
const AHEAD = 3; // large pictures that are loaded before they are needed

let tiles = []; // of the grid
const views = new Map(); // large pictures by row

const describe = (label) => (Array.isArray(label) ? label.map(plain).join(", ") || "none" : plain(label));
const number = (value) => (value || 0).toLocaleString("en");
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const are = (count) => (count === 1 ? "is" : "are");

// The rows to look at, counted: suspects, or rows if there are others: of multi-label data, outliers, conflicts.
const onlySuspects = () => !begin.multilabel && !begin.outliers && !begin.conflicts;
const wanted = (count, before = "") => (onlySuspects() ? counted(count, `${before}suspect`) : `${counted(count, `${before}row`)} to look at`);

// The element that shows the input of a row, the same one each time, so that it can be loaded ahead.
function viewOf(row) {
  const before = views.get(row.row);
  const made = before && !before.failed ? before : look(row.row, plain(row.key));
  if (pictures.kind === "loading") return made; // it is redrawn after loading
  views.delete(row.row);
  views.set(row.row, made); // the newest last
  for (const old of views.keys()) if (views.size > KEPT_VIEWS) views.delete(old);
  return made;
}

function draw() {
  drawProgress();
  $("view").textContent = view === "grid" ? "single view" : "grid view";
  tiles = [];
  if (finished()) $("main").replaceChildren(done());
  else if (!page.rows.length) $("main").replaceChildren(el("p", "empty", "No labels match this filter."));
  else if (view === "grid") drawGrid();
  else drawSingle(here());
  drawActions();
}

function drawGrid() {
  const grid = el("div", "grid");
  tiles = page.rows.map((row, i) => tile(row, page.start + i));
  grid.append(...tiles);
  $("main").replaceChildren(grid);
  point();
}

function drawSingle(row) {
  const shown = viewOf(row);
  shown.onshown = drawActions;
  $("main").replaceChildren(single(row, shown));
  const at = position - page.start;
  page.rows.slice(at + 1).filter((other) => !other.decision).slice(0, AHEAD).forEach(viewOf);
}

function drawProgress() {
  $("bar").max = Math.max(1, page.of || 0);
  $("bar").value = page.decided || 0;
  const only = page.total === page.to_look_at && $("show").value === "look";
  const of = only ? wanted(page.to_look_at) : number(page.total);
  const at = finished() ? "" : `at ${page.total ? number(position + 1) : 0} of ${of} · `;
  const rest = only && !finished() ? "" : ` (${number(page.looked_at)} of ${wanted(page.to_look_at)})`;
  $("progress").textContent = `${at}${number(page.decided)} decided${rest}`;
}

// The row whose input is on the screen now: only that one can be decided.
function seen() {
  const row = here();
  if (!row || finished()) return undefined;
  const shown = view === "grid" ? tiles[position - page.start].firstElementChild : views.get(row.row);
  return shown && shown.shown && shown.isConnected ? row.row : undefined;
}

// The grid

function tile(row, at) {
  const made = el("div", "tile");
  const shown = look(row.row, plain(row.key), { most: FEW_NUMBERS, small: true });
  shown.onshown = drawActions;
  made.append(shown, el("div", "words"));
  made.addEventListener("click", () => next(() => move(at)));
  made.addEventListener("dblclick", () => next(() => toggle()));
  fill(made, row);
  return made;
}

function fill(made, row) {
  const isHere = made.classList.contains("here");
  made.className = `tile ${row.changed ? "changed" : "kept"} ${row.decision ? `decided ${row.decision}` : ""}`;
  made.classList.toggle("here", isHere);
  const words = [labels(row)];
  words.push(row.decision ? el("div", "badge", badge(row)) : row.outlier ? el("div", "why", "outlier") : sure(row));
  if (row.conflict) words.push(el("div", "why", "conflict"));
  words.push(el("div", "key", plain(row.key)));
  made.title = plain(row.key);
  made.lastElementChild.replaceChildren(...words);
}

function point() {
  tiles.forEach((made, i) => made.classList.toggle("here", page.start + i === position));
  const made = tiles[position - page.start];
  if (made) made.scrollIntoView({ block: "nearest" });
  drawProgress();
  drawActions();
}

function labels(row) {
  const made = el("div", "labels");
  if (row.given === null) made.append(el("small", "", noGiven(row)));
  if (row.changed) made.append(el("span", "given", describe(row.given)), el("span", "arrow", "→"));
  made.append(el("span", "corrected", describe(row.corrected)));
  return made;
}

// One large row

function single(row, shown) {
  const made = el("div", `single ${row.changed ? "changed" : "kept"} ${row.decision || ""}`);
  const facts = el("div", "facts");
  const words = el("div", "labels");
  if (row.changed) {
    words.append(el("small", "", "given"), el("span", "given", describe(row.given)));
    words.append(el("small", "", `corrected, ${confidence(row)}`), el("span", "corrected", describe(row.corrected)));
  } else if (row.given === null) {
    words.append(el("small", "", `${noGiven(row)}; filled in, ${confidence(row)}`));
    words.append(el("span", "corrected", describe(row.corrected)));
  } else {
    words.append(el("small", "", `given and kept, issue score ${percent(row.issue_score)}`), el("span", "corrected", describe(row.given)));
  }
  facts.append(words, el("div", "why", why(row)), el("div", "badge", row.decision ? badge(row) : ""), el("div", "probabilities"));
  facts.append(el("div", "key", `${plain(row.key)} (${row.split})`));
  const beside = el("aside", "beside");
  made.append(shown, facts, beside);
  showDetails(row, made);
  return made;
}

// Which classes of a multi-label row are suspects, and what is wrong with the input itself.
function why(row) {
  const found = row.suspects.length ? [`worth a look: ${describe(row.suspects)}`] : [];
  if (row.outlier) found.push(`outlier: unlike every class (score ${percent(row.outlier_score)})`);
  if (row.conflict) found.push("conflict: a duplicate has another label");
  return found.join("; ");
}

function noGiven(row) {
  const between = row.candidates.length ? ` (${describe(row.candidates)})` : "";
  return between ? `no given label: annotators disagree${between}` : "no given label";
}

const percent = (value) => `${(100 * value).toFixed(1)} %`;
const confidence = (row) => (row.confidence === null ? "" : `confidence ${percent(row.confidence)}`);

function sure(row) { // the word is hidden if there is no room
  const made = el("div", "confidence");
  if (row.confidence !== null) made.append(el("span", "sure", "confidence "), percent(row.confidence));
  return made;
}

function badge(row) {
  if (row.decision === "skip") return "skipped";
  if (row.decision === "none") return "✕ removed: none of the classes";
  const what = { accept: row.changed ? "✓ accepted" : "✓ confirmed", reject: "✓ kept", other: "✎ is" };
  return `${what[row.decision]} ${describe(row.label)}`;
}

// When nothing is left

function done() {
  const made = el("div", "done");
  made.append(el("h2", "", doneTitle()));
  const left = page.to_look_at - page.looked_at;
  const rest = begin.rows - begin.to_look_at;
  const isSuspect = begin.multilabel ? ["has no suspect", "have no suspects"] : ["is not a suspect", "are not suspects"];
  const kept = rest === 1 ? `it ${isSuspect[0]}` : `they ${isSuspect[1]}`;
  if (left) made.append(el("p", "", `${wanted(left, "more ")} ${are(left)} outside this filter.`));
  else if (rest) made.append(el("p", "", `The other ${counted(rest, begin.noun)} ${rest === 1 ? "was" : "were"} kept as given, and ${kept}: no review is needed.`));
  if (page.decided) {
    const saved = el("p", "", "Everything is saved. Stop the server with Ctrl-C in the terminal; then write the labels with:");
    saved.append(el("code", "", plain(begin.write_labels)));
    made.append(saved);
  }
  if (page.of) made.append(button("look at them again", () => next(lookAgain)));
  if (page.of < begin.rows) made.append(" ", button(`go through all ${counted(begin.rows, begin.noun)}`, lookAtAll));
  return made;
}

function doneTitle() {
  if (!page.of) return `Nothing to look at: no label changed, and none is a suspect.`;
  if (page.of === begin.rows) return `Done: every ${begin.noun} is decided.`;
  if ($("show").value !== "look" || page.of < page.to_look_at) return `Done: every ${begin.noun} of this filter is decided.`;
  return `Done: ${page.of === 1 ? "" : "all "}${wanted(page.of)} ${are(page.of)} decided.`;
}

function button(text, action) {
  const made = el("button", "", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

// The buttons are created once, so that they keep the focus; they act on the displayed row

const buttons = new Map();

function addAction(key, name, action) {
  const made = el("button", name);
  made.type = "button";
  made.append(el("kbd", "", key), " ", el("span", "text", name));
  made.addEventListener("click", (event) => {
    if (event.detail) made.blur(); // clicked or tapped: return the keyboard to the page
    if (made.getAttribute("aria-disabled") !== "true") action();
  });
  $("actions").append(made);
  buttons.set(name, made);
}

function drawActions() {
  const row = here();
  const ready = seen() !== undefined;
  const set = (name, text, on, there = true) => {
    const made = buttons.get(name);
    made.lastElementChild.textContent = text;
    made.title = `${text} (key ${made.firstElementChild.textContent})`;
    made.setAttribute("aria-disabled", String(!on));
    made.hidden = !there || (finished() && name !== "undo");
  };
  const some = row && !finished();
  set("accept", !some ? "accept" : row.changed ? `accept: ${describe(row.corrected)}` : `it is ${describe(row.corrected)}`, ready);
  set("reject", some && row.changed ? `keep: ${describe(row.given)}` : "keep", ready, Boolean(some && row.changed));
  set("other", begin.multilabel ? "choose the set" : "another class", ready);
  set("none", "remove", ready);
  set("skip", "skip", ready);
  set("undo", "undo", true);
  set("next", "next", Boolean(some));
  const single = $("main").querySelector(".single");
  if (single) single.classList.toggle("shown", ready);
}
