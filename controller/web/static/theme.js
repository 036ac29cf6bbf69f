// The theme that the reader has chosen in this browser: applied before anything is drawn, so that nothing flashes.
"use strict";

try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is forbidden: the theme of the system
}
