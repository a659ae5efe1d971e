"use strict";
// Episodes of a data set: curves, cameras, and a command that leaves out what is marked.

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const MOST_CURVES = 60; // more cannot be told apart
let overview = null, wanted = 0, episode = 0, numbers = null, frame = 0, timer = 0, busy = false;
const dropped = new Set(), cuts = new Map();

function address(path, query = {}) {
  return `${path}?${new URLSearchParams(token ? { ...query, token } : query)}`;
}

async function load(path, query) {
  const answer = await fetch(address(path, query));
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

function colour(index, count) {
  const dark = document.documentElement.dataset.theme === "dark";
  return `hsl(${Math.round((360 * index) / Math.max(count, 1) + 205) % 360} 65% ${dark ? 62 : 42}%)`;
}

function scale(columns) { // each column to its own range, so that small ones can be seen
  return columns.slice(0, MOST_CURVES).map((values) => {
    const low = Math.min(...values), range = Math.max(...values) - low;
    return values.map((value) => (range ? (value - low) / range : 0.5));
  });
}

function drawCurves(name) {
  const canvas = $(name), ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement), last = numbers.length - 1;
  const x = (at) => 4 + ((width - 8) * at) / last, [first, end] = cuts.get(episode) || [0, last + 1];
  pen.fillStyle = style.getPropertyValue("--press");
  if (first > 0) pen.fillRect(0, 0, x(first), height);
  if (end <= last) pen.fillRect(x(end - 1), 0, width, height);
  numbers[name].forEach((values, index, all) => {
    pen.strokeStyle = colour(index, all.length);
    pen.lineWidth = 1.3;
    pen.beginPath();
    values.forEach((value, at) => pen.lineTo(x(at), height - 6 - (height - 12) * value));
    pen.stroke();
  });
  pen.strokeStyle = style.getPropertyValue("--ink");
  pen.lineWidth = 1;
  pen.strokeRect(x(frame), 0, 0, height);
}

function drawLegend(name, labels, values) {
  $(`${name}-legend`).replaceChildren(...values.slice(0, MOST_CURVES).map((column, index) => {
    const item = document.createElement("span"), mark = document.createElement("i");
    mark.style.background = colour(index, Math.min(values.length, MOST_CURVES));
    item.append(mark, `${labels[index] ?? index} ${column[frame].toPrecision(4)}`);
    return item;
  }));
}

async function drawCameras() {
  if (busy) return; // the newest frame is drawn when this one is there
  busy = true;
  const at = frame, from = episode;
  try {
    await Promise.all(overview.cameras.map(async (camera, index) => {
      const answer = await load("/frame", { camera, episode: from, frame: at });
      const picture = await createImageBitmap(await answer.blob()), canvas = $("cameras").children[index].firstChild;
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
  for (const [name, labels] of [["obs", overview.observations], ["act", overview.actions]]) {
    drawCurves(name);
    drawLegend(name, labels, numbers.raw[name]);
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
  const raw = await (await load("/episode", { episode: chosen })).json();
  if (chosen !== wanted) return; // another episode was chosen meanwhile
  episode = chosen;
  numbers = { raw, obs: scale(raw.obs), act: scale(raw.act), length: overview.lengths[episode] };
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
  theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  copy: () => navigator.clipboard.writeText($("command").textContent),
};
const keys = { " ": "play", "[": "start", "]": "stop", d: "drop", t: "theme" };

function listen() {
  for (const [id, act] of Object.entries(actions)) $(id).addEventListener("click", act);
  $("frame").addEventListener("input", (event) => seek(+event.target.value));
  addEventListener("keydown", (event) => {
    if (event.target.tagName === "BUTTON" && event.key === " ") return;
    if (event.key === "ArrowUp" || event.key === "ArrowDown") open(wanted + (event.key === "ArrowUp" ? -1 : 1));
    else if (event.target.tagName !== "INPUT" && event.key.startsWith("Arrow")) seek(frame + (event.key === "ArrowLeft" ? -1 : 1));
    else if (keys[event.key]) actions[keys[event.key]]();
    else return;
    event.preventDefault();
  });
  for (const name of ["obs", "act"]) {
    const point = (event) => event.buttons && seek(((event.offsetX - 4) / ($(name).clientWidth - 8)) * (numbers.length - 1));
    $(name).addEventListener("pointerdown", point);
    $(name).addEventListener("pointermove", point);
  }
  addEventListener("resize", draw);
  addEventListener("themechange", draw);
}

async function begin() {
  overview = await (await load("/overview")).json();
  const total = overview.lengths.reduce((sum, length) => sum + length, 0), flagged = overview.flags.filter((each) => each.length).length;
  $("source").textContent = `${overview.source} · ${overview.lengths.length} episodes, ${total} frames${flagged ? `, ${flagged} flagged` : ""}`;
  $("list").replaceChildren(...overview.lengths.map((length, k) => {
    const item = document.createElement("button"), name = document.createElement("b"), size = document.createElement("span");
    name.textContent = `Episode ${k}`;
    size.textContent = overview.rate ? `${(length / overview.rate).toFixed(1)} s` : `${length} frames`;
    item.append(name, size, ...overview.flags[k].map((text) => Object.assign(document.createElement("small"), { textContent: text })));
    item.addEventListener("click", () => open(k));
    return item;
  }));
  $("cameras").replaceChildren(...overview.cameras.map((camera) => {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    caption.textContent = camera;
    figure.append(document.createElement("canvas"), caption);
    return figure;
  }));
  listen();
  await open(0);
}

begin().catch((error) => { $("flags").textContent = error.message; });
