// Shared by the pages of `pencil review` and `pencil audit`. A page defines COMMAND, draw() and pick(code), which is
// called with the class chosen from the list. Text is never inserted as HTML.
"use strict";

const MANY = 200; // maximum number of listed classes; typing narrows the list
const $ = (id) => document.getElementById(id);

let begin = null; // classes, rows of a page, and the token for writing
let pictures = { kind: "loading", reason: "" };
let turn = Promise.resolve();

function el(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Control characters and characters that reverse text are shown as their code, so that a name cannot be disguised.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const plain = (text) => text.replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

// Actions run one after the other, however fast the keys come; after a failure, the error is shown and nothing continues.
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
    throw new Error(`Not saved: the server does not respond. Start \`${COMMAND}\` again; earlier decisions are saved.`);
  }
  if (!answer.ok) throw new Error(`${body === undefined ? "" : "Not saved: "}${await answer.text()}`);
  $("error").hidden = true;
  return answer.json();
}

// The cells of a row of a table; a long text is folded.
function cells(found, most) {
  const made = el("dl", "cells");
  for (const { column, value } of found.cells.slice(0, most)) {
    const cell = el("dd");
    if (value.length > 240) {
      const folded = el("details");
      folded.append(el("summary", "", `${value.slice(0, 160)}…`), el("span", "", value));
      cell.append(folded);
    } else cell.append(el("bdi", value ? "" : "missing", value || "missing"));
    made.append(el("dt", "", column), cell);
  }
  if (found.count > most) made.append(el("dt", "missing", "…"), el("dd", "missing", `${found.count} in all`));
  return made;
}

// The input of the row with this number: an image, up to `most` numbers, or the cells of a table. `shown` is set when
// it is displayed or cannot be; then it calls onshown.
function look(number, alt, { most = Infinity, small = false } = {}) {
  const made = el("div", "view");
  made.shown = false;
  const show = () => {
    made.shown = true;
    if (made.onshown) made.onshown();
  };
  if (pictures.kind === "pictures") {
    const image = el("img", "picture");
    image.alt = alt;
    image.addEventListener("load", () => {
      image.classList.toggle("tiny", image.naturalWidth <= 128);
      image.decode().catch(() => {}).then(show);
    });
    image.addEventListener("error", async () => {
      const answer = await fetch(image.src).catch(() => null);
      made.replaceChildren(el("div", "missing", answer && !answer.ok ? await answer.text() : "no picture"));
      made.failed = !answer; // the server is gone; it may come back
      if (answer) show();
    });
    image.src = `/picture/${number}${small ? "?small" : ""}`;
    made.append(image);
  } else if (pictures.kind === "numbers") {
    ask(`/numbers/${number}`).then((found) => {
      made.append(found.cells ? cells(found, Math.min(most, found.cells.length)) : numbers(found, most));
    }, (error) => made.append(el("div", "missing", error.message))).then(show);
  } else if (pictures.kind === "none") show(); // the note says why
  return made;
}

function numbers(found, most) {
  const made = el("div", "numbers");
  const shown = found.values.slice(0, most);
  made.append(...shown.map((value) => el("span", "", value === null ? "–" : String(value))));
  if (found.count > shown.length) made.append(el("span", "missing all", `… ${found.count} in all`));
  return made;
}

async function watchPictures() {
  pictures = await ask("/api/pictures");
  $("note").hidden = pictures.kind === "pictures" || pictures.kind === "numbers";
  $("note").textContent = pictures.kind === "loading" ? "The data is loading; images will follow." : pictures.reason;
  if (pictures.kind === "loading") setTimeout(() => watchPictures().catch(() => {}), 500);
  else next(async () => draw());
}

function keys(pairs) {
  return pairs.map(([key, text]) => {
    const made = el("span");
    made.append(el("kbd", "", key), ` ${text} `);
    return made;
  });
}

// The list of classes to choose from; for multi-label data every class has a box

let picked = new Set(); // of multi-label data
let marked = 0;

function openChooser(help) {
  $("search").value = "";
  marked = 0;
  list();
  $("chooser-keys").replaceChildren(...keys(help));
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
