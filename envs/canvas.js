"use strict";
// Helpers for 2D canvases and the axes of charts. The live page loads this file, a report inlines it.

/** Return canvas pixels per CSS pixel, at most 2 because more cannot be seen. */
const pixelRatio = () => Math.min(window.devicePixelRatio || 1, 2);

/** Read CSS variables of the page by name, without their leading dashes. */
function readColours(names) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Return about `count` round numbers between low and high. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
  const values = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) values.push(tick);
  return values;
}

/** Return the labels of ticks, with as many digits as tell them apart. */
function labels(values) {
  const step = values.length > 1 ? values[1] - values[0] : Math.abs(values[0]) / 100 || 1;
  return values.map((value) => {
    const [size, unit] = Math.abs(value) >= 1000 && step >= 100 ? [1000, "k"] : [1, ""];
    const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / size) - 1e-9), 0), 12);
    return `${+(value / size).toFixed(digits)}${unit}`.replace("-", "−");
  });
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
