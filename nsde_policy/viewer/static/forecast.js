"use strict";
// Draw what a policy expects: sampled paths coloured by their σ, predicted blocks, planned actions and compared plans.

const HEAT_LEVELS = 7, FADE_STEPS = 4;   // colours of the σ scale; steps in which paths fade with time

/* Top of the σ scale: the 95th percentile of the current frame, smoothed so that colours do not flicker. */
const sigmaScale = { top: null };

function updateSigmaScale() {
  const values = frame.panels.flatMap((panel) => panel.fan?.sigma.flat() ?? []).sort((a, b) => a - b);
  if (!values.length) return;
  const p95 = Math.max(values[Math.floor(0.95 * (values.length - 1))], 0.5);
  sigmaScale.top = sigmaScale.top === null ? p95 : mix(sigmaScale.top, p95, 0.04);
  const text = (sigmaScale.top * hello.unit[1]).toFixed(1);
  if ($("sigma-top").textContent !== text) $("sigma-top").textContent = text;
}

const heatOf = (sigma) => clamp(sigma / sigmaScale.top, 0, 1);
const heatIndex = (heat) => Math.round((HEAT_LEVELS - 1) * heat);

/** Interpolate between the fans of the last two frames: a path has the same noise in both. */
function currentFan(panel) {
  const a = panel.previous?.fan, b = panel.data?.fan;
  if (!a || !b || a === b || a.paths.length !== b.paths.length) return b ?? null;
  const share = clamp(playhead.at - (playhead.latest - 1), 0, 1);
  const between = (p, q) => p.map((row, i) => row.map((value, k) => mix(value, q[i][k], share)));
  return { paths: between(a.paths, b.paths), sigma: between(a.sigma, b.sigma), block: b.block };
}

/** Draw a soft round spot once; it is stamped many times. */
function makeSpot([r, g, b]) {
  const spot = document.createElement("canvas");
  spot.width = spot.height = 32;
  const context = spot.getContext("2d"), gradient = context.createRadialGradient(16, 16, 0, 16, 16, 16);
  gradient.addColorStop(0, `rgba(${r},${g},${b},1)`);
  gradient.addColorStop(0.5, `rgba(${r},${g},${b},.35)`);
  gradient.addColorStop(1, `rgba(${r},${g},${b},0)`);
  context.fillStyle = gradient;
  context.fillRect(0, 0, 32, 32);
  return spot;
}

/** Draw σ along every path on a small canvas and enlarge it: cheaper than a blur filter. */
function drawHeat(context, panel, fan) {
  const layer = panel.heat, small = layer.getContext("2d"), scale = layer.width / scene.side;
  small.clearRect(0, 0, layer.width, layer.width);
  const share = Math.min(1, 10 / fan.paths.length);
  fan.paths.forEach((path, n) => {
    fan.sigma[n].forEach((sigma, k) => {
      const heat = heatOf(sigma), r = (7 + 11 * heat) * scale;
      small.globalAlpha = share * (0.02 + 0.055 * heat);
      small.drawImage(colours.spots[heatIndex(heat)], path[2 * k + 2] * scale - r, path[2 * k + 3] * scale - r, 2 * r, 2 * r);
    });
  });
  context.imageSmoothingQuality = "high";
  context.drawImage(layer, 0, 0, scene.side, scene.side);
}

function drawPaths(context, fan, agent, block) {
  if (block) drawPathHalo(context, fan, agent, block);
  const steps = fan.sigma[0].length, opacity = 0.5 + 0.4 * Math.min(1, 24 / fan.paths.length);
  const bundles = Array.from({ length: HEAT_LEVELS * FADE_STEPS }, () => []);   // segments of one colour and opacity
  fan.paths.forEach((path, n) => {
    for (let k = 0; k < steps; k++) {
      bundles[Math.floor(FADE_STEPS * k / steps) * HEAT_LEVELS + heatIndex(heatOf(fan.sigma[n][k]))].push([path, k]);
    }
  });
  bundles.forEach((bundle, i) => {
    if (!bundle.length) return;
    context.beginPath();
    for (const [path, k] of bundle) {
      context.moveTo(...(k ? [path[2 * k], path[2 * k + 1]] : agent));
      context.lineTo(path[2 * k + 2], path[2 * k + 3]);
    }
    const strokeAlpha = opacity * (1 - 0.45 * Math.floor(i / HEAT_LEVELS) / FADE_STEPS);
    paintPath(context, { stroke: `rgb(${colours.heat[i % HEAT_LEVELS]})`, strokeAlpha, lineWidth: 0.8 });
  });
  fan.paths.forEach((path, n) => {
    const fill = `rgb(${colours.heat[heatIndex(heatOf(fan.sigma[n][steps - 1]))]})`;
    scene.drawCircle(context, path[2 * steps], path[2 * steps + 1], 1.5, { fill, fillAlpha: 0.8 });
  });
}

/** Outline the paths where they cross the block, or they could not be seen on it. */
function drawPathHalo(context, fan, agent, block) {
  context.save();
  scene.traceBlock(context, block);
  context.clip();
  context.beginPath();
  for (const path of fan.paths) {
    context.moveTo(...agent);
    for (let k = 2; k < path.length; k += 2) context.lineTo(path[k], path[k + 1]);
  }
  paintPath(context, { stroke: colours.table, strokeAlpha: 0.7, lineWidth: 4 });
  context.restore();
}

function drawPredictedBlocks(context, poses) {
  for (const pose of poses) scene.drawBlock(context, pose, { stroke: colours["block-edge"], strokeAlpha: 0.28 });
}

function drawPlan(context, agent, plan, colour) {
  scene.drawLine(context, [agent, ...plan], { stroke: colour, strokeAlpha: 0.55, lineWidth: 1.4, dash: [2, 5] });
  for (const [x, y] of plan) scene.drawCircle(context, x, y, 2.2, { fill: colour, fillAlpha: 0.55 });
}

/** Draw the paths of compared plans: the chosen one, which comes first, in colour, the others faintly below it. */
function drawCandidates(context, paths, colour) {
  const points = paths.map((path) => Array.from({ length: path.length / 2 }, (_, k) => path.slice(2 * k, 2 * k + 2))), [chosen, ...rejected] = points;
  for (const line of rejected) scene.drawLine(context, line, { stroke: colours.ink, strokeAlpha: 0.3, lineWidth: 1 });
  scene.drawLine(context, chosen, { stroke: colours.table, strokeAlpha: 0.8, lineWidth: 5 });
  scene.drawLine(context, chosen, { stroke: colour, lineWidth: 2.4 });
  for (const [x, y] of chosen) scene.drawCircle(context, x, y, 2.6, { fill: colour });
}
