// The review page. One page of rows is here at a time; the server has the rest. Text is only ever set as text.
"use strict";

const PAGE = 48;
const MANY = 200; // this many classes are listed at once; typing narrows them down
const $ = (id) => document.getElementById(id);

let begin = null; // classes, pairs and the token for writing
let page = { total: 0, start: 0, rows: [] };
let position = 0; // in the rows that the filter leaves
let view = "single";
let pictures = { kind: "loading", reason: "" };
let tiles = [];
const mine = []; // rows decided in this tab, to undo in turn
let turn = Promise.resolve();

function el(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Characters that hide, break or reverse text are shown by their code: a name must look like what it is.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const plain = (text) => text.replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
const describe = (label) => (Array.isArray(label) ? label.map(plain).join(", ") || "none" : plain(label));
const here = () => page.rows[position - page.start];

// One action after the other, however fast the keys come; a failure is shown, and nothing continues as if it had worked.
function next(action) {
  turn = turn.then(action).catch((error) => {
    $("error").textContent = error.message;
    $("error").hidden = false;
  });
  return turn;
}

async function ask(path, body) {
  const options = { credentials: "same-origin" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers = { "content-type": "application/json", "x-csrf-token": begin.csrf };
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("Not saved: the server does not respond. Start `pencil review` again; earlier decisions are saved.");
  }
  if (!answer.ok) throw new Error(`${body === undefined ? "" : "Not saved: "}${await answer.text()}`);
  $("error").hidden = true;
  return answer.json();
}

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
  made.append(look(row), el("div", "words"));
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
  } else {
    words.append(el("small", "", `given and kept, ${confidence(row)}`), el("span", "corrected", describe(row.given)));
  }
  const meter = el("meter");
  meter.max = 1;
  meter.value = row.confidence || 0;
  facts.append(words, meter, el("div", "badge", row.decision ? badge(row) : ""), actions(row));
  facts.append(el("div", "key", `${plain(row.key)} (${row.split})`));
  made.append(look(row), facts);
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

function labels(row) {
  const made = el("div", "labels");
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

function look(row) {
  const made = el("div", "view");
  if (pictures.kind === "pictures") {
    const image = el("img", "picture");
    image.alt = plain(row.key);
    image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 128));
    image.addEventListener("error", async () => {
      const answer = await fetch(image.src).catch(() => null);
      made.replaceChildren(el("div", "missing", answer && !answer.ok ? await answer.text() : "no picture"));
    });
    image.src = `/picture/${row.row}`;
    made.append(image);
  } else if (pictures.kind === "numbers") {
    ask(`/numbers/${row.row}`).then((found) => {
      const numbers = el("div", "numbers");
      const most = view === "grid" ? 18 : found.values.length;
      numbers.append(...found.values.slice(0, most).map((value) => el("span", "", value === null ? "–" : String(value))));
      if (found.count > most) numbers.append(el("span", "missing all", `… ${found.count} in all`));
      made.append(numbers);
    }, (error) => made.append(el("div", "missing", error.message)));
  }
  return made;
}

// Choosing another class, or a set of classes

let picked = new Set();
let marked = 0;

function choose(first) {
  const row = here();
  if (!row) return;
  const names = row.label || row.corrected;
  picked = new Set((Array.isArray(names) ? names : []).map((name) => begin.classes.indexOf(name)));
  if (first !== undefined) flip(first);
  $("search").value = "";
  marked = 0;
  list();
  $("chooser-keys").replaceChildren(...(begin.multilabel
    ? keys([["Enter", "in or out"], ["Ctrl+Enter", "save this set"], ["Esc", "leave"]])
    : keys([["↑ ↓", "move"], ["Enter", "choose"], ["Esc", "leave"]])));
  $("chooser").showModal();
}

const flip = (code) => (picked.has(code) ? picked.delete(code) : picked.add(code));

function found() {
  const wanted = $("search").value.trim().toLowerCase();
  const all = begin.classes.map((name, code) => ({ name, code }));
  return all.filter(({ name }) => name.toLowerCase().includes(wanted)).slice(0, MANY);
}

function list() {
  const choices = found();
  marked = Math.max(0, Math.min(marked, choices.length - 1));
  $("choices").replaceChildren(...choices.map(({ name, code }, i) => {
    const item = el("li", i === marked ? "here" : "");
    if (begin.multilabel) {
      const box = el("input");
      box.type = "checkbox";
      box.checked = picked.has(code);
      box.tabIndex = -1;
      item.append(box);
    }
    item.append(el("span", "", plain(name)));
    item.addEventListener("click", (event) => { event.preventDefault(); marked = i; pick(code); });
    return item;
  }));
  const item = $("choices").children[marked];
  if (item) item.scrollIntoView({ block: "nearest" });
}

function pick(code) {
  if (!begin.multilabel) return save([code]);
  flip(code);
  return list();
}

function save(codes) {
  $("chooser").close();
  next(() => decide("other", codes));
}

$("search").addEventListener("input", () => { marked = 0; list(); });
$("chooser").addEventListener("keydown", (event) => {
  const choices = found();
  if (event.key === "ArrowDown" || event.key === "ArrowUp") marked += event.key === "ArrowDown" ? 1 : -1;
  else if (event.key === "Enter" && begin.multilabel && (event.ctrlKey || event.metaKey)) return save([...picked]);
  else if (event.key === "Enter" && choices.length) { event.preventDefault(); return pick(choices[marked].code); }
  else return undefined;
  event.preventDefault();
  return list();
});

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
  a: () => decide("accept"), r: () => decide("reject"), s: () => decide("skip"), u: undo, g: toggle,
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

function keys(pairs) {
  return pairs.map(([key, text]) => {
    const made = el("span");
    made.append(el("kbd", "", key), ` ${text} `);
    return made;
  });
}

for (const id of ["show", "pair", "low", "high"]) {
  $(id).addEventListener("change", () => { $(id).blur(); next(() => load({ after: 0 })); });
}
$("view").addEventListener("click", () => { $("view").blur(); next(toggle); });
window.addEventListener("focus", () => { // another tab may have decided meanwhile
  if (begin && !$("chooser").open) next(() => load({ start: position }));
});

async function watchPictures() {
  pictures = await ask("/api/pictures");
  $("note").hidden = pictures.kind === "pictures" || pictures.kind === "numbers";
  $("note").textContent = pictures.kind === "loading" ? "The data is loading; pictures follow." : pictures.reason;
  if (pictures.kind === "loading") setTimeout(() => watchPictures().catch(() => {}), 500);
  else next(async () => draw());
}

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
