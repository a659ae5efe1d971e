"use strict";
// Light or dark. Runs before the page is painted, so that a dark page does not flash.

const THEME_KEY = "nsde-policy-theme";
const systemTheme = matchMedia("(prefers-color-scheme: dark)");

function storedTheme() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null; // private windows have no storage
  }
}

function setTheme(theme, { store = true } = {}) {
  document.documentElement.dataset.theme = theme;
  if (store) try { localStorage.setItem(THEME_KEY, theme); } catch { /* private windows have no storage */ }
  dispatchEvent(new Event("themechange"));
}

function followSystemTheme() {
  if (!storedTheme()) setTheme(systemTheme.matches ? "dark" : "light", { store: false });
}

systemTheme.addEventListener("change", followSystemTheme);
if (storedTheme()) setTheme(storedTheme(), { store: false });
else followSystemTheme();
