"use strict";
// Live values, the theme, and what is below the pointer in a chart. Every page is whole without this.
{
  const SILENT_MS = 20_000;
  const REFRESH_MS = 60_000;
  const MIN_REFRESH_MS = 5_000;

  // The theme: the browser's, light or dark. This script is loaded before anything is painted.
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const stored = {
    get theme() {
      try { return localStorage.getItem("theme"); } catch { return null; }
    },
    set theme(name) {
      try { localStorage.setItem("theme", name); } catch { /* private windows keep nothing */ }
    },
  };
  let theme = themes.includes(stored.theme) ? stored.theme : "auto";
  const applyTheme = () => {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  applyTheme();

  const addThemeButton = (place) => {
    const button = document.createElement("button");
    button.type = "button";
    const name = () => { button.textContent = `Theme: ${theme}`; };
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      stored.theme = theme;
      applyTheme();
      name();
    });
    name();
    place.append(button);
  };

  // The readout of a chart: the row of its table that is nearest to the pointer, or that the arrow keys lead to.
  const addReadout = (figure) => {
    const rows = [...figure.querySelectorAll("tr[data-x]")];
    const panels = figure.querySelector(".panels");
    const plot = figure.querySelector(".plot");
    if (!rows.length || !panels || !plot || figure.querySelector(".readout")) return;
    const readout = document.createElement("p");
    readout.className = "readout";
    readout.setAttribute("aria-live", "polite");
    const line = document.createElement("div");
    line.className = "cross";
    line.hidden = true;
    panels.after(readout);
    panels.append(line);
    panels.tabIndex = 0;
    let place = -1;
    const show = (next) => {
      place = Math.max(0, Math.min(rows.length - 1, next));
      const [first, ...others] = rows[place].cells;
      const said = others.filter((cell) => cell.textContent).map((cell) => `${cell.dataset.label} ${cell.textContent}`);
      readout.textContent = [first.textContent, ...said].join(" · ");
      const inside = panels.getBoundingClientRect();
      const drawn = plot.getBoundingClientRect();
      line.style.left = `${drawn.left - inside.left + Number(rows[place].dataset.x) * drawn.width}px`;
      line.hidden = false;
    };
    panels.addEventListener("pointermove", (event) => {
      const drawn = plot.getBoundingClientRect();
      const x = (event.clientX - drawn.left) / drawn.width;
      const distance = (row) => Math.abs(Number(row.dataset.x) - x);
      show(rows.reduce((best, row, at) => (distance(row) < distance(rows[best]) ? at : best), 0));
    });
    panels.addEventListener("keydown", (event) => {
      const page = Math.ceil(rows.length / 10);
      const nexts = {
        ArrowLeft: place - 1, ArrowRight: place + 1, PageUp: place - page, PageDown: place + page,
        Home: 0, End: rows.length - 1,
      };
      if (!(event.key in nexts)) return;
      event.preventDefault();
      show(nexts[event.key]);
    });
  };

  // Values: texts, and of a gauge what is read aloud, its end and its mark.
  const apply = (id, value) => {
    const found = document.getElementById(id);
    if (!found) return;
    if (!Array.isArray(value)) {
      if (found.textContent !== value) found.textContent = value;
      return;
    }
    const [label, end, mark] = value;
    found.setAttribute("aria-label", label);
    found.querySelector(".filled")?.setAttribute("width", end);
    for (const side of ["x1", "x2"]) if (mark) found.querySelector(".mark")?.setAttribute(side, mark);
  };

  // More than values has changed: the page is read again, and what differs in it is replaced, but nothing that is in use.
  let shape = "";
  let readMs = Date.now();
  let isReading = false;
  const refresh = async () => {
    if (isReading) return;
    isReading = true;
    readMs = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
      const main = document.getElementById("main");
      if (!fresh || !main) return;
      replaceChanged(main, fresh);
    } catch {
      // The stream tells what is wrong, and comes again.
    } finally {
      isReading = false;
    }
  };
  const sources = new WeakMap();  // of what is shown: as it came, before any script had changed it
  const replaceChanged = (main, fresh) => {
    const [olds, news] = [[...main.children], [...fresh.children]];
    news.forEach((part, at) => {
      const source = part.outerHTML;
      const old = olds[at];
      if (old && sources.get(old) === source) return;
      if (old && (old.contains(document.activeElement) || old.querySelector("details[open]"))) return;
      sources.set(part, source);
      if (old) old.replaceWith(part);
      else main.append(part);
    });
    olds.slice(news.length).forEach((old) => old.remove());
    main.querySelectorAll("figure.chart").forEach(addReadout);
  };

  // The stream is open only while somebody looks: browsers allow six connections to a host.
  const listen = (heard) => {
    let source = null;
    let heardMs = 0;
    const tell = () => {
      const at = new Date(heardMs).toLocaleTimeString([], { hour12: false });
      const isSilent = Date.now() - heardMs > SILENT_MS;
      heard.textContent = isSilent ? `last heard ${at}` : `live · ${at}`;
      heard.classList.toggle("silent", isSilent);
    };
    const take = (event) => {
      heardMs = Date.now();
      if (event.type === "values") {
        const said = JSON.parse(event.data);
        for (const [id, value] of Object.entries(said.values)) apply(id, value);
        if (!shape) shape = said.shape;
        else if (said.shape !== shape && heardMs - readMs > MIN_REFRESH_MS) {
          shape = said.shape;
          refresh();
        }
      }
      tell();
    };
    const open = () => {
      if (source || document.hidden) return;
      source = new EventSource("/v1/events");
      source.addEventListener("values", take);
      source.addEventListener("heartbeat", take);
    };
    const close = () => {
      source?.close();
      source = null;
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    addEventListener("pagehide", close);
    addEventListener("pageshow", open);
    setInterval(() => {
      if (heardMs) tell();
      if (source?.readyState === EventSource.CLOSED) {  // a browser gives up after an answer that is no stream
        close();
        open();
      }
      if (!document.hidden && Date.now() - readMs > REFRESH_MS) refresh();
    }, 5_000);
    open();
  };

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("#theme").forEach(addThemeButton);
    document.querySelectorAll("main > *").forEach((part) => sources.set(part, part.outerHTML));
    document.querySelectorAll("figure.chart").forEach(addReadout);
    const heard = document.getElementById("heard");
    if (heard) listen(heard);
  });
}
