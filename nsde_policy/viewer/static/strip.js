"use strict";
// The strip below the tables: progress over time.

const STRIP_LEFT = 40, STRIP_TOP = 8, STRIP_RIGHT = 6;   // pixels around the curves; labels of the axis are on the left
let stripChanged = true;

function drawStrip() {
  const strip = $("strip"), context = strip.getContext("2d"), ratio = pixelRatio();
  const width = strip.width / ratio, height = strip.height / ratio, foot = height - 15;
  const { last } = frame, span = Math.max(last, 300);
  const x = (period) => STRIP_LEFT + (width - STRIP_LEFT - STRIP_RIGHT) * period / span;
  const y = (progress) => foot - (foot - STRIP_TOP) * progress;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px " + getComputedStyle(document.body).fontFamily;
  context.fillStyle = colours.soft;
  if (hello.success !== null) drawThreshold(context, x(last), y(hello.success), width);
  drawAxes(context, x, y, { span, width, height, foot });
  for (const panel of panels) drawProgress(context, panel, x, y);
  scene.drawLine(context, [[x(last), 2], [x(last), foot]], { stroke: colours.ink, lineWidth: 1.5 });
  scene.drawCircle(context, x(last), y(panels[0].progress.at(-1) ?? 0), 4, { fill: colours.card, stroke: colours.ink, lineWidth: 1.5 });
  $("clock").textContent = `${(last / hello.hz).toFixed(1)} s`;
}

function drawThreshold(context, played, y, width) {
  const right = width - STRIP_RIGHT, { threshold } = hello.texts;
  scene.drawLine(context, [[STRIP_LEFT, y], [right, y]], { stroke: colours.goal, strokeAlpha: 0.8, dash: [3, 4] });
  context.fillStyle = colours.soft;
  context.textAlign = "right";
  if (played < right - context.measureText(threshold).width - 12) context.fillText(threshold, right, y + 13);   // or it would cover the curve
}

function drawAxes(context, x, y, { span, width, height, foot }) {
  context.textAlign = "right";
  for (const value of [0, hello.success ?? 1]) context.fillText(percent(value), STRIP_LEFT - 6, y(value) + 4);
  context.textAlign = "center";
  context.beginPath();
  context.moveTo(STRIP_LEFT, foot + 0.5);
  context.lineTo(width - STRIP_RIGHT, foot + 0.5);
  const seconds = ticks(0, span / hello.hz, (width - STRIP_LEFT) / 60), texts = labels(seconds);
  for (const [k, second] of seconds.entries()) {
    const at = x(second * hello.hz), text = `${texts[k]} s`, half = context.measureText(text).width / 2;
    context.moveTo(Math.round(at) + 0.5, foot);
    context.lineTo(Math.round(at) + 0.5, foot + 4);
    context.fillText(text, Math.min(at, width - half - 2), height - 1);
  }
  paintPath(context, { stroke: colours.line });
}

function drawProgress(context, panel, x, y) {
  const known = panel.progress.flatMap((value, period) => [[x(period), y(value)]]);     // skips periods without a frame
  if (!known.length) return;
  const colour = colourOf(panel), two = panels.length === 2;
  if (!two) {
    const area = [...known, [known.at(-1)[0], y(0)], [known[0][0], y(0)]];
    scene.drawLine(context, area, { fill: colour, fillAlpha: 0.1 });
  }
  // The second line is dashed: where both coincide, both can be seen.
  scene.drawLine(context, known, { stroke: colour, lineWidth: two && !panel.index ? 2.6 : 2, dash: panel.index ? [6, 6] : [] });
}
