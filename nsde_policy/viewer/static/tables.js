"use strict";
// The panels: one per policy, with its canvas, its header and playback between two frames.

let colours = {};
function loadColours() {
  const names = ["bg", "card", "ink", "soft", "line", "table", "wall", "block", "block-edge", "goal", "agent", "target", "second", "shadow", "warn"];
  colours = readColours(names);
  const [cold, hot] = Object.values(readColours(["cold", "hot"])).map((text) => text.split(",").map(Number));
  colours.heat = Array.from({ length: HEAT_LEVELS }, (_, i) => cold.map((c, k) => Math.round(mix(c, hot[k], i / (HEAT_LEVELS - 1)))));
  colours.spots = colours.heat.map(makeSpot);
  colours.shade = (alpha) => `rgba(${colours.shadow}, ${alpha})`;
  for (const panel of panels) panel.background = null;
  stripChanged = true;
}
const colourOf = (panel) => (panel.index ? colours.second : colours.agent);

/* ---- building ---- */

function buildPanels() {
  const box = $("panels");
  box.dataset.count = state.panels.length;
  $("compare").setAttribute("aria-pressed", state.panels.length === 2);
  panels = state.panels.map((name, i) => {
    const old = box.children[i]?.panel;
    const panel = old?.name === name ? old : makePanel(name, i);
    return Object.assign(panel, { samples: [], progress: [], data: null, previous: null });
  });
  box.replaceChildren(...panels.map((panel) => panel.element));
  frame = null;
  resize();
}

function makePanel(name, index) {
  const element = document.createElement("article");
  element.className = "panel";
  element.innerHTML = `<header><div><div class="pick"><i class="swatch"></i></div><div class="sub"></div></div>
    <div class="grow"></div><div class="score"><b>–</b><span></span></div></header>
    <div class="frame"><canvas role="img"></canvas></div>`;
  element.querySelector(".pick").append(makeTitle(name, index));
  const canvas = element.querySelector("canvas"), heat = document.createElement("canvas");
  heat.width = heat.height = 160;
  const panel = { name, index, element, canvas, heat, ctx: canvas.getContext("2d"), camera: makeCamera(index) };
  element.panel = panel;
  addPointerHandlers(panel);
  sizeObserver.observe(canvas.parentElement);
  return panel;
}

/** Return the title of a table: a menu if there are several methods. */
function makeTitle(name, index) {
  if (hello.mode === "collect" || hello.methods.length === 1) {
    const title = document.createElement("h2");
    title.textContent = methodOf(name)?.title ?? "Manual control";
    return title;
  }
  const select = document.createElement("select");
  select.setAttribute("aria-label", `Method of table ${index + 1}`);
  select.append(...hello.methods.map((m) => new Option(m.title, m.name, false, m.name === name)));
  select.onchange = () => {
    send({ do: "select_methods", methods: state.panels.map((old, i) => (i === index ? select.value : old)) });
    select.blur();
  };
  return select;
}

const phaseTexts = () => ({
  ready: `bring the pointer to the ${hello.texts.agent}`,
  recording: "recording",
  paused: `paused: return to the ${hello.texts.agent} to continue`,
  done: "solved: keep or discard the episode",
});

function showPanel(panel) {
  const { data } = panel, score = panel.element.querySelector(".score"), progress = Math.round(100 * data.progress);
  score.dataset.solved = data.solved;
  score.dataset.failed = data.failed;
  score.querySelector("b").textContent = `${progress} %`;
  score.querySelector("span").textContent = data.failed ? hello.texts.failed : data.solved ? describeSuccess(data) : hello.texts.progress;
  showStatus(panel, panel.element.querySelector(".sub"));
  if (data.camera) showCamera(panel.camera, data.camera);
  panel.canvas.setAttribute("aria-label", `Table ${panel.index + 1}: ${progress} percent ${hello.texts.progress}${data.solved ? ", solved" : data.failed ? `, ${hello.texts.failed}` : ""}`);
}

/** Return how long a success took, from the start or from the moment the block was let go. */
function describeSuccess({ solved_at, released_at }) {
  if (solved_at === null || solved_at === released_at) return "solved";
  return `${released_at === null ? "solved" : "recovered"} in ${((solved_at - released_at) / hello.hz).toFixed(1)} s`;
}

function showStatus({ data }, place) {
  if (hello.mode === "collect") {
    place.textContent = state.phase === "done" && !data.solved ? `${data.failed ? hello.texts.failed : "time limit reached"}: keep or discard the episode` : phaseTexts()[state.phase];
    return;
  }
  const facts = [], count = data.compared?.length;
  if (count !== undefined) facts.push(`<b data-on="${count > 0}">${count ? `comparing ${count} plans` : "one plan"}</b>`);
  const planning = data.thinking && !data.ended && !state.paused, timedOut = data.ended && !data.solved && !data.failed;
  if (timedOut) facts.push("time limit reached");
  else if (planning || !data.latency) facts.push(planning ? "planning…" : data.ended ? "episode over" : "no plan yet");
  else {
    const { ms, actions } = data.latency;
    facts.push(`${ms.toFixed(1)} ms to plan ${plural(actions, "action")}`);
    const sigma = data.fan && data.fan.sigma.reduce((sum, row) => sum + row[0], 0) / data.fan.sigma.length;
    if (sigma) facts.push(`σ ${(sigma * hello.unit[1]).toFixed(1)} ${hello.unit[0]}`);
  }
  place.innerHTML = facts.map((fact) => `<span>${fact}</span>`).join("");
}

/* ---- playback ---- */

/* Time on display, in control periods: moves smoothly and stays within one period behind the newest frame. */
const playhead = { at: 0, latest: 0, arrived: 0, last: performance.now() };

function onFrame(message) {
  if (!state || message.epoch !== state.epoch || message.panels.length !== panels.length) return;
  const before = frame;
  frame = message;
  const jump = !before || before.epoch !== frame.epoch || before.last > frame.last;
  frame.panels.forEach((data, i) => {
    const panel = panels[i], n = data.trail.length;
    if (jump) panel.samples = [];
    data.trail.forEach((pose, k) => panel.samples.push([frame.last - 1 + (k + 1) / n, pose]));
    panel.samples.splice(0, panel.samples.length - 60);
    panel.previous = jump ? data : panel.data ?? data;
    panel.data = data;
    panel.progress[frame.last] = data.progress;
    showPanel(panel);
  });
  updateSigmaScale();
  if (jump) playhead.at = frame.last;
  playhead.latest = frame.last;
  playhead.arrived = performance.now();
  stripChanged = true;
}

function movePlayhead(now) {
  const speed = state.controls?.speed ?? 1, period = 1000 / (hello.hz * speed);
  const target = playhead.latest - 1 + clamp((now - playhead.arrived) / period, 0, 1);
  playhead.at += (now - playhead.last) / period;
  playhead.at += (target - playhead.at) * 0.12;
  playhead.at = clamp(playhead.at, playhead.latest - 4, playhead.latest);
  playhead.last = now;
}

/** Return the frame of the scene at a time, interpolated between the steps of the physics. */
function poseAt(panel, at) {
  const { samples } = panel;
  if (!samples.length) return null;
  let k = samples.length - 1;
  while (k > 0 && samples[k][0] > at) k--;
  const [t0, a] = samples[k], [t1, b] = samples[Math.min(k + 1, samples.length - 1)];
  return scene.mixFrames(a, b, t1 > t0 ? clamp((at - t0) / (t1 - t0), 0, 1) : 0);
}

/* ---- drawing ---- */

const sizeObserver = new ResizeObserver(() => { if (hello && panels.length) resize(); });
function resize() {
  const ratio = pixelRatio();
  const boxes = panels.map((panel) => panel.canvas.parentElement.getBoundingClientRect());
  const side = Math.max(120, Math.floor(Math.min(...boxes.flatMap((box) => [box.width, box.height]))));
  for (const panel of panels) {
    panel.canvas.style.width = panel.canvas.style.height = `${side}px`;
    panel.canvas.width = panel.canvas.height = Math.round(side * ratio);
    panel.scale = panel.canvas.width / scene.side;
    panel.element.querySelector("header").style.maxWidth = `${side}px`;
    panel.background = null;
  }
  const strip = $("strip"), box = strip.getBoundingClientRect();
  strip.width = Math.round(box.width * ratio);
  strip.height = Math.round(box.height * ratio);
  stripChanged = true;
}

/** Draw what does not move, once per size and theme: walls, dots, and what the task adds. */
function makeBackground(panel) {
  const layer = document.createElement("canvas"), { side } = scene;
  layer.width = layer.height = panel.canvas.width;
  const context = layer.getContext("2d");
  context.scale(panel.scale, panel.scale);
  context.fillStyle = colours.wall;
  context.fillRect(0, 0, side, side);
  context.beginPath();
  context.roundRect(5, 5, side - 10, side - 10, 4);     // inside the walls, which are five pixels thick
  paintPath(context, { fill: colours.table });
  for (let x = 32; x < side; x += 32) {
    for (let y = 32; y < side; y += 32) scene.drawCircle(context, x, y, 0.9, { fill: colours.wall });
  }
  scene.drawStill(context, colours);
  return layer;
}

function drawPanel(panel) {
  const context = panel.ctx, pose = poseAt(panel, playhead.at);
  panel.background ??= makeBackground(panel);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.drawImage(panel.background, 0, 0);
  if (!pose) return;
  panel.pose = pose;
  context.setTransform(panel.scale, 0, 0, panel.scale, 0, 0);
  context.lineCap = "round";
  const held = drag && (drag.panel === panel || drag.what === "block") ? drag : null;
  const block = !scene.outline ? null : held?.what === "block" ? held.pose : pose.slice(2), agent = pose.slice(0, 2);
  const compared = panel.data.compared ?? [], fan = compared.length ? null : currentFan(panel);
  if (fan) drawHeat(context, panel, fan);
  if (fan) drawPredictedBlocks(context, fan.block);
  if (block) drawHeldBlock(context, block, panel, held);
  if (compared.length) drawCandidates(context, compared, colourOf(panel));
  else if (fan) drawPaths(context, fan, agent, block);
  else if (panel.data.plan?.length && !panel.data.solved) drawPlan(context, agent, panel.data.plan, colourOf(panel));
  drawTarget(context, agent, held?.what === "agent" ? [held.x, held.y] : panel.data.target, panel);
  drawAgent(context, agent, panel, held);
  if (panel.data.sensed) drawSensed(context, panel.data.sensed);
  if (block && !held && panel.data.solved && hello.mode === "play") drawHint(context, block, panel.canvas.clientWidth);
}

/** Draw where the sensor says that agent and block are. */
function drawSensed(context, [x, y, ...block]) {
  const style = { stroke: colours.warn, lineWidth: 1.4, dash: [4, 4] };
  scene.drawAgent(context, [x, y], style);
  if (block.length) scene.drawBlock(context, block, style);
}

/** Invite to drag a block that lies on its goal. */
function drawHint(context, block, width) {
  const [x, y] = centreOf(block), zoom = Math.max(1, 400 / width);       // readable on a small table too
  context.translate(x, y - 78);
  context.scale(zoom, zoom);
  context.beginPath();
  context.roundRect(-44, -40, 88, 30, 15);
  context.moveTo(-7, -10);
  context.lineTo(0, 0);
  context.lineTo(7, -10);
  paintPath(context, { fill: colours.ink });
  Object.assign(context, { font: `600 16px ${getComputedStyle(document.body).fontFamily}`, textAlign: "center", fillStyle: colours.bg });
  context.fillText("drag me", 0, -19.5);
}

function drawHeldBlock(context, pose, panel, held) {
  const lifted = held?.what === "block", [x, y, angle] = pose;
  scene.drawBlock(context, [x + 2, y + (lifted ? 8 : 3), angle], { fill: colours.shade(0.13) });
  scene.drawBlock(context, pose, { fill: colours.block, fillAlpha: 0.94, stroke: colours["block-edge"], lineWidth: lifted ? 2.6 : 1.8 });
  if (hello.mode === "play" && (panel.hover || lifted || coarsePointer.matches)) drawRotationHandle(context, handleOf(pose));
}

function drawRotationHandle(context, [x, y]) {
  const edge = colours["block-edge"];
  scene.drawCircle(context, x, y, 10, { fill: colours.card, stroke: edge, lineWidth: 1.6 });
  context.beginPath();
  context.arc(x, y, 5, 0.3, 4.9);
  paintPath(context, { stroke: edge, lineWidth: 1.6 });
  scene.drawLine(context, [[x + 5.6, y - 4.9], [x - 0.4, y - 8.2], [x - 0.4, y - 1.6]], { fill: edge });
}

/** Draw a cross at the commanded position. */
function drawTarget(context, agent, [x, y], panel) {
  if (Math.hypot(x - agent[0], y - agent[1]) <= 3 || panel.data.solved) return;
  context.beginPath();
  for (const [dx, dy] of [[6, 0], [0, 6]]) { context.moveTo(x - dx, y - dy); context.lineTo(x + dx, y + dy); }
  paintPath(context, { stroke: colours.table, lineWidth: 4.6 });
  paintPath(context, { stroke: colours.target, lineWidth: 2 });
}

function drawAgent(context, [x, y], panel, held) {
  scene.drawAgent(context, [x + 1, y + 2.5], { fill: colours.shade(0.16) });
  scene.drawAgent(context, [x, y], { radius: scene.radius - 1, fill: colourOf(panel), stroke: colours.table, lineWidth: 2 });
  if (held?.what === "agent" || (hello.mode === "collect" && state.phase === "recording")) {
    scene.drawAgent(context, [x, y], { radius: scene.radius + 6, stroke: colourOf(panel), strokeAlpha: 0.5, lineWidth: 2 });
  }
}

function draw(now) {
  requestAnimationFrame(draw);
  if (!hello || !state || !frame) return;
  movePlayhead(now);
  for (const panel of panels) drawPanel(panel);
  if (stripChanged) { stripChanged = false; drawStrip(); }
  viewer.drawn++;
}
