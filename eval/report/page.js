"use strict";
// Shared parts of the report's scripts: its data, its colours, and one frame of an episode on a canvas.

const DATA = JSON.parse(document.getElementById("data").textContent);
const COVERAGE = 5; // index in a frame, behind the poses that scene.js draws
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
  const names = ["table", "goal", "goal-edge", "block", "block-edge", "bad"];
  const rows = Array.from({ length: DATA.colours }, (_, i) => `s${i}`);
  return { ...readColours(names), rows: Object.values(readColours(rows)) };
}

/** Draw a frame on a square of the table's side: the path up to it, and the block of `start` as an outline. */
function drawFrame(context, palette, row, frame, { trail, start, width }) {
  const colour = palette.rows[row % DATA.colours], edge = palette["block-edge"];
  const block = (pose) => pose.slice(2, 5);
  context.fillStyle = palette.table;
  context.fillRect(0, 0, DATA.side, DATA.side);
  scene.drawGoal(context, { fill: palette.goal, stroke: palette["goal-edge"], lineWidth: 2 * width });
  scene.drawBlock(context, block(start), { fill: edge, fillAlpha: 0.07, stroke: edge, strokeAlpha: 0.5, lineWidth: 1.5 * width });
  scene.drawBlock(context, block(frame), { fill: palette.block, stroke: edge, lineWidth: 3 * width });
  scene.drawLine(context, trail, { stroke: colour, strokeAlpha: 0.5, lineWidth: 3 * width });
  scene.drawAgent(context, frame, { fill: colour, stroke: palette.table, lineWidth: 2.5 });
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
