"use strict";
// One moment of Push-T on a canvas: table, goal, block, agent and the way it came.

const DATA = JSON.parse(document.getElementById("data").textContent);
const [AX, AY, BX, BY, ANGLE, COVERAGE] = [0, 1, 2, 3, 4, 5];
const find = (selector, within = document) => within.querySelector(selector);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The page's colours as they are now, light or dark. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["table", "wall", "goal", "goal-edge", "block", "block-edge", "ink", "muted", "card", "bad", "good"];
  const found = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  found.rows = Array.from({ length: DATA.colours }, (_, i) => style.getPropertyValue(`--s${i}`).trim());
  return found;
}

/** The T at a pose (x, y, angle), as a path in pixels of the table. */
function outline(context, x, y, angle) {
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  context.beginPath();
  for (const [u, v] of DATA.outline) context.lineTo(x + c * u - s * v, y + s * u + c * v);
  context.closePath();
}

/** Draw a frame onto a square whose side is that of the table; `trail` are the frames up to it. */
function drawScene(context, palette, row, frame, { trail = [], ghost = null, width = 1 } = {}) {
  const colour = palette.rows[row % DATA.colours];
  context.fillStyle = palette.table;
  context.fillRect(0, 0, DATA.side, DATA.side);
  outline(context, ...DATA.goal);
  context.fillStyle = palette.goal;
  context.fill();
  context.strokeStyle = palette["goal-edge"];
  context.lineWidth = 2 * width;
  context.stroke();
  if (ghost) {
    outline(context, ghost[BX], ghost[BY], ghost[ANGLE]);
    context.fillStyle = context.strokeStyle = palette["block-edge"];
    context.globalAlpha = 0.07;
    context.fill();
    context.globalAlpha = 0.5;
    context.lineWidth = 1.5 * width;
    context.stroke();
    context.globalAlpha = 1;
  }
  outline(context, frame[BX], frame[BY], frame[ANGLE]);
  context.fillStyle = palette.block;
  context.fill();
  context.strokeStyle = palette["block-edge"];
  context.lineWidth = 3 * width;
  context.lineJoin = "round";
  context.stroke();
  if (trail.length > 1) {
    context.beginPath();
    for (const past of trail) context.lineTo(past[AX], past[AY]);
    context.strokeStyle = colour;
    context.globalAlpha = 0.5;
    context.lineWidth = 3 * width;
    context.stroke();
    context.globalAlpha = 1;
  }
  context.beginPath();
  context.arc(frame[AX], frame[AY], DATA.radius, 0, 7);
  context.fillStyle = colour;
  context.fill();
  context.strokeStyle = palette.table;
  context.lineWidth = 2.5;
  context.stroke();
}

/** A canvas's context, its bitmap as sharp as the screen, in units of CSS pixels. */
function sharp(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
