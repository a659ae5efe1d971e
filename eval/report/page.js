"use strict";
// Shared parts of the report's scripts: its data, its colours and the scene of its task.

const DATA = JSON.parse(document.getElementById("data").textContent);
const scene = new Scene(DATA);
const find = (selector, within = document) => within.querySelector(selector);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Read the page's colours, light or dark. */
function readPalette() {
  const rows = Array.from({ length: DATA.colours }, (_, i) => `s${i}`);
  return { ...readColours([...scene.colours, "bad"]), rows: Object.values(readColours(rows)) };
}

/** Resize the bitmap of a canvas to the screen and return its context, in units of CSS pixels. */
function fitCanvas(canvas, width, height) {
  const ratio = pixelRatio();
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
