// The audit page. It gets no key, no label and no confidence of any row. Text is only ever set as text.
"use strict";

const MANY = 200; // this many classes are listed at once; typing narrows them down
const $ = (id) => document.getElementById(id);

let begin = null; // classes, and the token for writing
let row = null; // what is shown
let pictures = { kind: "loading", reason: "" };
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
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("Not saved: the server does not respond. Start `pencil audit` again; earlier answers are saved.");
  }
  if (!response.ok) throw new Error(`${body === undefined ? "" : "Not saved: "}${await response.text()}`);
  $("error").hidden = true;
  return response.json();
}

async function show(at) {
  row = await ask(at === undefined ? "/api/row" : `/api/row?at=${at}`);
  draw();
}

async function answer(kind, code) {
  if (!row || row.done) return;
  row = await ask("/api/answer", code === undefined ? { at: row.at, kind } : { at: row.at, kind, class: code });
  draw();
}

async function undo() {
  const at = row.kind ? row.at : row.at - 1; // the row itself if it has an answer, else the one before
  if (at < 0) return;
  row = await ask("/api/answer", { at, kind: "undo" });
  draw();
}

const back = () => (row.at > 0 ? show(row.at - 1) : undefined);
const forward = () => (row.done || !row.kind ? undefined : row.at + 1 < row.rows ? show(row.at + 1) : show());

// Drawing

function draw() {
  $("bar").max = Math.max(1, row.rows);
  $("bar").value = row.answered;
  $("progress").textContent = `${row.answered.toLocaleString("en")} of ${row.rows.toLocaleString("en")} rows`;
  $("main").replaceChildren(row.done ? done() : single());
}

function done() {
  const made = el("div", "done");
  made.append(el("h2", "", "All rows are answered."));
  made.append(el("p", "", "Stop the server with Ctrl-C in the terminal. It prints the results and writes them into the run."));
  return made;
}

function single() {
  const made = el("div", "single");
  const facts = el("div", "facts");
  const offered = el("div", "offered");
  row.offered.forEach((code, place) => {
    const chosen = row.kind === "class" && begin.classes[code] === row.answer;
    const key = areDigits() ? "" : keyOf(code, place); // a digit is its own key
    offered.append(button(key, plain(begin.classes[code]), chosen, () => answer("class", code)));
  });
  const rest = el("div", "rest");
  const other = row.kind === "class" && !row.offered.some((code) => begin.classes[code] === row.answer);
  if (row.offered.length < begin.classes.length) {
    rest.append(button("o", other ? `another class: ${plain(row.answer)}` : "another class", other, choose));
  }
  rest.append(button("x", "none of the classes", row.kind === "none", () => answer("none")));
  rest.append(button("s", "cannot tell", row.kind === "skip", () => answer("skip")));
  facts.append(el("div", "quiet", `row ${row.at + 1} of ${row.rows}${row.kind ? ", answered" : ""}`), offered, rest);
  made.append(look(), facts);
  return made;
}

function button(key, text, chosen, action) {
  const made = el("button", chosen ? "chosen" : "");
  made.type = "button";
  if (key) made.append(el("kbd", "", key), " ");
  made.append(text);
  made.addEventListener("click", () => { made.blur(); next(action); });
  return made;
}

function look() {
  const made = el("div", "view");
  if (pictures.kind === "pictures") {
    const image = el("img", "picture");
    image.alt = "the row to look at";
    image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 128));
    image.addEventListener("error", async () => {
      const response = await fetch(image.src).catch(() => null);
      made.replaceChildren(el("div", "missing", response && !response.ok ? await response.text() : "no picture"));
    });
    image.src = `/picture/${row.at}`;
    made.append(image);
  } else if (pictures.kind === "numbers") {
    ask(`/numbers/${row.at}`).then((found) => {
      const numbers = el("div", "numbers");
      numbers.append(...found.values.map((value) => el("span", "", value === null ? "–" : String(value))));
      if (found.count > found.values.length) numbers.append(el("span", "missing all", `… ${found.count} in all`));
      made.append(numbers);
    }, (error) => made.append(el("div", "missing", error.message)));
  }
  return made;
}

// Keys: 1 to 9 and 0 are the offered classes in their order; if the classes are digits, each digit is its own class.

const areDigits = () => begin.classes.every((name) => /^[0-9]$/.test(name));
const keyOf = (code, place) => (areDigits() ? begin.classes[code] : "1234567890"[place]);

function codeOf(key) {
  if (!row || row.done || !/^[0-9]$/.test(key)) return undefined;
  return row.offered.find((code, place) => keyOf(code, place) === key);
}

const KEYS = {
  x: () => answer("none"), s: () => answer("skip"), u: undo, o: () => choose(), "/": () => choose(),
  ArrowLeft: back, ArrowRight: forward,
};

document.addEventListener("keydown", (event) => {
  if (!begin || !row || event.ctrlKey || event.metaKey || event.altKey || $("chooser").open) return;
  const code = codeOf(event.key);
  const action = code === undefined ? KEYS[event.key] : () => answer("class", code);
  if (!action) return;
  event.preventDefault();
  if (event.repeat && !event.key.startsWith("Arrow")) return; // a key held down answers once
  next(action);
});

// Choosing another class

let marked = 0;

function choose() {
  if (row.done) return;
  $("search").value = "";
  marked = 0;
  list();
  $("chooser-keys").replaceChildren(...keys([["↑ ↓", "move"], ["Enter", "choose"], ["Esc", "leave"]]));
  $("chooser").showModal();
}

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
    item.append(el("span", "", plain(name)));
    item.addEventListener("click", () => save(code));
    return item;
  }));
  const item = $("choices").children[marked];
  if (item) item.scrollIntoView({ block: "nearest" });
}

function save(code) {
  $("chooser").close();
  next(() => answer("class", code));
}

$("search").addEventListener("input", () => { marked = 0; list(); });
$("chooser").addEventListener("keydown", (event) => {
  const choices = found();
  if (event.key === "ArrowDown" || event.key === "ArrowUp") marked += event.key === "ArrowDown" ? 1 : -1;
  else if (event.key === "Enter" && choices.length) { event.preventDefault(); return save(choices[marked].code); }
  else return undefined;
  event.preventDefault();
  return list();
});

function keys(pairs) {
  return pairs.map(([key, text]) => {
    const made = el("span");
    made.append(el("kbd", "", key), ` ${text} `);
    return made;
  });
}

async function watchPictures() {
  pictures = await ask("/api/pictures");
  $("note").hidden = pictures.kind === "pictures" || pictures.kind === "numbers";
  $("note").textContent = pictures.kind === "loading" ? "The data is loading; pictures follow." : pictures.reason;
  if (pictures.kind === "loading") setTimeout(() => watchPictures().catch(() => {}), 500);
  else next(async () => draw());
}

next(async () => {
  begin = await ask("/api/begin");
  document.title = `${begin.run} – pencil audit`;
  $("run").textContent = begin.run;
  $("keys").append(...keys([[areDigits() ? "0 – 9" : "1 – 9, 0", "the class"], ["x", "none of the classes"],
    ["s", "cannot tell"], ["o", "search a class"], ["u", "undo"], ["← →", "answered rows"]]));
  await show();
  await watchPictures();
});
