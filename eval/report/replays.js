// Recorded episodes: unpacked run by run when they are first wanted; see replays.py.

const unpacked = new Map();

/** All frames of a run, one Int16Array per column; null where none were recorded. */
async function columnsOf(run) {
  if (!DATA.runs[run].lengths) return null;
  if (!unpacked.has(run)) unpacked.set(run, unpack(document.getElementById(`frames-${run}`).textContent));
  return unpacked.get(run);
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const all = new Int16Array(await new Response(stream).arrayBuffer());
  const length = all.length / DATA.scales.length;
  return DATA.scales.map((_, column) => {
    const values = all.subarray(column * length, (column + 1) * length);
    for (let i = 1; i < length; i++) values[i] += values[i - 1];
    return values;
  });
}

/** The frames of one episode, each [agent x, y, block x, y, angle, coverage]. */
async function episodeOf(run, start) {
  const columns = await columnsOf(run);
  if (!columns) return null;
  const { lengths } = DATA.runs[run];
  const first = lengths.slice(0, start).reduce((sum, n) => sum + n, 0);
  return Array.from({ length: lengths[start] }, (_, i) =>
    columns.map((values, column) => values[first + i] / DATA.scales[column]));
}

/** The frame at a moment between two recorded ones; after the end, the last one. */
function frameAt(frames, moment) {
  const i = Math.min(Math.floor(moment), frames.length - 1);
  const [now, next] = [frames[i], frames[Math.min(i + 1, frames.length - 1)]];
  const share = moment - i;
  if (share <= 0 || now === next) return now;
  const turn = Math.atan2(Math.sin(next[ANGLE] - now[ANGLE]), Math.cos(next[ANGLE] - now[ANGLE]));
  return now.map((value, k) => value + share * (k === ANGLE ? turn : next[k] - value));
}
