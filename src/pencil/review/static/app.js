// The review page. One page of rows is here at a time; the server has the rest. Text is only ever set as text.
"use strict";

const COMMAND = "pencil review";
const PAGE = 48;
const FEW_NUMBERS = 18; // in a tile

let page = { total: 0, start: 0, rows: [] };
let position = 0; // in the rows that the filter leaves
let view = "single";
let tiles = [];
const mine = []; // rows decided in this tab, to undo in turn

const describe = (label) => (Array.isArray(label) ? label.map(plain).join(", ") || "none" : plain(label));
const here = () => page.rows[position - page.start];

function filters(more) {
  const chosen = new URLSearchParams({ show: $("show").value, ...more });
  if ($("pair").value) chosen.set("pair", $("pair").value);
  if ($("low").value) chosen.set("low", $("low").value);
  if ($("high").value) chosen.set("high", $("high").value);
  return chosen;
}

async function load(where) {
  page = await ask(`/api/page?${filters({ count: PAGE, ...where })}`);
  position = page.position;
  draw();
}

async function move(to) {
  const wanted = Math.max(0, Math.min(to, page.total - 1));
  if (wanted < page.start || wanted >= page.start + page.rows.length) return load({ start: wanted });
  position = wanted;
  if (view === "single") draw();
  else point();
}

async function decide(decision, codes) {
  const row = here();
  if (!row) return;
  const answer = await ask(`/api/decide?${filters()}`, { row: row.row, decision, label: codes || [] });
  mine.push(row.row);
  took(answer);
  const open = page.rows.findIndex((other, i) => i > position - page.start && !other.decision);
  if (open >= 0) await move(page.start + open);
  else await load({ after: position + 1 });
}

async function undo() {
  const row = mine.at(-1); // none left: the server withdraws the newest of all
  const answer = await ask(`/api/decide?${filters()}`, row === undefined ? { decision: "undo" } : { decision: "undo", row });
  mine.pop();
  if (!answer.made) return;
  await load({ row: answer.made.row, start: position });
}

function took(answer) {
  Object.assign(page, { decided: answer.decided, changed: answer.changed, changed_decided: answer.changed_decided });
  const at = page.rows.findIndex((row) => row.row === answer.made.row);
  if (at >= 0) {
    page.rows[at] = answer.made;
    if (view === "grid") fill(tiles[at], answer.made);
  }
  drawProgress();
}

// Drawing

function draw() {
  drawProgress();
  $("view").textContent = view === "grid" ? "single view" : "grid view";
  tiles = [];
  if (!page.rows.length) {
    $("main").replaceChildren(el("p", "empty", "No label passes this filter."));
  } else if (view === "grid") {
    const grid = el("div", "grid");
    tiles = page.rows.map((row, i) => tile(row, page.start + i));
    grid.append(...tiles);
    $("main").replaceChildren(grid);
    point();
  } else {
    $("main").replaceChildren(single(here()));
  }
}

function drawProgress() {
  $("bar").max = Math.max(1, page.total);
  $("bar").value = page.decided || 0;
  const number = (value) => (value || 0).toLocaleString("en");
  const at = page.total ? `${number(position + 1)} of ${number(page.total)}` : "0 of 0";
  const changes = `${number(page.changed_decided)} of ${number(page.changed)} changes`;
  $("progress").textContent = `at ${at} · ${number(page.decided)} decided (${changes})`;
}

function tile(row, at) {
  const made = el("div", "tile");
  made.append(look(row.row, plain(row.key), FEW_NUMBERS), el("div", "words"));
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
  words.push(row.decision ? el("div", "badge", badge(row)) : el("div", "confidence", confidence(row)));
  words.push(el("div", "key", plain(row.key)));
  made.title = plain(row.key);
  made.lastElementChild.replaceChildren(...words);
}

function point() {
  tiles.forEach((made, i) => made.classList.toggle("here", page.start + i === position));
  const made = tiles[position - page.start];
  if (made) made.scrollIntoView({ block: "nearest" });
  drawProgress();
}

function single(row) {
  const made = el("div", `single ${row.changed ? "changed" : "kept"} ${row.decision || ""}`);
  const facts = el("div", "facts");
  const words = el("div", "labels");
  if (row.changed) {
    words.append(el("small", "", "given"), el("span", "given", describe(row.given)));
    words.append(el("small", "", `corrected, ${confidence(row)}`), el("span", "corrected", describe(row.corrected)));
  } else if (row.given === null) {
    words.append(el("small", "", `${undecided(row)}; filled in, ${confidence(row)}`));
    words.append(el("span", "corrected", describe(row.corrected)));
  } else {
    words.append(el("small", "", `given and kept, ${confidence(row)}`), el("span", "corrected", describe(row.given)));
  }
  const meter = el("meter");
  meter.max = 1;
  meter.value = row.confidence || 0;
  facts.append(words, meter, el("div", "badge", row.decision ? badge(row) : ""), actions(row));
  facts.append(el("div", "key", `${plain(row.key)} (${row.split})`));
  made.append(look(row.row, plain(row.key)), facts);
  return made;
}

function actions(row) {
  const made = el("div", "actions");
  const add = (key, text, name, action) => {
    const button = el("button", name);
    button.type = "button";
    button.append(el("kbd", "", key), ` ${text}`);
    button.addEventListener("click", () => { button.blur(); next(action); });
    made.append(button);
  };
  add("a", row.changed ? `accept: ${describe(row.corrected)}` : `it is ${describe(row.corrected)}`, "accept", () => decide("accept"));
  if (row.changed) add("r", `reject: ${describe(row.given)}`, "reject", () => decide("reject"));
  add("o", begin.multilabel ? "choose the set" : "another class", "other", choose);
  add("s", "skip", "skip", () => decide("skip"));
  return made;
}

function undecided(row) {
  const between = row.candidates.length ? ` (${describe(row.candidates)})` : "";
  return between ? `no given label: annotators disagree${between}` : "no given label";
}

function labels(row) {
  const made = el("div", "labels");
  if (row.given === null) made.append(el("small", "", undecided(row)));
  if (row.changed) made.append(el("span", "given", describe(row.given)), el("span", "arrow", "→"));
  made.append(el("span", "corrected", describe(row.corrected)));
  return made;
}

const confidence = (row) => (row.confidence === null ? "" : `confidence ${(100 * row.confidence).toFixed(1)} %`);

function badge(row) {
  if (row.decision === "skip") return "skipped";
  if (row.decision === "none") return "✎ none of the classes";
  const what = { accept: row.changed ? "✓ accepted" : "✓ confirmed", reject: "✗ rejected, is", other: "✎ is" };
  return `${what[row.decision]} ${describe(row.label)}`;
}

// Choosing another class, or a set of classes

function choose(first) {
  const row = here();
  if (!row) return;
  const names = row.label || row.corrected;
  picked = new Set((Array.isArray(names) ? names : []).map((name) => begin.classes.indexOf(name)));
  if (first !== undefined) flip(first);
  openChooser(begin.multilabel
    ? [["Enter", "in or out"], ["Ctrl+Enter", "save this set"], ["Esc", "leave"]]
    : [["↑ ↓", "move"], ["Enter", "choose"], ["Esc", "leave"]]);
}

const flip = (code) => (picked.has(code) ? picked.delete(code) : picked.add(code));

function pick(code) {
  if (!begin.multilabel) return save([code]);
  flip(code);
  return list();
}

function save(codes) {
  $("chooser").close();
  next(() => decide("other", codes));
}

// Keys

async function toggle() {
  view = view === "grid" ? "single" : "grid";
  draw();
}

function columns() {
  if (view === "single" || !tiles.length) return 1;
  const below = tiles.findIndex((made) => made.offsetTop > tiles[0].offsetTop);
  return below < 0 ? tiles.length : below;
}

const KEYS = {
  a: () => decide("accept"), r: () => (here() && here().given === null ? undefined : decide("reject")), s: () => decide("skip"), u: undo, g: toggle,
  o: () => choose(), "/": () => choose(), n: () => load({ after: position + 1 }),
  ArrowRight: () => move(position + 1), ArrowLeft: () => move(position - 1),
  ArrowDown: () => move(position + columns()), ArrowUp: () => move(position - columns()),
  PageDown: () => move(position + PAGE), PageUp: () => move(position - PAGE),
  Home: () => move(0), End: () => move(page.total - 1), Enter: toggle,
};

// 1 to 9 are the first nine classes; if the classes are digits themselves, each digit is its own class.
let digits = new Map();

function digitKeys(classes) {
  if (classes.every((name) => /^[0-9]$/.test(name))) return new Map(classes.map((name, code) => [name, code]));
  return new Map(classes.slice(0, 9).map((name, code) => [String(code + 1), code]));
}

document.addEventListener("keydown", (event) => {
  if (!begin || event.ctrlKey || event.metaKey || event.altKey || $("chooser").open) return;
  if (event.target.closest("input, select")) return;
  if (event.key === "Enter" && event.target.closest("button")) return;
  const code = digits.get(event.key);
  let action = KEYS[event.key];
  if (code !== undefined) action = begin.multilabel ? () => choose(code) : () => decide("other", [code]);
  if (!action) return;
  event.preventDefault();
  if (event.repeat && !/^(Arrow|Page)/.test(event.key)) return; // a key held down decides once
  next(action);
});

for (const id of ["show", "pair", "low", "high"]) {
  $(id).addEventListener("change", () => { $(id).blur(); next(() => load({ after: 0 })); });
}
$("view").addEventListener("click", () => { $("view").blur(); next(toggle); });
window.addEventListener("focus", () => { // another tab may have decided meanwhile
  if (begin && !$("chooser").open) next(() => load({ start: position }));
});

next(async () => {
  begin = await ask("/api/begin");
  document.title = `${begin.run} – pencil review`;
  $("run").textContent = begin.run;
  for (const { pair, given, corrected, count } of begin.pairs) {
    const option = el("option", "", `${describe(given)} → ${describe(corrected)} (${count.toLocaleString("en")})`);
    option.value = pair;
    $("pair").append(option);
  }
  const main = [["a", "accept"], ["r", "reject"], ["s", "skip"], ["u", "undo"], ["o", "another class"],
    ["← →", "move"], ["n", "next undecided"], ["g", "grid or single"]];
  digits = digitKeys(begin.classes);
  $("keys").append(...keys(main), ...keys([...digits].map(([key, code]) => [key, plain(begin.classes[code])])));
  await load({ after: 0 });
  await watchPictures();
});
