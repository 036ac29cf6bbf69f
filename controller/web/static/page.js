// What a page does beyond being read: live values, what is below the pointer in a chart, the reader's theme and time zone.
// All of it can be missing.
"use strict";

const SILENT_MS = 20_000; // a server that lives says something every 15 s
const REFRESH_MS = 60_000;
const MIN_REFRESH_MS = 15_000;
const main = document.getElementById("main");
const heard = document.getElementById("heard");

// The theme: theme.js has applied it before the page was drawn.
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

// The readout of a chart: the row of its table that is nearest to the pointer, or that the arrow keys lead to.
function addReadout(figure) {
  const rows = [...figure.querySelectorAll("tr[data-x]")];
  const panels = figure.querySelector(".panels");
  const plot = figure.querySelector(".plot");
  if (rows.length === 0 || panels === null || plot === null || figure.querySelector(".readout") !== null) return;
  const readout = document.createElement("p");
  readout.className = "readout";
  readout.setAttribute("aria-live", "polite");
  const line = document.createElement("div");
  line.className = "cross";
  line.hidden = true;
  panels.append(line);
  (figure.querySelector(".x-label") ?? panels).after(readout);
  panels.tabIndex = 0;
  let place = -1;

  const show = (wanted) => {
    place = Math.max(0, Math.min(rows.length - 1, wanted));
    const [first, ...cells] = rows[place].cells;
    const known = cells.filter((cell) => cell.textContent !== "");
    readout.textContent = [first.textContent, ...known.map((cell) => `${cell.dataset.label} ${cell.textContent}`)].join(" · ");
    const [outside, inside] = [panels.getBoundingClientRect(), plot.getBoundingClientRect()];
    line.style.left = `${inside.left - outside.left + Number(rows[place].dataset.x) * inside.width}px`;
    line.hidden = false;
  };
  panels.addEventListener("pointermove", (event) => {
    const inside = plot.getBoundingClientRect();
    const x = (event.clientX - inside.left) / inside.width;
    const distance = (row) => Math.abs(Number(row.dataset.x) - x);
    show(rows.reduce((nearest, row, at) => (distance(row) < distance(rows[nearest]) ? at : nearest), 0));
  });
  panels.addEventListener("keydown", (event) => {
    const page = Math.ceil(rows.length / 10);
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -page, PageDown: page };
    const ends = { Home: 0, End: rows.length - 1 };
    const wanted = ends[event.key] ?? (event.key in steps ? place + steps[event.key] : null);
    if (wanted === null) return;
    event.preventDefault();
    show(wanted);
  });
}

// What is no live value: the page is read again, and each of its parts that is another one now is replaced, unless it is in use.
const sources = new WeakMap(); // of each part: its markup as the server sent it
let shape = "";
let readAt = performance.now(); // the browser's clock may be wrong, or be set
let planned = 0;

function remember() {
  for (const part of main.children) if (!sources.has(part)) sources.set(part, part.outerHTML);
  main.querySelectorAll("figure.chart").forEach(addReadout);
}

function isInUse(part) {
  return part.contains(document.activeElement) || part.querySelector("details[open]") !== null;
}

function planReading(inMs) {
  if (planned !== 0 || !("follows" in main.dataset)) return;
  planned = setTimeout(() => {
    planned = 0;
    readAgain();
  }, inMs);
}

async function readAgain() {
  readAt = performance.now();
  tellZone();
  let page;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    page = new DOMParser().parseFromString(await answer.text(), "text/html");
  } catch {
    return; // the stream says that the server is away
  }
  const parts = [...main.children];
  const newest = [...(page.getElementById("main")?.children ?? [])];
  const isOtherZone = page.getElementById("main")?.dataset.zone !== main.dataset.zone;
  if (newest.length === 0) return;
  newest.forEach((part, at) => {
    const old = parts[at];
    if (old === undefined) main.append(part);
    else if (isOtherZone || (sources.get(old) !== part.outerHTML && !isInUse(old))) old.replaceWith(part);
  });
  for (const gone of parts.slice(newest.length)) if (!isInUse(gone)) gone.remove();
  main.dataset.zone = page.getElementById("main").dataset.zone ?? "";
  document.querySelector("footer")?.replaceWith(page.querySelector("footer") ?? "");
  remember();
}

// The time zone of the browser: the server makes all times, and is told it by a cookie. A page of another one is read again, once.
let toldZone = "";

function tellZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone || zone === toldZone) return false;
  toldZone = zone;
  document.cookie = `gridchase-zone=${zone}; Path=/; Max-Age=31536000; SameSite=Strict`;
  return zone !== main.dataset.zone;
}

// Live values: the server has made all texts, here they are only put where they belong.
let source = null;
let silence = 0;
let lastHeard = new Date(heard?.querySelector("time")?.dateTime ?? Date.now()); // by the clock of the server, as all times

function showBar(svg, [drawn, mark]) {
  const percent = (ratio) => `${(100 * Math.min(Math.max(ratio, 0), 1)).toFixed(1)}%`;
  svg.querySelector(".filled")?.setAttribute("width", percent(drawn));
  const line = svg.querySelector(".mark");
  if (line === null || mark === null) return;
  line.setAttribute("x1", percent(mark));
  line.setAttribute("x2", percent(mark));
}

function sayHeard(words) {
  if (heard === null) return;
  heard.textContent = words + lastHeard.toLocaleTimeString("en-GB", { timeZone: main.dataset.zone || undefined });
  heard.classList.toggle("silent", words !== "as of ");
}

function awaitSigns() {
  clearTimeout(silence);
  silence = setTimeout(() => sayHeard("last heard "), SILENT_MS);
}

function isAlive(event) {
  lastHeard = new Date(1000 * JSON.parse(event.data).time_s);
  awaitSigns();
  sayHeard("as of ");
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
  isAlive(event);
  const age = performance.now() - readAt;
  if (age > REFRESH_MS || (shape !== "" && values.shape !== shape)) planReading(Math.max(0, MIN_REFRESH_MS - age));
  shape = values.shape;
}

function listen() {
  if (source !== null) return;
  awaitSigns();
  source = new EventSource("/v1/events");
  source.addEventListener("values", show);
  source.addEventListener("alive", (event) => {
    isAlive(event);
    if (performance.now() - readAt > REFRESH_MS) planReading(0);
  });
  source.addEventListener("error", () => {
    // A refused stream is not asked for again by the browser itself.
    if (source?.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(follow, SILENT_MS);
  });
}

function ignore() {
  source?.close();
  source = null;
  clearTimeout(silence);
  clearTimeout(planned);
  planned = 0;
}

// Browsers allow six connections to a server; tabs that nobody sees hold none.
function follow() {
  if (document.hidden) {
    ignore();
    return;
  }
  listen();
  if (tellZone()) readAgain();
}

offerThemes();
remember();
document.addEventListener("visibilitychange", follow);
window.addEventListener("pagehide", ignore);
window.addEventListener("pageshow", follow);
follow();
