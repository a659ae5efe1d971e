"use strict";
// Draw Push-T on a 2D canvas. The live page loads this file, a report inlines it.
// Lengths are pixels of the table, angles radians, y points down. A pose of the block is [x, y, angle];
// a frame is [agent x, agent y, block x, block y, block angle, ...].

const BLOCK_ANGLE = 4; // index in a frame

/** Return the signed angle from `a` to `b`, the short way round. */
const angleBetween = (a, b) => Math.atan2(Math.sin(b - a), Math.cos(b - a));

/** Interpolate between two frames; `share` goes from 0 to 1. */
function mixFrames(a, b, share) {
  return a.map((value, k) => value + share * (k === BLOCK_ANGLE ? angleBetween(value, b[k]) : b[k] - value));
}

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

/** The shapes of the table, in the units of the context; `paint` arguments are those of `paintPath`. */
class Scene {
  constructor({ side, radius, outline, goal }) {
    Object.assign(this, { side, radius, outline, goal });
  }

  /** Return the corners of the block at a pose. */
  corners([x, y, angle]) {
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    return this.outline.map(([u, v]) => [x + c * u - s * v, y + s * u + c * v]);
  }

  /** Make the outline of the block the current path. */
  traceBlock(context, pose) {
    context.beginPath();
    for (const [x, y] of this.corners(pose)) context.lineTo(x, y);
    context.closePath();
  }

  drawBlock(context, pose, paint) {
    this.traceBlock(context, pose);
    paintPath(context, paint);
  }

  drawGoal(context, paint) {
    this.drawBlock(context, this.goal, paint);
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
