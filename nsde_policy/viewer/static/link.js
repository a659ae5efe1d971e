"use strict";
// A link to what a user has seen: the address after # carries the seed, the drags of the block, noise and delay.

const LINKED = { noise: "obs_noise", delay: "latency_steps" };       // controls by their name in a link

function shareLink() {
  const drags = state.drags.map((row) => row.join()).join(";");
  const changed = Object.entries(LINKED).filter(([, name]) => state.controls[name]).map(([word, name]) => `&${word}=${state.controls[name]}`);
  history.replaceState(null, "", `#seed=${state.seed}${drags && `&drag=${drags}`}${changed.join("")}`);
  const show = (done) => onNotice({ text: done ? "Link copied." : "The address of this page is now the link." });
  if (navigator.clipboard) navigator.clipboard.writeText(location.href).then(() => show(true), () => show(false));
  else show(false);                      // without HTTPS, only a page of this machine may write the clipboard
}

/** Start the episode of the link that this page was opened with. */
function followLink() {
  const link = new URLSearchParams(location.hash.slice(1)), text = link.get("seed"), seed = Number(text);
  if (hello?.mode !== "play" || text === null) return;
  const drags = (link.get("drag") ?? "").split(";").filter(Boolean).map((row) => row.split(",").map(Number));
  const valid = drags.every((row) => row.length === 4 && Number.isInteger(row[0]) && row.every((value) => Math.abs(value) <= 1e4));
  const controls = Object.entries(LINKED).map(([word, name]) => [name, Number(link.get(word) ?? 0)]);
  const known = controls.every(([name, value]) => value >= hello.ranges[name][0] && value <= hello.ranges[name][1]);
  if (/^\d+$/.test(text) && seed <= MAX_SEED && valid && known && drags.length <= 300) {
    for (const [name, value] of controls) send({ do: "set_control", name, value });
    send({ do: "reset", seed, drags });
  } else onNotice({ text: "This link is damaged: no episode was started." });
}
addEventListener("hashchange", followLink);
