"use strict";
// Helpers for 2D canvases. The live page loads this file, a report inlines it.

/** Return canvas pixels per CSS pixel, at most 2 because more cannot be seen. */
const pixelRatio = () => Math.min(window.devicePixelRatio || 1, 2);

/** Read CSS variables of the page by name, without their leading dashes. */
function readColours(names) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Fill and stroke the current path of a context; colours that are not given are not painted. */
function paintPath(context, { fill, fillAlpha = 1, stroke, strokeAlpha = 1, lineWidth = 1, dash = [] }) {
  context.lineJoin = "round";
  if (fill) {
    context.globalAlpha = fillAlpha;
    context.fillStyle = fill;
    context.fill();
  }
  if (stroke) {
    context.globalAlpha = strokeAlpha;
    context.strokeStyle = stroke;
    context.lineWidth = lineWidth;
    context.setLineDash(dash);
    context.stroke();
    context.setLineDash([]);
  }
  context.globalAlpha = 1;
}
