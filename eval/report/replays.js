// Recorded episodes, decompressed run by run when they are first needed; replays.py compresses them.

const decompressed = new Map();

/** Return all frames of a run, one Int16Array per column, or null if none were recorded. */
async function loadColumns(run) {
  if (!DATA.runs[run].lengths) return null;
  if (!decompressed.has(run)) decompressed.set(run, decompress(document.getElementById(`frames-${run}`).textContent));
  return decompressed.get(run);
}

async function decompress(text) {
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

/** Return the frames of one episode, each the numbers of an observation, then the progress. */
async function loadEpisode(run, number) {
  const columns = await loadColumns(run);
  if (!columns) return null;
  const { lengths } = DATA.runs[run];
  const first = lengths.slice(0, number).reduce((sum, n) => sum + n, 0);
  return Array.from({ length: lengths[number] }, (_, i) =>
    columns.map((values, column) => values[first + i] / DATA.scales[column]));
}

/** Return the frame at a time, interpolated between recorded ones; after the end, the last one. */
function frameAt(frames, time) {
  const i = Math.min(Math.floor(time), frames.length - 1);
  const next = frames[Math.min(i + 1, frames.length - 1)];
  return scene.mixFrames(frames[i], next, Math.min(time - i, 1));
}
