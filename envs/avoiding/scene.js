"use strict";
// Draw obstacle avoidance on a 2D canvas. The live page loads this file, a report inlines it.
// The canvas has pixels of the page, y down. A frame of a report is
// [commanded x, commanded y, actual x, actual y, ...] in metres, y up; a frame of the live page is [x, y] in
// pixels. The interface of a task's scene is documented in envs/scene.py.

class Scene extends BaseScene {
  constructor({ side, radius, scale, origin, obstacles, finish }) {
    super({ side, radius });
    Object.assign(this, { scale, origin, obstacles, finish });
    this.colours = ["table", "goal", "goal-edge", "block", "block-edge"];
  }

  /** Convert metres to pixels. */
  toPixels([x, y]) {
    return [(x - this.origin[0]) * this.scale, (this.origin[1] - y) * this.scale];
  }

  /** Draw a frame: the path of the rod in `trail` up to it, and where it started. */
  drawFrame(context, frame, { trail, start, colour, palette, width }) {
    const rod = (values) => this.toPixels(values.slice(2, 4));
    context.fillStyle = palette.table;
    context.fillRect(0, 0, this.side, this.side);
    this.drawStill(context, { ...palette, goal: palette["goal-edge"] }, width);
    this.drawCircle(context, ...rod(start), 3 * width, { fill: palette["block-edge"], fillAlpha: 0.5 });
    this.drawLine(context, trail.map(rod), { stroke: colour, strokeAlpha: 0.6, lineWidth: 3 * width });
    this.drawAgent(context, rod(frame), { fill: colour, stroke: palette.table, lineWidth: 2 });
  }

  /** Draw what does not move: the finish and the obstacles. */
  drawStill(context, colours, width = 1) {
    const [, y] = this.toPixels([0, this.finish]);
    context.beginPath();
    context.rect(0, 0, this.side, y);
    paintPath(context, { fill: colours.goal, fillAlpha: 0.16 });
    this.drawLine(context, [[0, y], [this.side, y]], { stroke: colours.goal, lineWidth: 1.6 * width, dash: [5, 4] });
    for (const [ox, oy, radius] of this.obstacles) {
      this.drawCircle(context, ...this.toPixels([ox, oy]), radius * this.scale, {
        fill: colours.block, fillAlpha: 0.94, stroke: colours["block-edge"], lineWidth: 1.8 * width,
      });
    }
  }
}
