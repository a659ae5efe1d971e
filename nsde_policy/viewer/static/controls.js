"use strict";
// Everything around the tables: buttons, sliders, keys, legend, planning times, the recording card.

/* ---- mode, state and notices ---- */

function showMode() {
  const collecting = hello.mode === "collect";
  document.body.dataset.mode = hello.mode;
  document.title = `nsde-policy ${hello.mode}`;
  for (const element of document.querySelectorAll(".play-only")) element.toggleAttribute("hidden", collecting);
  for (const id of ["pause", "reset", "next", "compare"]) $(id).hidden = collecting;
  $("collect-card").hidden = $("collect-steps").hidden = !collecting;
  const { agent, goal, record, tagline } = hello.texts;
  PHASE_LABELS.recording = `recording at ${Math.round(hello.hz)} Hz`;
  $("tagline").textContent = collecting ? "Record demonstrations by hand." : tagline;
  $("legend-agent").textContent = collecting ? `${agent}: follows the pointer` : agent;
  $("legend-goal").textContent = goal;
  $("sigma-unit").textContent = hello.unit[0];
  for (const place of document.querySelectorAll(".agent-name")) place.textContent = agent;
  if (collecting) {
    $("collect-goal").textContent = record;
    $("strip").removeAttribute("tabindex");
  } else buildSliders();
}

function showState() {
  if (document.activeElement !== $("seed")) $("seed").value = state.seed;
  if (hello.mode === "play") showControls(); else showStore();
  showPaused();
  showPhase();
  showLegend();
}

const PHASE_LABELS = { ready: "ready", recording: "recording", paused: "paused", done: "episode over" };
function showPhase() {
  const live = $("live"), connected = live.dataset.on === "true";
  const phase = connected && hello?.mode === "collect" ? state?.phase ?? "ready" : "";
  live.dataset.phase = phase;
  live.textContent = connected ? PHASE_LABELS[phase] ?? "live" : "offline";
}

let noticeTimer = 0;
function onNotice({ text }) {
  $("notice").textContent = text;
  $("notice").hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { $("notice").hidden = true; }, 5000);
}

const legendCard = $("legend-card"), wideScreen = matchMedia("(min-width: 760px) and (min-height: 640px) and (min-aspect-ratio: 3/2)");
const roomBelow = matchMedia("(min-width: 900px) and (min-height: 640px) and (min-aspect-ratio: 1/1)");
const tallScreen = matchMedia("(min-height: 760px)");             // camera and legend both fit beside the table
/** Show the legend of what is drawn, and the cameras; beside the only table or below two if there is room. */
function showLegend() {
  const sde = state.panels.map((name) => !!methodOf(name)?.sde), play = hello.mode === "play";
  const shown = {
    two: panels.length === 2, selects: state.panels.some((name) => methodOf(name)?.selects), play, sde: play && sde.includes(true) && state.controls.paths > 0,
    block: play && scene.outline && state.controls.paths > 0 && state.panels.some((name) => methodOf(name)?.sde && !methodOf(name).camera),
    camera: state.panels.some((name) => methodOf(name)?.camera), sensed: play && state.controls.obs_noise > 0,
    plan: play && (sde.includes(false) || !state.controls.paths),
  };
  for (const row of legendCard.querySelectorAll("[data-for]")) row.hidden = !shown[row.dataset.for];
  const beside = panels.length === 1 && wideScreen.matches ? panels[0].element.querySelector("header") : null;
  placeCameras(beside);
  const below = panels.length === 2 && roomBelow.matches ? $("simulation") : null;
  const parent = beside && (tallScreen.matches || !shown.camera) ? beside : below ?? $("controls");
  if (legendCard.parentElement !== parent) parent.append(legendCard);
}
for (const query of [wideScreen, roomBelow, tallScreen]) query.addEventListener("change", () => { if (state && panels.length) showLegend(); });

function showPaused() {
  const { paused } = state;
  $("pause-icon").setAttribute("d", paused ? "M7 4.500l13 7.500-13 7.500z" : "M6 5h4v14H6zM14 5h4v14h-4z");
  $("pause-text").textContent = paused ? "Play" : "Pause";
  $("pause").setAttribute("aria-label", paused ? "Play" : "Pause");
}

function showStore() {
  $("store").textContent = state.store;
  $("kept").textContent = state.kept;
  $("kept-text").textContent = `${state.kept === 1 ? "episode" : "episodes"} kept, ${state.solved} solved`;
  $("undo").disabled = !state.kept;
  $("keep").disabled = $("discard").disabled = state.phase === "ready";
}

/* ---- sliders ---- */

const SLIDERS = {                        // name, title, text of a value, what a method must have for it
  disturbance: [
    ["obs_noise", "Sensor noise", (v) => (v ? `× ${v}` : "off")],
    ["latency_steps", "Plan delay", (v) => (v ? plural(v, "period") : "off")],
  ],
  policy: [
    ["alpha", "Denoiser strength α", (v) => v.toFixed(2), "denoiser"],
    ["diffusion", "Diffusion strength", (v) => `× ${v.toFixed(2)}`, "sde"],
    ["chunk", "Chunk length", (v) => plural(v, "action")],
  ],
  view: [
    ["paths", "Sampled paths", (v) => `${v}`, "sde"],
    ["speed", "Speed", (v) => `× ${v}`],
  ],
};

function buildSliders() {
  for (const [group, sliders] of Object.entries(SLIDERS)) {
    $(`sliders-${group}`).replaceChildren(...sliders.map(([name, title, format]) => {
      const [low, high, step] = hello.ranges[name], label = document.createElement("label");
      label.className = "slider";
      label.htmlFor = name;
      label.innerHTML = `<span>${title}</span><output></output><input type="range" id="${name}" min="${low}" max="${high}" step="${step}">`;
      const input = label.querySelector("input");
      input.addEventListener("input", () => {
        showSlider(input, format);
        send({ do: "set_control", name, value: Number(input.value) });
      });
      return label;
    }));
  }
}

function showSlider(input, format) {
  input.parentElement.querySelector("output").textContent = format(Number(input.value));
  input.style.setProperty("--at", `${100 * (input.value - input.min) / (input.max - input.min)}%`);
}

function showControls() {
  const shown = state.panels.map(methodOf);
  for (const [name, , format, needed] of Object.values(SLIDERS).flat()) {
    const input = $(name);
    if (document.activeElement !== input || !input.matches(":active")) input.value = state.controls[name];
    input.disabled = !!needed && !shown.some((method) => method?.[needed]);
    input.parentElement.dataset.dim = input.disabled;
    showSlider(input, format);
  }
}

/* ---- actions of buttons and keys ---- */

/** Return whether a recording is neither kept nor discarded yet, and say so. */
function refuseWhileRecording() {
  if (hello.mode !== "collect" || state.phase === "ready") return false;
  onNotice({ text: "Keep or discard the recording first." });
  return true;
}

const actions = {
  pause: () => send({ do: "pause", on: !state.paused }),
  reset: () => send({ do: "reset", seed: state.seed }),
  next: () => send({ do: "reset", seed: (state.seed + 1) % (MAX_SEED + 1) }),
  compare: () => {
    const [first, second] = state.panels, other = hello.methods.find((m) => m.name !== first) ?? hello.methods[0];
    send({ do: "select_methods", methods: second ? [first] : [first, other.name] });
  },
  keep: () => send({ do: "keep_episode" }),
  discard: () => send({ do: "discard" }),
  undo: () => { if (!refuseWhileRecording()) send({ do: "undo" }); },
};
for (const button of document.querySelectorAll("[data-action]")) {
  button.addEventListener("click", () => { if (state) actions[button.dataset.action](); });
}

$("seed").addEventListener("change", () => {
  if (!state) return;
  const text = $("seed").value.trim(), seed = Number(text), valid = /^\d+$/.test(text) && seed <= MAX_SEED;
  if (!valid) onNotice({ text: `A seed is a whole number from 0 to ${MAX_SEED}.` });
  if (!valid || refuseWhileRecording()) { $("seed").value = state.seed; return; }
  $("seed").value = seed;
  send({ do: "reset", seed });
});
$("seed").addEventListener("keydown", (event) => {
  if (event.key === "Escape") $("seed").value = state?.seed ?? "";
  if (event.key === "Escape" || event.key === "Enter") $("seed").blur();     // Space pauses again
});

/* A button clicked with the pointer loses the focus, or Space would click it again instead of pausing. */
let usesPointer = false;
addEventListener("pointerdown", () => { usesPointer = true; }, true);
addEventListener("keydown", () => { usesPointer = false; }, true);
addEventListener("click", ({ target }) => {
  const clicked = target.closest?.("button");
  if (usesPointer && clicked) clicked.blur();
});

const KEYS = {                           // the titles of the buttons name them
  play: { " ": "pause", r: "reset", n: "next", s: "compare" },
  collect: { Enter: "keep", Backspace: "discard", u: "undo" },
};

addEventListener("keydown", (event) => {
  if (!hello || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches?.("#seed, select")) return;
  const name = KEYS[hello.mode][event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!state || !name) return;
  if (event.target.matches?.("button") && (event.key === " " || event.key === "Enter")) return;
  event.preventDefault();
  if (!event.repeat) actions[name]();
});
