"use strict";
// Episodes of a data set: curves, cameras, plans of a policy, and a command that leaves out what is marked.

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const MOST_CURVES = 60; // of one chart; more cannot be told apart
const LEFT = 58, RIGHT = 16, TOP = 8, BOTTOM = 22; // pixels around the curves, for the axes
let overview = null, wanted = 0, episode = 0, numbers = null, frame = 0, timer = 0, busy = false;
let charts = []; // one for each group of columns
const dropped = new Set(), cuts = new Map();
const recorded = JSON.parse($("recorded")?.textContent || "null"); // what a report holds, which has no server

function address(path, query = {}) {
  return `${path}?${new URLSearchParams(token ? { ...query, token } : query)}`;
}

async function load(path, query) {
  const answer = await fetch(address(path, query));
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

async function readNumbers(path, query = {}) {
  if (!recorded) return (await load(path, query)).json();
  return path === "/overview" ? recorded.overview : recorded.episodes[query.episode];
}

async function readFrame(camera, from, at) {
  if (!recorded) return (await load("/frame", { camera, episode: from, frame: at })).blob();
  const { stride, jpeg } = recorded.episodes[from].frames[camera];
  const bytes = Uint8Array.from(atob(jpeg[Math.floor(at / stride)]), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: "image/jpeg" });
}

const darkScheme = matchMedia("(prefers-color-scheme: dark)");
function colour(index, count) {
  return `hsl(${Math.round((360 * index) / Math.max(count, 1) + 205) % 360} 65% ${darkScheme.matches ? 62 : 42}%)`;
}

/** Make the chart of a group of columns, which share a scale, with its legend. */
function makeChart({ name, unit, columns }) {
  const chart = { name, unit, columns: columns.slice(0, MOST_CURVES), alone: null }; // the only column that is drawn
  const group = document.createElement("div"), plot = document.createElement("div");
  chart.legend = Object.assign(document.createElement("div"), { className: "legend" });
  chart.canvas = Object.assign(document.createElement("canvas"), { className: "curves" });
  plot.className = "plot";
  plot.append(chart.canvas);
  group.append(chart.legend, plot);
  $(name).append(group);
  const seekTo = ({ buttons, offsetX }) => buttons && seek(((offsetX - LEFT) / (chart.canvas.clientWidth - LEFT - RIGHT)) * (numbers.length - 1));
  chart.canvas.addEventListener("pointerdown", seekTo);
  chart.canvas.addEventListener("pointermove", seekTo);
  new ResizeObserver(() => { if (numbers) drawChart(chart); }).observe(plot);
  return chart;
}

const shownColumns = ({ columns, alone }) => (alone === null ? columns : [alone]);
const colourOf = ({ columns }, column) => colour(columns.indexOf(column), columns.length);

/** Return the smallest and the largest value of some columns, with a margin. */
function findRange(columns) {
  let low = Infinity, high = -Infinity;
  for (const values of columns) for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  const margin = 0.05 * (high - low) || Math.abs(0.05 * low) || 1;
  return [low - margin, high + margin];
}

/** Draw the grid, values on the left and time below: in seconds, or in frames without a rate. */
function drawAxes(pen, [low, high], x, y, { unit, width, height, style }) {
  const rate = overview.rate || 1, last = (numbers.length - 1) / rate;
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.strokeStyle = style.getPropertyValue("--line");
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const values = ticks(low, high, Math.max(5, (height - TOP - BOTTOM) / 40)), texts = labels(values);
  pen.beginPath();
  values.forEach((value, k) => {
    pen.moveTo(LEFT, Math.round(y(value)) + 0.5);
    pen.lineTo(width - RIGHT, Math.round(y(value)) + 0.5);
    pen.fillText(texts[k] + (unit && k === values.length - 1 ? ` ${unit}` : ""), LEFT - 7, y(value));
  });
  pen.stroke();
  const times = ticks(0, last, Math.max(2, (width - LEFT - RIGHT) / 90)), names = labels(times);
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  times.forEach((time, k) => {
    const text = names[k] + (k < times.length - 1 ? "" : overview.rate ? " s" : " frames");
    pen.fillText(text, Math.min(x(time * rate), width - pen.measureText(text).width / 2), height - 6);
  });
}

function drawPlan(pen, chart, x, y) { // the newest plan: a thick curve, with a band of two σ
  const { stride, actions, std } = numbers.plans, k = Math.floor(frame / stride);
  for (const column of shownColumns(chart)) {
    const values = actions[k][column], steps = [...values.keys()];
    const trace = (at, shift) => pen.lineTo(x(k * stride + at), y(values[at] + (std ? shift * std[k][column][at] : 0)));
    pen.fillStyle = pen.strokeStyle = colourOf(chart, column);
    pen.globalAlpha = 0.2;
    pen.beginPath();
    steps.forEach((at) => trace(at, 2));
    steps.reverse().forEach((at) => trace(at, -2));
    pen.fill();
    pen.globalAlpha = 1;
    pen.lineWidth = 3;
    pen.beginPath();
    steps.forEach((at) => trace(at, 0));
    pen.stroke();
  }
  $("planned").textContent = `thick: planned from frame ${k * stride}${std ? ", with a band of ± 2 σ" : ""}; thin: recorded`;
}

function drawChart(chart) {
  const { canvas, name, unit } = chart, ratio = pixelRatio(), values = numbers[name];
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement), last = numbers.length - 1;
  const plans = (name === "act" && numbers.plans?.actions) || [];
  const [low, high] = findRange(shownColumns(chart).flatMap((column) => [values, ...plans].map((each) => each[column])));
  const x = (at) => LEFT + ((width - LEFT - RIGHT) * at) / last, [first, end] = cuts.get(episode) || [0, last + 1];
  const y = (value) => height - BOTTOM - ((height - TOP - BOTTOM) * (value - low)) / (high - low);
  pen.fillStyle = style.getPropertyValue("--press");
  if (first > 0) pen.fillRect(LEFT, TOP, x(first) - LEFT, height - TOP - BOTTOM);
  if (end <= last) pen.fillRect(x(end - 1), TOP, x(last) - x(end - 1), height - TOP - BOTTOM);
  drawAxes(pen, [low, high], x, y, { unit, width, height, style });
  pen.save();
  pen.rect(LEFT, TOP, width - LEFT - RIGHT, height - TOP - BOTTOM);
  pen.clip(); // the band of a plan may be wider
  pen.lineWidth = 1.3;
  for (const column of shownColumns(chart)) {
    pen.strokeStyle = colourOf(chart, column);
    pen.beginPath();
    values[column].forEach((value, at) => pen.lineTo(x(at), y(value)));
    pen.stroke();
  }
  if (plans.length) drawPlan(pen, chart, x, y);
  pen.restore();
  pen.strokeStyle = style.getPropertyValue("--ink");
  pen.lineWidth = 1;
  pen.strokeRect(x(frame), TOP, 0, height - TOP - BOTTOM);
}

function drawLegend(chart) {
  const columnNames = chart.name === "obs" ? overview.observations : overview.actions;
  chart.legend.replaceChildren(...chart.columns.map((column) => {
    const [item, mark, name, value] = ["button", "i", "span", "span"].map((tag) => document.createElement(tag));
    mark.style.background = colourOf(chart, column);
    name.textContent = columnNames[column] ?? column;
    item.title = `${name.textContent}: show this column alone, or all`;
    value.className = "value";
    value.textContent = numbers[chart.name][column][frame].toPrecision(4);
    item.append(mark, name, " ", value);
    item.setAttribute("aria-pressed", shownColumns(chart).includes(column));
    item.addEventListener("click", () => { chart.alone = chart.alone === column ? null : column; draw(); });
    return item;
  }));
}

async function drawCameras() {
  if (busy) return; // the newest frame is drawn when this one is there
  busy = true;
  const at = frame, from = episode;
  try {
    await Promise.all(overview.cameras.map(async (camera, index) => {
      const picture = await createImageBitmap(await readFrame(camera, from, at)), canvas = $("cameras").children[index].firstChild;
      canvas.width = picture.width; canvas.height = picture.height;
      canvas.getContext("2d").drawImage(picture, 0, 0);
    }));
  } catch (error) {
    $("flags").textContent = error.message;
  }
  busy = false;
  if (at !== frame || from !== episode) drawCameras();
}

function draw() {
  if (!numbers) return;
  for (const chart of charts) {
    drawLegend(chart);
    drawChart(chart);
  }
  const seconds = overview.rate ? ` · ${(frame / overview.rate).toFixed(2)} s` : "";
  $("clock").textContent = `${frame} of ${numbers.length - 1}${seconds}`;
  $("frame").value = frame;
  $("frame").style.setProperty("--at", `${(100 * frame) / (numbers.length - 1)}%`);
  drawCameras();
}

function seek(at) {
  frame = Math.max(0, Math.min(numbers.length - 1, Math.round(at)));
  draw();
}

function play(on) {
  clearInterval(timer);
  timer = on ? setInterval(() => (frame < numbers.length - 1 ? seek(frame + 1) : play(false)), 1000 / (overview.rate || 10)) : 0;
  $("play").textContent = on ? "Pause" : "Play";
}

function showEdits() {
  const trims = [...cuts].filter(([k]) => !dropped.has(k)).sort((a, b) => a[0] - b[0]).map(([k, [a, b]]) => `${k}:${a}:${b}`);
  const drops = [...dropped].sort((a, b) => a - b);
  $("edit").hidden = !trims.length && !drops.length;
  const quote = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  $("command").textContent = [`nsde-policy data edit ${quote(overview.source)} edited.zarr${overview.flags_of_edit}`, ...(drops.length ? ["--drop", ...drops] : []), ...(trims.length ? ["--trim", ...trims] : [])].join(" ");
  $("drop").setAttribute("aria-pressed", dropped.has(episode));
  [...$("list").children].forEach((item, k) => { item.dataset.dropped = dropped.has(k); });
}

function cut(from, to) {
  const length = numbers.length;
  if (to - from < 2) return;
  if (from === 0 && to === length) cuts.delete(episode);
  else cuts.set(episode, [from, to]);
  showEdits();
  draw();
}

async function open(k) {
  play(false);
  const chosen = wanted = Math.max(0, Math.min(overview.lengths.length - 1, k));
  const columns = await readNumbers("/episode", { episode: chosen });
  if (chosen !== wanted) return; // another episode was chosen meanwhile
  episode = chosen;
  numbers = { ...columns, length: overview.lengths[episode] };
  frame = 0;
  $("frame").max = numbers.length - 1;
  $("flags").textContent = overview.flags[episode].join(" · ");
  [...$("list").children].forEach((item, at) => item.setAttribute("aria-current", at === episode));
  $("list").children[episode].scrollIntoView({ block: "nearest", inline: "nearest" });
  showEdits();
  draw();
}

const actions = {
  play: () => play(!timer),
  start: () => cut(frame, (cuts.get(episode) || [0, numbers.length])[1]),
  stop: () => cut((cuts.get(episode) || [0])[0], frame + 1),
  drop: () => { dropped.has(episode) ? dropped.delete(episode) : dropped.add(episode); showEdits(); },
  copy: () => navigator.clipboard.writeText($("command").textContent),
};
const keys = { " ": "play", "[": "start", "]": "stop", d: "drop" };

function listen() {
  for (const [id, act] of Object.entries(actions)) $(id).addEventListener("click", act);
  $("frame").addEventListener("input", (event) => seek(+event.target.value));
  addEventListener("keydown", (event) => {
    if (event.target.tagName === "BUTTON" && event.key === " ") return;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") open(wanted + (event.key === "ArrowUp" ? -1 : 1));
    else if (event.target.tagName !== "INPUT" && event.key.startsWith("Arrow")) seek(frame + (event.key === "ArrowLeft" ? -1 : 1));
    else if (keys[event.key] && !$(keys[event.key]).hidden) actions[keys[event.key]]();
    else return;
    event.preventDefault();
  });
  darkScheme.addEventListener("change", draw);
}

async function begin() {
  overview = await readNumbers("/overview");
  if (recorded) $("title").textContent = document.title = recorded.title;
  const lines = overview.verdict.map((text) => Object.assign(document.createElement("p"), { textContent: text }));
  $("verdict").replaceChildren(...lines);
  $("verdict").hidden = !lines.length;
  document.querySelector(".episode").toggleAttribute("data-planned", overview.flags_of_edit === null);
  for (const id of ["start", "stop", "drop"]) $(id).hidden = overview.flags_of_edit === null;
  const total = overview.lengths.reduce((sum, length) => sum + length, 0), flagged = overview.flags.filter((each) => each.length).length;
  $("source").textContent = `${overview.source} · ${overview.lengths.length} episodes, ${total} frames${flagged ? `, ${flagged} flagged` : ""}`;
  $("list").replaceChildren(...overview.lengths.map((length, k) => {
    const item = document.createElement("button"), name = document.createElement("b"), size = document.createElement("span");
    name.textContent = `Episode ${overview.numbers[k]}`;
    const note = overview.notes[k] && Object.assign(document.createElement("small"), { textContent: overview.notes[k], className: "note" });
    size.textContent = overview.rate ? `${(length / overview.rate).toFixed(1)} s` : `${length} frames`;
    item.append(name, size, ...(note ? [note] : []), ...overview.flags[k].map((text) => Object.assign(document.createElement("small"), { textContent: text })));
    item.addEventListener("click", () => open(k));
    return item;
  }));
  $("cameras").replaceChildren(...overview.cameras.map((camera) => {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    caption.textContent = camera;
    figure.append(document.createElement("canvas"), caption);
    return figure;
  }));
  charts = overview.groups.map(makeChart);
  listen();
  await open(0);
}

begin().catch((error) => { $("flags").textContent = error.message; });
