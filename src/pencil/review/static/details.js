// Details next to a row: the probabilities of its classes, and similar rows. They arrive after the row, and the page
// does not wait for them. Text is never inserted as HTML.
"use strict";

const PATIENCE = 120; // milliseconds: faster decisions do not need the details
const AGAIN = 1000; // milliseconds between requests while rows are still being compared

let detailed = 0; // the newest row that details were asked for

function showDetails(row, made) {
  const mine = ++detailed;
  setTimeout(() => fillDetails(row, made, mine), PATIENCE);
}

async function fillDetails(row, made, mine) {
  if (mine !== detailed) return;
  if (pictures.kind === "loading") return; // it is redrawn after loading
  let found;
  try {
    const answer = await fetch(`/api/details/${row.row}`);
    if (!answer.ok) throw new Error(await answer.text());
    found = await answer.json();
  } catch (error) { // the row can be decided without them
    if (mine === detailed) made.querySelector(".beside").replaceChildren(el("p", "missing", error.message));
    return;
  }
  if (mine !== detailed) return;
  made.querySelector(".probabilities").replaceChildren(...found.probabilities.map((one) => bar(one, row)));
  made.querySelector(".beside").replaceChildren(...twins(found.twins), ...besides(found.neighbours));
  if (found.neighbours.kind === "loading") setTimeout(() => fillDetails(row, made, mine), AGAIN);
}

function bar({ class: name, probability }, row) {
  const made = el("div", "bar");
  const has = (label) => (Array.isArray(label) ? label.includes(name) : label === name);
  const roles = [has(row.given) ? "given" : "", row.changed && has(row.corrected) ? "corrected" : ""].filter(Boolean);
  const meter = el("meter");
  meter.max = 1;
  meter.value = probability;
  const words = el("span", "name", plain(name));
  if (roles.length) words.append(" ", el("small", "", roles.join(", ")));
  made.append(words, meter, el("span", "confidence", percent(probability)));
  return made;
}

// The same input with another label: one of the two labels must be wrong.
function twins(found) {
  if (!found.length) return [];
  const group = el("section", "near twins");
  const what = pictures.kind === "pictures" ? "picture" : "row";
  const exact = found.every((one) => one.exact);
  group.append(el("h2", "", exact ? `The same ${what} with another label` : `Almost the same ${what} with another label`));
  const list = el("div", "thumbs");
  list.append(...found.map((one) => {
    const made = thumb(one);
    made.lastElementChild.prepend(el("strong", "", describe(one.label)), " ");
    return made;
  }));
  group.append(list);
  return [group];
}

const WHY = { given: "given", corrected: "corrected", next: "next most probable" };

function besides(found) {
  const made = [];
  if (found.kind === "none") made.push(el("p", "missing", `No rows to compare with: ${found.reason}`));
  for (const { why, label, rows } of found.groups) {
    const group = el("section", "near");
    const title = el("h2", "", describe(label));
    title.append(" ", el("small", "", WHY[why]));
    const list = el("div", "thumbs");
    list.append(...rows.map(thumb));
    if (!rows.length) list.append(el("p", "missing", "no other row with this label was kept"));
    group.append(title, list);
    made.push(group);
  }
  if (found.groups.length) {
    const rest = found.done < found.total ? `; ${number(found.done)} of ${number(found.total)} so far` : "";
    made.push(el("p", "missing", `The most similar rows with kept labels, compared by ${found.by}${rest}.`));
  } else if (found.kind === "loading") made.push(el("p", "missing", "Searching for similar rows …"));
  return made;
}

function thumb({ row, key }) {
  const made = el("figure");
  made.title = plain(key);
  made.append(look(row, plain(key), { most: 6, small: true }), el("figcaption", "key", plain(key)));
  return made;
}
