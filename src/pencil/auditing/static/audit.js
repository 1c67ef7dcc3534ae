// The audit page. It receives no key, label or confidence of any row. Text is never inserted as HTML.
"use strict";

const COMMAND = "pencil audit";

let row = null; // what is shown
let input = null; // the element that shows it

async function show(at) {
  row = await ask(at === undefined ? "/api/row" : `/api/row?at=${at}`);
  draw();
}

// An answer applies to the row that was on the screen when it was given, or not at all.
function answerSeen(kind, code) {
  const { at } = row;
  if (!row.done && input.shown) next(() => (row.at === at && input.shown ? answer(kind, code) : undefined));
}

async function answer(kind, code) {
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
  $("progress").textContent = `${row.answered.toLocaleString("en")} of ${row.rows.toLocaleString("en")} ${begin.nouns[1]}`;
  $("main").replaceChildren(row.done ? done() : single());
}

function done() {
  const made = el("div", "done");
  made.append(el("h2", "", `All ${begin.nouns[1]} are answered.`));
  made.append(el("p", "", "Stop the server with Ctrl-C in the terminal. It prints the results and writes them to the run."));
  return made;
}

function single() {
  const made = el("div", "single");
  const facts = el("div", "facts");
  const asked = begin.entries ? [el("h2", "asked", `Is ${plain(row.asked)} in this row?`)] : [];
  const offered = el("div", "offered");
  row.offered.forEach((code, place) => {
    const chosen = row.kind === "class" && begin.classes[code] === row.answer;
    const key = areDigits() ? "" : keyOf(code, place); // a digit is its own key
    offered.append(button(key, plain(begin.classes[code]), chosen, () => answerSeen("class", code)));
  });
  const rest = el("div", "rest");
  const other = row.kind === "class" && !row.offered.some((code) => begin.classes[code] === row.answer);
  if (row.offered.length < begin.classes.length) {
    rest.append(button("o", other ? `another class: ${plain(row.answer)}` : "another class", other, () => next(choose)));
  }
  if (!begin.entries) rest.append(button("x", "none of the classes", row.kind === "none", () => answerSeen("none")));
  rest.append(button("s", "cannot tell", row.kind === "skip", () => answerSeen("skip")));
  const place = `${begin.nouns[0]} ${row.at + 1} of ${row.rows}${row.kind ? ", answered" : ""}`;
  facts.append(el("div", "quiet", place), ...asked, offered, rest);
  input = look(row.at, "the row to look at");
  input.onshown = () => made.classList.add("shown");
  made.classList.toggle("shown", input.shown);
  made.append(input, facts);
  return made;
}

function button(key, text, chosen, action) {
  const made = el("button", chosen ? "chosen" : "");
  made.type = "button";
  if (key) made.append(el("kbd", "", key), " ");
  made.append(text);
  made.addEventListener("click", () => { made.blur(); action(); });
  return made;
}

// Keys: 1 to 9 and 0 are the offered classes in their order; if the classes are digits, each digit is its own class.
// Yes and no, the answers about an entry of multi-label data, are y and n.

const areDigits = () => begin.classes.every((name) => /^[0-9]$/.test(name));
const keyOf = (code, place) => (begin.entries ? begin.classes[code][0] : areDigits() ? begin.classes[code] : "1234567890"[place]);

function codeOf(key) {
  if (!row || row.done) return undefined;
  return row.offered.find((code, place) => keyOf(code, place) === key);
}

const KEYS = {
  x: () => (begin.entries ? undefined : answerSeen("none")), s: () => answerSeen("skip"), u: () => next(undo), o: () => next(choose), "/": () => next(choose),
  ArrowLeft: () => next(back), ArrowRight: () => next(forward),
};

document.addEventListener("keydown", (event) => {
  if (!begin || !row || event.ctrlKey || event.metaKey || event.altKey || $("chooser").open) return;
  const code = codeOf(event.key);
  const action = code === undefined ? KEYS[event.key] : () => answerSeen("class", code);
  if (!action) return;
  event.preventDefault();
  if (event.repeat && !event.key.startsWith("Arrow")) return; // a key held down answers once
  action();
});

// Choosing another class

function choose() {
  if (!row.done && !begin.entries) openChooser([["↑ ↓", "move"], ["Enter", "choose"], ["Esc", "cancel"]]);
}

function pick(code) {
  $("chooser").close();
  answerSeen("class", code);
}

next(async () => {
  begin = await ask("/api/begin");
  document.title = `${begin.run} – pencil audit`;
  $("run").textContent = begin.run;
  if (begin.entries) $("what").textContent = "Is the class in this row?";
  const values = begin.entries ? [["y", "yes"], ["n", "no"]]
    : [[areDigits() ? "0 – 9" : "1 – 9, 0", "the class"], ["x", "none of the classes"], ["o", "find a class"]];
  $("keys").append(...keys([...values, ["s", "cannot tell"], ["u", "undo"], ["← →", `answered ${begin.nouns[1]}`]]));
  await show();
  await watchPictures();
});
