// Accepting many corrections at once: all changes of one pair, or above a confidence, after showing all of them, or
// a sample of a very large lot. Text is never inserted as HTML.
"use strict";

let lot = null; // count and samples for the filter of `lotFilter`
let wrong = new Set(); // samples marked as wrong

// A sample counts as seen when its picture is there and it was on the screen: on a phone that needs scrolling.
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) target.wasHere = true;
  drawLot();
}, { root: $("lot-samples") });

function lotFilter() {
  const chosen = new URLSearchParams({ show: "changed", low: $("lot-low").value || "0" });
  if ($("lot-pair").value) chosen.set("pair", $("lot-pair").value);
  return chosen;
}

function openLot() {
  if ($("lot").open) return undefined;
  if (pictures.kind === "loading") return say("The data is still loading; you can accept corrections once they are shown.");
  $("lot-pair").replaceChildren(...[...$("pair").options].map((option) => option.cloneNode(true)));
  $("lot-pair").value = $("pair").value;
  const low = Number($("low").value);
  $("lot-low").value = low > 0 ? low : $("pair").value ? 0 : 0.9;
  $("lot").showModal();
  return loadLot();
}

async function loadLot() {
  lot = null;
  drawLot();
  const asked = lotFilter();
  const found = await ask(`/api/lot?${asked}`);
  lot = { ...found, asked: asked.toString() };
  wrong = new Set();
  $("lot-error").hidden = true;
  $("lot-samples").replaceChildren(...lot.rows.map(sample));
  watcher.disconnect();
  for (const made of $("lot-samples").children) watcher.observe(made);
  drawLot();
}

function sample(row) {
  const made = el("button", "tile");
  made.type = "button";
  made.setAttribute("aria-pressed", "false");
  made.title = plain(row.key);
  const shown = look(row.row, plain(row.key), { most: 9, small: true });
  shown.onshown = drawLot;
  const words = el("span", "words");
  words.append(labels(row), sure(row));
  made.append(shown, words);
  made.addEventListener("click", () => {
    if (!wrong.delete(row.row)) wrong.add(row.row);
    made.setAttribute("aria-pressed", String(wrong.has(row.row)));
    drawLot();
  });
  return made;
}

const looked = () => [...$("lot-samples").children].every((made) => made.wasHere && made.firstElementChild.shown);

function drawLot() {
  const count = lot ? lot.count - wrong.size : 0;
  const ready = count > 0 && looked();
  $("lot-accept").disabled = !ready;
  const unseen = lot ? lot.count - lot.rows.length : 0;
  const beside = unseen ? `, ${number(unseen)} of them unseen` : "";
  $("lot-accept").textContent = `accept ${number(count)} ${count === 1 ? "correction" : "corrections"}${beside}`;
  let words = "Searching …";
  if (lot && !lot.count) words = "This lot contains no undecided corrections.";
  else if (lot) {
    const all = lot.count === lot.rows.length;
    words = all ? `All ${number(lot.count)} are shown.`
      : `${number(lot.rows.length)} of ${number(lot.count)}, from the least to the most confident.`;
    words += " Click a wrong one to exclude it.";
    if (wrong.size && !all) words += ` ${wrong.size} of ${lot.rows.length} seem wrong: others that are not shown may be wrong too; raise the confidence to accept fewer.`;
    if (!looked()) words += " Scroll through all of them first.";
  }
  $("lot-words").textContent = words;
}

async function acceptLot() {
  if (!lot || $("lot-accept").disabled) return;
  const body = { count: lot.count, seen: lot.rows.map((row) => row.row), without: [...wrong] };
  $("lot-accept").disabled = true;
  let answer;
  try {
    answer = await ask(`/api/accept?${lot.asked}`, body);
  } catch (error) {
    $("lot-error").textContent = error.message;
    $("lot-error").hidden = false;
    return;
  }
  mine.push(lot.rows.find((row) => !wrong.has(row.row)) ?? null);
  $("lot").close();
  say(`${number(answer.count)} corrections accepted. Undo takes back all of them.`);
  await load();
}

for (const id of ["lot-pair", "lot-low"]) $(id).addEventListener("change", () => next(loadLot));
$("lot-accept").addEventListener("click", () => next(acceptLot));
$("lot-leave").addEventListener("click", () => $("lot").close());
