"use strict";
// The strip below the tables: progress over time.

const TICK_SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200];
let stripChanged = true;

function drawStrip() {
  const strip = $("strip"), context = strip.getContext("2d"), ratio = pixelRatio();
  const width = strip.width / ratio, height = strip.height / ratio, foot = height - 15;
  const { first, last } = frame, span = Math.max(last - first, 300);
  const x = (period) => 2 + (width - 4) * (period - first) / span, y = (progress) => foot - (foot - 5) * progress;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px " + getComputedStyle(document.body).fontFamily;
  context.fillStyle = colours.soft;
  if (hello.success !== null) drawThreshold(context, y(hello.success), width);
  drawTimeAxis(context, x, { first, span, width, height, foot });
  for (const panel of panels) drawProgress(context, panel, x, y);
  scene.drawLine(context, [[x(last), 2], [x(last), foot]], { stroke: colours.ink, lineWidth: 1.5 });
  scene.drawCircle(context, x(last), y(panels[0].progress.get(last) ?? 0), 4, { fill: colours.card, stroke: colours.ink, lineWidth: 1.5 });
  $("clock").textContent = `${(last / hello.hz).toFixed(1)} s`;
}

function drawThreshold(context, y, width) {
  scene.drawLine(context, [[2, y], [width - 2, y]], { stroke: colours.goal, strokeAlpha: 0.8, dash: [3, 4] });
  context.fillStyle = colours.soft;
  context.textAlign = "left";
  if (width > 720) context.fillText(hello.texts.threshold, 9, y + 13);   // on a short strip it would cover the curve
}

function drawTimeAxis(context, x, { first, span, width, height, foot }) {
  const every = TICK_SECONDS.find((s) => s * hello.hz * (width - 4) / span >= 52) ?? TICK_SECONDS.at(-1);
  context.textAlign = "center";
  context.beginPath();
  context.moveTo(2, foot + 0.5);
  context.lineTo(width - 2, foot + 0.5);
  for (let s = Math.ceil(first / hello.hz / every) * every; s * hello.hz <= first + span; s += every) {
    const at = x(s * hello.hz), text = `${s} s`, half = context.measureText(text).width / 2;
    context.moveTo(Math.round(at) + 0.5, foot);
    context.lineTo(Math.round(at) + 0.5, foot + 4);
    context.fillText(text, clamp(at, half + 2, width - half - 2), height - 1);
  }
  paintPath(context, { stroke: colours.line });
}

function drawProgress(context, panel, x, y) {
  const known = [...panel.progress].sort((a, b) => a[0] - b[0]).map(([period, value]) => [x(period), y(value)]);
  if (!known.length) return;
  const colour = colourOf(panel), two = panels.length === 2;
  if (!two) {
    const area = [...known, [known.at(-1)[0], y(0)], [known[0][0], y(0)]];
    scene.drawLine(context, area, { fill: colour, fillAlpha: 0.1 });
  }
  // The second line is dashed: where both coincide, both can be seen.
  scene.drawLine(context, known, { stroke: colour, lineWidth: two && !panel.index ? 2.6 : 2, dash: panel.index ? [6, 6] : [] });
}
