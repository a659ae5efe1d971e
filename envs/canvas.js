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

/** Shapes that the scenes of all tasks share; `paint` arguments are those of `paintPath`. */
class BaseScene {
  constructor({ side, radius }) {
    Object.assign(this, { side, radius });
  }

  /** Interpolate between two frames; `share` goes from 0 to 1. */
  mixFrames(a, b, share) {
    return a.map((value, k) => value + share * (b[k] - value));
  }

  drawCircle(context, x, y, radius, paint) {
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    paintPath(context, paint);
  }

  drawAgent(context, [x, y], paint) {
    this.drawCircle(context, x, y, paint.radius ?? this.radius, paint);
  }

  /** Draw a line through points [x, y, ...]. */
  drawLine(context, points, paint) {
    context.beginPath();
    for (const [x, y] of points) context.lineTo(x, y);
    paintPath(context, paint);
  }
}
