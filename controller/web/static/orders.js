// Orders in a dialog: the same pages as without a script. What an order will do is shown as one types, and what has become of it follows.
"use strict";

const TYPING_MS = 300;
const LOOK_MS = 1_000;
let dialog = null;
let opener = ""; // the address of the link that has the focus afterwards
let typing = 0;
let asked = 0; // previews, of which the newest alone is shown

async function fetchCard(url, options) {
  const answer = await fetch(url, options);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return [page.getElementById("order"), answer.url];
}

function closeDialog() {
  clearTimeout(typing);
  dialog?.remove();
  dialog = null;
  const link = document.querySelector(`a[data-order][href="${CSS.escape(opener)}"]`);
  (link ?? document.querySelector("nav a[aria-current]"))?.focus();
}

function showDialog(card) {
  if (dialog === null) {
    dialog = document.createElement("dialog");
    dialog.addEventListener("close", closeDialog);
    document.body.append(dialog);
  }
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => dialog?.close());
  const heading = card.querySelector("h2");
  heading.id = "order-title";
  heading.tabIndex = -1;
  card.append(close);
  dialog.setAttribute("aria-labelledby", heading.id);
  dialog.replaceChildren(card);
  if (!dialog.open) dialog.showModal();
  (card.querySelector("input:not([type=hidden])") ?? heading).focus();
  look(card);
}

// The page itself is shown where it is no order: to sign in, or after a fault on the way.
async function load(url, options) {
  try {
    const [card, at] = await fetchCard(url, options);
    if (card === null) location.assign(at);
    else showDialog(card);
  } catch {
    location.assign(url);
  }
}

async function look(card) {
  const url = card.querySelector("[data-pending]")?.dataset.pending;
  if (url === undefined) return;
  await new Promise((done) => setTimeout(done, LOOK_MS));
  if (!card.isConnected) return;
  let newest = null;
  try {
    [newest] = await fetchCard(url);
  } catch {
    // the next look may succeed
  }
  const [old, now] = [card.querySelector("[role=status]"), newest?.querySelector("[role=status]")];
  if (old && now && old.innerHTML !== now.innerHTML) old.innerHTML = now.innerHTML;
  if (newest !== null && newest.querySelector("[data-pending]") === null) {
    card.querySelector("[data-pending]")?.remove();
    card.querySelector("a[data-again]")?.remove();
    readAgain();
  }
  look(card);
}

async function preview(form) {
  const url = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
  const will = form.parentElement.querySelector("#will");
  const number = ++asked;
  try {
    const [card, at] = await fetchCard(url);
    if (number !== asked || !will.isConnected) return;
    const newest = card?.querySelector("#will");
    if (newest) will.replaceChildren(...newest.childNodes);
    else location.assign(card === null ? at : url); // the session has ended, or the run
  } catch {
    // the button asks again
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-order]");
  if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  opener = link.getAttribute("href");
  load(opener);
});

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (!form || !("ask" in form.dataset)) return;
  clearTimeout(typing);
  // What is shown is of other words: it is not sent any more.
  for (const button of form.parentElement.querySelectorAll("#will button")) button.disabled = true;
  typing = setTimeout(() => preview(form), TYPING_MS);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if ("ask" in form.dataset) {
    event.preventDefault();
    clearTimeout(typing);
    preview(form);
  } else if (dialog?.contains(form)) {
    event.preventDefault();
    load(form.getAttribute("action"), { method: "POST", body: new URLSearchParams(new FormData(form)) });
  }
});

const shown = document.getElementById("order");
if (shown !== null) look(shown);
