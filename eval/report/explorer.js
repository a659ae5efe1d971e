// The episode explorer: choose a seed, replay all runs in step.

const scene = new Scene(DATA);
const scenes = find(".scenes");
const picker = find(".seeds");
const state = { seed: 0, shown: [], episodes: [], time: 0, last: 1, playing: false, cursor: () => {} };
let palette = readPalette();

/** Read the page's colours, light or dark. */
function readPalette() {
  const rows = Array.from({ length: DATA.colours }, (_, i) => `s${i}`);
  return { ...readColours(scene.colours), rows: Object.values(readColours(rows)) };
}

const colourOf = (run) => palette.rows[run.row % DATA.colours];

// --- seeds ---------------------------------------------------------------------------------------

const judged = DATA.runs.every((run) => run.success);
for (const note of document.querySelectorAll(".outcomes")) note.hidden = !judged;
const succeeds = (run, k) => !judged || run.success[k];
const successes = DATA.seeds.map((_, k) => DATA.runs.reduce((sum, run) => sum + succeeds(run, k), 0));
const FILTERS = {
  "all seeds": () => true,
  ...(judged && {
    "outcomes differ": (k) => successes[k] > 0 && successes[k] < DATA.runs.length,
    "all fail": (k) => successes[k] === 0,
    "all succeed": (k) => successes[k] === DATA.runs.length,
  }),
};

function outcome(run, k) {
  if (!judged) return `${DATA.score} ${run.score[k].toPrecision(4)}, ${run.steps[k]} steps`;
  if (run.success[k]) return `✓ success after ${run.success_step[k]} steps`;
  if (DATA.threshold === null) return `✕ failure, ${DATA.score} ${run.score[k].toPrecision(4)}`;
  return `✕ failure, best ${(Math.floor(run.score[k] * DATA.threshold * 100) / 100).toFixed(2)}`;
}

function drawFilters() {
  const buttons = Object.entries(FILTERS).map(([name, matches]) => {
    const count = DATA.seeds.filter((_, k) => matches(k)).length;
    const button = make("button", { type: "button", "aria-pressed": "false" }, `${name} ${count}`);
    button.disabled = count === 0;
    button.addEventListener("click", () => filter(name));
    button.dataset.name = name;
    return button;
  });
  find("#explorer .filters").replaceChildren(...buttons);
  const key = DATA.runs.map((run) => make("li", {}, markOf(run.row), run.label));
  find("#explorer .key").replaceChildren(...key);
}

function filter(name) {
  for (const button of find("#explorer .filters").children)
    button.setAttribute("aria-pressed", String(button.dataset.name === name));
  state.shown = DATA.seeds.map((_, k) => k).filter((k) => FILTERS[name](k));
  picker.replaceChildren(...state.shown.map((k) => {
    const stripes = DATA.runs.map((run) => make("i", succeeds(run, k) ? {} : { class: "lost" }));
    const results = DATA.runs.map((run) => `${run.label}: ${outcome(run, k)}`).join("; ");
    const button = make("button", { type: "button", tabindex: "-1", "aria-label": `seed ${DATA.seeds[k]}; ${results}` }, ...stripes);
    button.title = `seed ${DATA.seeds[k]}\n${results.replaceAll("; ", "\n")}`;
    button.dataset.seed = k;
    return button;
  }));
  markSeed();
}

function markSeed() {
  for (const button of picker.children) {
    const chosen = Number(button.dataset.seed) === state.seed;
    button.setAttribute("aria-pressed", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
  if (!find('[tabindex="0"]', picker) && picker.firstChild) picker.firstChild.tabIndex = 0;
}

picker.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) choose(Number(button.dataset.seed), { play: true });
});
picker.addEventListener("keydown", (event) => {
  const buttons = [...picker.children];
  const at = buttons.indexOf(document.activeElement);
  const inRow = buttons.filter((button) => button.offsetTop === buttons[0].offsetTop).length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -inRow, ArrowDown: inRow }[event.key];
  if (at < 0 || !step) return;
  event.preventDefault();
  event.stopPropagation();
  buttons[Math.min(Math.max(at + step, 0), buttons.length - 1)].focus();
});

// --- playback ------------------------------------------------------------------------------------

async function choose(k, { play = false } = {}) {
  state.seed = k;
  find("#seed-title").textContent = `Seed ${DATA.seeds[k]}`;
  scenes.replaceChildren(...DATA.runs.map((run, i) => {
    const picture = run.lengths
      ? make("canvas", { role: "img", "aria-label": `${run.label}: ${outcome(run, k)}` })
      : make("div", { class: "absent" }, "no recording, only the outcome");
    const result = make("b", { class: judged ? (run.success[k] ? "good" : "bad") : "" }, outcome(run, k));
    const live = make("span", {}, result);
    return make("figure", { "data-run": i }, picture, make("figcaption", {}, markOf(run.row), run.label, live));
  }));
  markSeed();
  const episodes = await Promise.all(DATA.runs.map((_, i) => loadEpisode(i, k)));
  if (state.seed !== k) return;
  state.episodes = episodes;
  state.last = Math.max(1, ...episodes.map((frames) => (frames ? frames.length - 1 : 0)));
  find("#time").max = state.last;
  drawProgress();
  if (play && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
    state.time = 0;
    setPlaying(true);
  } else {
    state.time = state.last;
    setPlaying(false);
  }
  draw();
}

function drawProgress() {
  const lines = state.episodes.flatMap((frames, i) => frames
    ? [{ row: DATA.runs[i].row, points: frames.map((frame, t) => [t / DATA.hz, frame.at(-1)]) }] : []);
  const place = find("#progress");
  place.hidden = find(".controls").hidden = lines.length === 0;
  if (lines.length) state.cursor = chart(place, lines, { limit: DATA.threshold, unit: " s", height: 144 });
}

function draw() {
  state.episodes.forEach((frames, i) => {
    const canvas = scenes.children[i].firstChild;
    if (!frames) return;
    const side = canvas.clientWidth || 200;
    const context = fitCanvas(canvas, side, side);
    context.scale(side / scene.side, side / scene.side);
    const trail = frames.slice(0, Math.floor(state.time) + 1);
    const width = Math.max(1, 260 / side);
    const colour = colourOf(DATA.runs[i]);
    scene.drawFrame(context, frameAt(frames, state.time), { trail, start: frames[0], colour, palette, width });
  });
  find("#time").value = Math.round(state.time);
  find("#clock").textContent = `${(state.time / DATA.hz).toFixed(1)} s`;
  state.cursor(state.time / DATA.hz);
}

let lastTick = 0;
function tick(now) {
  if (!state.playing) return;
  const seconds = Math.min((now - lastTick) / 1000, 0.1);
  lastTick = now;
  state.time = Math.min(state.time + seconds * DATA.hz * Number(find("#speed").value), state.last);
  draw();
  if (state.time >= state.last) setPlaying(false);
  else requestAnimationFrame(tick);
}

function setPlaying(playing) {
  if (playing && state.time >= state.last) state.time = 0;
  const starting = playing && !state.playing;
  state.playing = playing;
  find("#play").textContent = playing ? "❚❚ Pause" : "▶ Play";
  if (starting) {
    lastTick = performance.now();
    requestAnimationFrame(tick);
  }
}

function moveTo(time) {
  setPlaying(false);
  state.time = Math.min(Math.max(time, 0), state.last);
  draw();
}

function neighbour(step) {
  const at = state.shown.indexOf(state.seed);
  const next = state.shown[(at + step + state.shown.length) % state.shown.length];
  if (next !== undefined) choose(next, { play: state.playing });
}

find("#play").addEventListener("click", () => setPlaying(!state.playing));
find("#time").addEventListener("input", (event) => moveTo(Number(event.target.value)));
find("#previous").addEventListener("click", () => neighbour(-1));
find("#next").addEventListener("click", () => neighbour(1));
document.addEventListener("keydown", (event) => {
  const focused = event.target.closest("button, input, select, a");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = { n: () => neighbour(1), p: () => neighbour(-1) };
  if (!focused) {
    actions[" "] = () => setPlaying(!state.playing);
    actions.ArrowLeft = () => moveTo(Math.ceil(state.time) - 1);
    actions.ArrowRight = () => moveTo(Math.floor(state.time) + 1);
  }
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// --- start ---------------------------------------------------------------------------------------

redraws.push(() => {
  palette = readPalette();
  if (state.episodes.length) { drawProgress(); draw(); }
});

drawFilters();
filter("all seeds");
const differing = DATA.seeds.findIndex((_, k) => FILTERS["outcomes differ"]?.(k));
choose(Math.max(differing, 0));
