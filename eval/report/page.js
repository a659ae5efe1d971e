"use strict";
// Shared parts of the report's scripts: its data, helpers, and drawing again when the width changes.

const DATA = JSON.parse(document.getElementById("data").textContent);
const find = (selector, within = document) => within.querySelector(selector);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Functions that draw again after the width or the colours of the page have changed. */
const redraws = [];
const redraw = () => redraws.forEach((drawAgain) => drawAgain());

let resizeTimer = 0;
let lastWidth = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === lastWidth) return; // only the address bar of a phone changed
  lastWidth = window.innerWidth;
  clearTimeout(resizeTimer);
  resizeTimer = setTimeout(redraw, 120);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

/** Resize the bitmap of a canvas to the screen and return its context, in units of CSS pixels. */
function fitCanvas(canvas, width, height) {
  const ratio = pixelRatio();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
