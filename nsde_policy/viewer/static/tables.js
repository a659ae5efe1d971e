"use strict";
// The tables ("lanes"): one per policy, with its canvas, its header and playback between two frames.

let colours = {};
function loadColours() {
  const names = ["bg", "card", "ink", "soft", "line", "table", "wall", "block", "block-edge", "goal", "agent", "target", "second", "shadow"];
  colours = readColours(names);
  const [cold, hot] = Object.values(readColours(["cold", "hot"])).map((text) => text.split(",").map(Number));
  colours.heat = Array.from({ length: HEAT_LEVELS }, (_, i) => cold.map((c, k) => Math.round(mix(c, hot[k], i / (HEAT_LEVELS - 1)))));
  colours.spots = colours.heat.map(makeSpot);
  colours.shade = (alpha) => `rgba(${colours.shadow}, ${alpha})`;
  for (const lane of lanes) lane.background = null;
  stripChanged = true;
}
const colourOf = (lane) => (lane.index ? colours.second : colours.agent);

/* ---- building ---- */

function buildLanes() {
  const box = $("lanes");
  box.dataset.count = state.lanes.length;
  $("compare").setAttribute("aria-pressed", state.lanes.length === 2);
  if (hello.mode === "play") $("together-row").hidden = state.lanes.length < 2;
  lanes = state.lanes.map((name, i) => {
    const old = box.children[i]?.lane;
    const lane = old?.name === name ? old : makeLane(name, i);
    return Object.assign(lane, { samples: [], coverage: new Map(), data: null, previous: null });
  });
  box.replaceChildren(...lanes.map((lane) => lane.element));
  frame = null;
  resize();
}

function makeLane(name, index) {
  const element = document.createElement("article");
  element.className = "lane";
  element.innerHTML = `<header><div><div class="pick"><i class="swatch"></i></div><div class="sub"></div></div>
    <div class="grow"></div><div class="score"><b>–</b><span>coverage</span></div></header>
    <div class="frame"><canvas role="img"></canvas></div>`;
  element.querySelector(".pick").append(makeTitle(name, index));
  const canvas = element.querySelector("canvas"), heat = document.createElement("canvas");
  heat.width = heat.height = 160;
  const lane = { name, index, element, canvas, heat, ctx: canvas.getContext("2d") };
  element.lane = lane;
  addPointerHandlers(lane);
  sizeObserver.observe(canvas.parentElement);
  return lane;
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
    send({ do: "choose", lanes: state.lanes.map((old, i) => (i === index ? select.value : old)) });
    select.blur();
  };
  return select;
}

const PHASE_TEXTS = {
  ready: "bring the pointer to the agent",
  recording: "recording",
  paused: "paused: return to the agent to continue",
  done: "solved: keep or discard the episode",
};

function showLane(lane) {
  const { data } = lane, score = lane.element.querySelector(".score"), percent = Math.round(100 * data.coverage);
  score.dataset.solved = data.solved;
  score.querySelector("b").textContent = `${percent} %`;
  score.querySelector("span").textContent = !data.solved ? "coverage" : data.solved_s == null ? "solved" : `solved in ${data.solved_s.toFixed(1)} s`;
  showStatus(lane, lane.element.querySelector(".sub"));
  lane.canvas.setAttribute("aria-label", `Table ${lane.index + 1}: ${percent} percent of the goal is covered${data.solved ? ", solved" : ""}`);
}

function showStatus({ data, name }, place) {
  if (hello.mode === "collect") {
    place.textContent = state.phase === "done" && !data.solved ? "time limit reached: keep or discard the episode" : PHASE_TEXTS[state.phase];
  } else if (data.thinking || !data.latency) {
    place.textContent = "planning…";
  } else {
    const { ms, actions, calls } = data.latency, facts = [`${ms.toFixed(1)} ms to plan ${plural(actions, "action")}`];
    const sigma = data.fan && data.fan.sigma.reduce((sum, row) => sum + row[0], 0) / data.fan.sigma.length;
    if (sigma) facts.push(`σ ${sigma.toFixed(1)} px`);
    place.innerHTML = facts.map((fact) => `<span>${fact}</span>`).join("<i> · </i>");
    const row = $("latency").querySelector(`[data-method="${CSS.escape(name)}"]`);
    if (row) { row.cells[1].textContent = calls; row.cells[2].textContent = ms.toFixed(1); }
  }
}

/* ---- playback ---- */

/* Time on display, in control periods: moves smoothly and stays within one period behind the newest frame. */
const playhead = { at: 0, latest: 0, arrived: 0, last: performance.now() };

function onFrame(message) {
  if (!state || message.epoch !== state.epoch || message.lanes.length !== lanes.length) return;
  const before = frame;
  frame = message;
  const jump = !before || before.epoch !== frame.epoch || frame.at !== frame.last || before.at > frame.at;
  frame.lanes.forEach((data, i) => {
    const lane = lanes[i], n = data.trail.length;
    if (jump) lane.samples = [];
    data.trail.forEach((pose, k) => lane.samples.push([frame.at - 1 + (k + 1) / n, pose]));
    lane.samples.splice(0, lane.samples.length - 60);
    lane.previous = jump ? data : lane.data ?? data;
    lane.data = data;
    if (frame.at === frame.last) lane.coverage.set(frame.last, data.coverage);
    for (const k of lane.coverage.keys()) if (k > frame.last || k < frame.first) lane.coverage.delete(k);
    showLane(lane);
  });
  updateSigmaScale();
  if (jump) playhead.at = frame.at;
  playhead.latest = frame.at;
  playhead.arrived = performance.now();
  if (hello.mode === "play" && frame.paused !== state.paused) { state.paused = frame.paused; showPaused(frame.paused); }
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

/** Return agent and block at a time, interpolated between the steps of the physics. */
function poseAt(lane, at) {
  const { samples } = lane;
  if (!samples.length) return null;
  let k = samples.length - 1;
  while (k > 0 && samples[k][0] > at) k--;
  const [t0, a] = samples[k], [t1, b] = samples[Math.min(k + 1, samples.length - 1)];
  return mixFrames(a, b, t1 > t0 ? clamp((at - t0) / (t1 - t0), 0, 1) : 0);
}

/* ---- drawing ---- */

const sizeObserver = new ResizeObserver(() => { if (hello && lanes.length) resize(); });
function resize() {
  const ratio = pixelRatio();
  const boxes = lanes.map((lane) => lane.canvas.parentElement.getBoundingClientRect());
  const side = Math.max(120, Math.floor(Math.min(...boxes.flatMap((box) => [box.width, box.height]))));
  for (const lane of lanes) {
    lane.canvas.style.width = lane.canvas.style.height = `${side}px`;
    lane.canvas.width = lane.canvas.height = Math.round(side * ratio);
    lane.scale = lane.canvas.width / scene.side;
    lane.element.querySelector("header").style.maxWidth = `${side}px`;
    lane.background = null;
  }
  const strip = $("strip"), box = strip.getBoundingClientRect();
  strip.width = Math.round(box.width * ratio);
  strip.height = Math.round(box.height * ratio);
  stripChanged = true;
}

/** Draw what does not move, once per size and theme: walls, dots, goal. */
function makeBackground(lane) {
  const layer = document.createElement("canvas"), { side } = scene;
  layer.width = layer.height = lane.canvas.width;
  const context = layer.getContext("2d");
  context.scale(lane.scale, lane.scale);
  context.fillStyle = colours.wall;
  context.fillRect(0, 0, side, side);
  context.beginPath();
  context.roundRect(5, 5, side - 10, side - 10, 4);     // inside the walls, which are five pixels thick
  paintPath(context, { fill: colours.table });
  for (let x = 32; x < side; x += 32) {
    for (let y = 32; y < side; y += 32) scene.drawCircle(context, x, y, 0.9, { fill: colours.wall });
  }
  scene.drawGoal(context, { fill: colours.goal, fillAlpha: 0.16, stroke: colours.goal, strokeAlpha: 0.9, lineWidth: 1.6, dash: [5, 4] });
  return layer;
}

function drawLane(lane) {
  const context = lane.ctx, pose = poseAt(lane, playhead.at);
  lane.background ??= makeBackground(lane);
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.drawImage(lane.background, 0, 0);
  if (!pose) return;
  lane.pose = pose;
  context.setTransform(lane.scale, 0, 0, lane.scale, 0, 0);
  context.lineCap = "round";
  const held = drag && (drag.lane === lane || (drag.what === "block" && state.controls?.together)) ? drag : null;
  const block = held?.what === "block" ? held.pose : pose.slice(2), agent = pose.slice(0, 2), fan = currentFan(lane);
  if (fan) drawHeat(context, lane, fan);
  if (fan) drawPredictedBlocks(context, fan.block);
  drawHeldBlock(context, block, lane, held);
  if (lane.data.field) drawDriftField(context, lane.data.field, agent);
  if (fan) drawPaths(context, fan, agent, block);
  else if (lane.data.plan?.length) drawPlan(context, agent, lane.data.plan, colourOf(lane));
  drawTarget(context, agent, held?.what === "agent" ? [held.x, held.y] : lane.data.target, lane);
  drawAgent(context, agent, lane, held);
}

function drawHeldBlock(context, pose, lane, held) {
  const lifted = held?.what === "block", [x, y, angle] = pose;
  scene.drawBlock(context, [x + 2, y + (lifted ? 8 : 3), angle], { fill: colours.shade(0.13) });
  scene.drawBlock(context, pose, { fill: colours.block, fillAlpha: 0.94, stroke: colours["block-edge"], lineWidth: lifted ? 2.6 : 1.8 });
  if (hello.mode === "play" && (lane.hover || lifted || coarsePointer.matches)) drawRotationHandle(context, handleOf(pose));
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
function drawTarget(context, agent, [x, y], lane) {
  if (Math.hypot(x - agent[0], y - agent[1]) <= 3 || lane.data.solved) return;
  context.beginPath();
  for (const [dx, dy] of [[6, 0], [0, 6]]) { context.moveTo(x - dx, y - dy); context.lineTo(x + dx, y + dy); }
  paintPath(context, { stroke: colours.table, lineWidth: 4.6 });
  paintPath(context, { stroke: colours.target, lineWidth: 2 });
}

function drawAgent(context, [x, y], lane, held) {
  scene.drawAgent(context, [x + 1, y + 2.5], { fill: colours.shade(0.16) });
  scene.drawAgent(context, [x, y], { radius: scene.radius - 1, fill: colourOf(lane), stroke: colours.table, lineWidth: 2 });
  if (held?.what === "agent" || (hello.mode === "collect" && state.phase === "recording")) {
    scene.drawAgent(context, [x, y], { radius: scene.radius + 6, stroke: colourOf(lane), strokeAlpha: 0.5, lineWidth: 2 });
  }
}

function draw(now) {
  requestAnimationFrame(draw);
  if (!hello || !state || !frame) return;
  movePlayhead(now);
  for (const lane of lanes) drawLane(lane);
  if (stripChanged) { stripChanged = false; drawStrip(); }
  viewer.drawn++;
}
