// The review page: display, navigation, decisions, keys. It holds one page of rows at a time; the server has the rest.
"use strict";

const COMMAND = "pencil review";
const TYPING = 200; // milliseconds after the last keystroke of a search

let page = { total: 0, start: 0, rows: [] };
let position = 0; // within the filtered rows
let view = "single";
let again = false; // decided rows are shown again although nothing is left to decide
const mine = []; // rows decided in this tab, to undo in turn; null is the newest of all

const here = () => page.rows[position - page.start];
const nothing = () => $("show").value === "look" && begin.to_look_at === 0; // no row needs a review
const finished = () => (page.of > 0 || nothing()) && page.decided === page.of && !again && $("decided").value !== "yes";

function filters(more) {
  const chosen = new URLSearchParams({ show: $("show").value, decided: $("decided").value, ...more });
  if ($("pair").value) chosen.set("pair", $("pair").value);
  if ($("low").value) chosen.set("low", $("low").value);
  if ($("high").value) chosen.set("high", $("high").value);
  if ($("key").value) chosen.set("key", $("key").value);
  return chosen;
}

// A browser may restore a filter when the page is loaded again.
const filtered = () => ["show", "decided", "pair"].some((id) => $(id).selectedIndex > 0)
  || ["low", "high", "key"].some((id) => $(id).value !== $(id).defaultValue);

// Without `where`: the first row without a decision.
const askPage = (where) => ask(`/api/page?${filters({ count: begin.page_rows, ...where })}`);

async function load(where) {
  show(await askPage(where));
}

function show(found) {
  page = found;
  position = page.position;
  again = again && page.decided === page.of;
  draw();
}

async function move(to) {
  let wanted = Math.max(0, Math.min(to, page.total - 1));
  const end = page.start + page.rows.length;
  if (wanted >= end) wanted -= gone();
  if (to >= end && wanted < end && gone()) return load({ start: wanted });
  if (wanted < page.start || wanted >= end) return load({ start: wanted });
  position = wanted;
  if (view === "single") draw();
  else point();
  return undefined;
}

// Rows of this page that have left the list since it was loaded, because their decision has changed.
function gone() {
  const listed = $("decided").value;
  return listed === "any" ? 0 : page.rows.filter((row) => Boolean(row.decision) !== (listed === "yes")).length;
}

async function decide(decision, codes) {
  const row = here();
  const answer = await ask(`/api/decide?${filters()}`, { row: row.row, decision, label: codes || [] });
  mine.push(row);
  say("");
  took(answer);
  if (finished()) return draw();
  if (page.decided === page.of) return move(position + 1); // decided rows are shown again
  const open = page.rows.findIndex((other, i) => i > position - page.start && !other.decision);
  return open >= 0 ? move(page.start + open) : load({ after: row.row });
}

async function undo() {
  const row = mine.at(-1); // none left: the server withdraws the newest of all
  const answer = await ask(`/api/decide?${filters()}`, row ? { decision: "undo", row: row.row } : { decision: "undo" });
  mine.pop();
  if (!answer.made) return say("There is no decision to undo.");
  const key = plain(answer.made.key);
  say(answer.count === 1 ? `The decision about ${key} is withdrawn.` : `${number(answer.count)} decisions are withdrawn.`);
  return load({ row: answer.made.row, start: position });
}

function took(answer) {
  const { of, decided, to_look_at, looked_at } = answer;
  Object.assign(page, { of, decided, to_look_at, looked_at });
  const at = page.rows.findIndex((row) => row.row === answer.made.row);
  if (at >= 0) {
    page.rows[at] = answer.made;
    if (view === "grid") fill(tiles[at], answer.made);
  }
  drawProgress();
}

function say(words) {
  $("said").textContent = words;
}

async function lookAgain() {
  again = true;
  await load({ start: 0 });
}

function lookAtAll() {
  $("show").value = "all";
  refilter();
}

// Choosing another class, or a set of classes

let choosing = null; // the row to choose a class for

function choose(first) {
  const row = here();
  choosing = row.row;
  const names = row.label || row.corrected;
  picked = new Set((Array.isArray(names) ? names : []).map((name) => begin.classes.indexOf(name)));
  if (first !== undefined) flip(first);
  openChooser(begin.multilabel
    ? [["Enter", "toggle"], ["Ctrl+Enter", "save this set"], ["Esc", "cancel"]]
    : [["↑ ↓", "move"], ["Enter", "choose"], ["Esc", "cancel"]]);
}

const flip = (code) => (picked.has(code) ? picked.delete(code) : picked.add(code));

function pick(code) {
  if (!begin.multilabel) return save([code]);
  flip(code);
  return list();
}

function save(codes) {
  $("chooser").close();
  const about = choosing;
  next(() => (here() && here().row === about ? decide("other", codes) : undefined));
}

// Keys and buttons. A decision applies to the row that was on the screen when the key was pressed, or not at all.

function about(action) {
  const row = seen();
  if (row !== undefined) next(() => (seen() === row ? action() : undefined));
}

async function toggle() {
  view = view === "grid" ? "single" : "grid";
  draw();
}

function columns() {
  if (view === "single" || !tiles.length) return 1;
  const below = tiles.findIndex((made) => made.offsetTop > tiles[0].offsetTop);
  return below < 0 ? tiles.length : below;
}

const keep = () => (here().given === null ? undefined : decide("reject")); // the correction is rejected
const forward = () => load(here() ? { after: here().row } : undefined);

const DECIDE = {
  a: () => decide("accept"), k: keep, r: keep, x: () => decide("none"), s: () => decide("skip"), o: () => choose(), "/": () => choose(),
};
const MOVE = {
  g: toggle, Enter: toggle, n: forward,
  ArrowRight: () => move(position + 1), ArrowLeft: () => move(position - 1),
  ArrowDown: () => move(position + columns()), ArrowUp: () => move(position - columns()),
  PageDown: () => move(position + begin.page_rows), PageUp: () => move(position - begin.page_rows),
  Home: () => move(0), End: () => move(page.total - 1),
};

// 1 to 9 and 0 are the first ten classes; if the classes are digits themselves, each digit is its own class.
let digits = new Map();

function digitKeys(classes) {
  if (classes.every((name) => /^[0-9]$/.test(name))) return new Map(classes.map((name, code) => [name, code]));
  return new Map(classes.slice(0, 10).map((name, code) => [String((code + 1) % 10), code]));
}

function press(key) {
  if (key === "u") return next(undo);
  if (finished()) return undefined; // nothing is left: only undo
  const code = digits.get(key);
  if (code !== undefined) return about(begin.multilabel ? () => choose(code) : () => decide("other", [code]));
  if (key in DECIDE) return about(DECIDE[key]);
  if (key === "m") return next(openLot);
  if (key === "f") return $("key").focus();
  return next(MOVE[key]);
}

const isKey = (key) => key in DECIDE || key in MOVE || digits.has(key) || ["u", "m", "f"].includes(key);

document.addEventListener("keydown", (event) => {
  if (!begin || event.ctrlKey || event.metaKey || event.altKey || $("chooser").open || $("lot").open) return;
  if (event.defaultPrevented) return; // the key that has just closed a dialog
  const field = event.target.closest("input, select");
  if (field && !field.closest("dialog")) { // a field of a dialog that has just closed keeps the focus for a moment
    if (event.key === "Escape") field.blur();
    return;
  }
  if (event.key === "Enter" && event.target.closest("button")) return;
  if (!isKey(event.key)) return;
  event.preventDefault();
  if (event.repeat && !/^(Arrow|Page)/.test(event.key)) return; // a key held down decides once
  press(event.key);
});

for (const id of ["show", "decided", "pair", "low", "high"]) {
  $(id).addEventListener("change", () => { $(id).blur(); refilter(); });
}

function refilter() {
  again = false;
  say("");
  next(() => load());
}

let typing = 0;
$("key").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(refilter, TYPING);
});
$("key").addEventListener("keydown", (event) => { if (event.key === "Enter") $("key").blur(); });
$("view").addEventListener("click", () => { $("view").blur(); if (!finished()) next(toggle); });
$("many").addEventListener("click", () => next(openLot));
$("more").addEventListener("click", () => {
  const open = $("header").classList.toggle("open");
  $("more").setAttribute("aria-expanded", String(open));
});
window.addEventListener("focus", () => { // another tab may have made decisions
  if (!begin || $("chooser").open || $("lot").open) return;
  next(() => load(here() ? { row: here().row, start: position } : { start: position }));
});

function addActions() {
  addAction("a", "accept", () => press("a"));
  addAction("k", "reject", () => press("k"));
  addAction("o", "other", () => press("o"));
  addAction("x", "none", () => press("x"));
  addAction("s", "skip", () => press("s"));
  addAction("u", "undo", () => press("u"));
  addAction("n", "next", () => press("n"));
}

next(async () => {
  const first = JSON.parse($("first").textContent); // as sent with the page
  begin = first.begin;
  document.title = `${begin.run} – pencil review`;
  $("run").textContent = begin.run;
  for (const { pair, given, corrected, count } of begin.pairs) {
    const option = el("option", "", `${describe(given)} → ${describe(corrected)} (${number(count)})`);
    option.value = pair;
    $("pair").append(option);
  }
  const [lookAt, all, changed] = $("show").options;
  lookAt.textContent = `${onlySuspects() ? "suspects" : "to look at"} (${number(begin.to_look_at)})`;
  $("show").title = begin.lists;
  all.textContent = `everything (${number(begin.rows)})`;
  for (const name of ["outliers", "conflicts"]) {
    const option = $("show").querySelector(`[value=${name}]`);
    option.textContent = `${name} (${number(begin[name])})`;
    option.hidden = !begin[name];
  }
  changed.textContent = `corrections (${number(begin.corrections)})`;
  $("many").hidden = !begin.pairs.length;
  const main = [["← →", "move"], ["g", "grid or single"], ["m", "accept many"], ["f", "find a key"]];
  digits = digitKeys(begin.classes);
  $("keys").append(...keys(main), ...keys([...digits].map(([key, code]) => [key, plain(begin.classes[code])])));
  addActions();
  show(filtered() ? await askPage() : first.page);
  await watchPictures();
});
