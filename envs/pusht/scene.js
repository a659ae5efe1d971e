"use strict";
// Draw Push-T on a 2D canvas. The live page loads this file, a report inlines it.
// Lengths are pixels of the table, angles radians, y points down. A pose of the block is [x, y, angle];
// a frame is [agent x, agent y, block x, block y, block angle, ...]. The interface of a task's scene is
// documented in envs/scene.py.

const BLOCK_ANGLE = 4; // index in a frame

/** Return the signed angle from `a` to `b`, the short way round. */
const angleBetween = (a, b) => Math.atan2(Math.sin(b - a), Math.cos(b - a));

/** The shapes of the table, in the units of the context. */
class Scene extends BaseScene {
  constructor({ side, radius, outline, goal }) {
    super({ side, radius });
    Object.assign(this, { outline, goal });
    this.colours = ["table", "goal", "goal-edge", "block", "block-edge"];
  }

  /** Interpolate between two frames; `share` goes from 0 to 1. */
  mixFrames(a, b, share) {
    return a.map((value, k) => value + share * (k === BLOCK_ANGLE ? angleBetween(value, b[k]) : b[k] - value));
  }

  /** Draw a frame: the path of the agent in `trail` up to it, and the block of the frame `start` as an outline. */
  drawFrame(context, frame, { trail, start, colour, palette, width }) {
    const edge = palette["block-edge"], block = (pose) => pose.slice(2, 5);
    context.fillStyle = palette.table;
    context.fillRect(0, 0, this.side, this.side);
    this.drawGoal(context, { fill: palette.goal, stroke: palette["goal-edge"], lineWidth: 2 * width });
    this.drawBlock(context, block(start), { fill: edge, fillAlpha: 0.07, stroke: edge, strokeAlpha: 0.5, lineWidth: 1.5 * width });
    this.drawBlock(context, block(frame), { fill: palette.block, stroke: edge, lineWidth: 3 * width });
    this.drawLine(context, trail, { stroke: colour, strokeAlpha: 0.5, lineWidth: 3 * width });
    this.drawAgent(context, frame, { fill: colour, stroke: palette.table, lineWidth: 2.5 });
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

  /** Draw what does not move on the live page: the goal. */
  drawStill(context, colours) {
    this.drawGoal(context, { fill: colours.goal, fillAlpha: 0.16, stroke: colours.goal, strokeAlpha: 0.9, lineWidth: 1.6, dash: [5, 4] });
  }
}
