// What a page does beyond being read: live values, the reader's theme and zone. All of it can be missing.
"use strict";

const SILENT_MS = 20_000; // a server that lives says something every 15 s
const heard = document.getElementById("heard");

// The theme: theme.js has applied it before the page was drawn, and tells which it is.
function offerThemes() {
  const place = document.getElementById("theme");
  if (place === null) return;
  const select = document.createElement("select");
  select.setAttribute("aria-label", "Theme");
  for (const theme of ["auto", "light", "dark"]) select.add(new Option(theme, theme));
  select.value = document.documentElement.dataset.theme ?? "auto";
  select.addEventListener("change", () => {
    if (select.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = select.value;
    try {
      localStorage.setItem("theme", select.value);
    } catch {
      // chosen for this page alone
    }
  });
  place.replaceChildren(select);
}

// Times: as the server writes them, in the zone of the reader.
const DAY_MS = 86_400_000;

function momentText(moment, now) {
  const clock = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  const days = Math.abs(Math.round((midnight(moment) - midnight(now)) / DAY_MS));
  if (days === 0) return clock;
  if (days < 7) return `${moment.toLocaleDateString("en-GB", { weekday: "short" })}\u00a0${clock}`;
  const month = moment.toLocaleDateString("en-GB", { month: "short" }).slice(0, 3);
  const year = moment.getFullYear() === now.getFullYear() ? "" : `\u00a0${moment.getFullYear()}`;
  return `${moment.getDate()}\u00a0${month}${year}\u00a0${clock}`;
}

function showTimes() {
  const now = new Date();
  for (const element of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (!Number.isNaN(moment.getTime())) element.textContent = momentText(moment, now);
  }
}

// Live values: the server has made all texts, here they are only put where they belong.
let source = null;
let silence = 0;
let lastHeard = new Date();

function showBar(svg, [drawn, mark]) {
  const percent = (ratio) => `${(100 * Math.min(Math.max(ratio, 0), 1)).toFixed(1)}%`;
  svg.querySelector(".filled")?.setAttribute("width", percent(drawn));
  const line = svg.querySelector(".mark");
  if (line === null || mark === null) return;
  line.setAttribute("x1", percent(mark));
  line.setAttribute("x2", percent(mark));
}

function sayHeard(words) {
  if (heard !== null) heard.textContent = words + lastHeard.toLocaleTimeString("en-GB");
}

function isAlive() {
  lastHeard = new Date();
  clearTimeout(silence);
  silence = setTimeout(() => sayHeard("last heard "), SILENT_MS);
}

function show(event) {
  const values = JSON.parse(event.data);
  for (const [id, text] of Object.entries(values.texts)) {
    const element = document.getElementById(id);
    if (element !== null && element.textContent !== text) element.textContent = text;
  }
  for (const [id, shares] of Object.entries(values.bars)) {
    const svg = document.getElementById(id);
    if (svg !== null) showBar(svg, shares);
  }
  isAlive();
  sayHeard("as of ");
}

function listen() {
  if (source !== null) return;
  isAlive();
  source = new EventSource("/v1/events");
  source.addEventListener("open", isAlive);
  source.addEventListener("values", show);
  source.addEventListener("alive", isAlive);
  source.addEventListener("error", () => {
    // A refused stream is not asked for again by the browser itself.
    if (source?.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(follow, SILENT_MS);
  });
}

// Browsers allow six connections to a server; tabs that nobody sees hold none.
function follow() {
  if (!document.hidden) {
    listen();
  } else if (source !== null) {
    source.close();
    source = null;
    clearTimeout(silence);
  }
}

offerThemes();
showTimes();
document.addEventListener("visibilitychange", follow);
window.addEventListener("pagehide", () => source?.close());
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  source = null;
  follow();
});
follow();
