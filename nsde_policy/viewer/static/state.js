"use strict";
// What the page knows. The server sends `hello` once, `state` after changes and `frame` about ten times a second.

const $ = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const mix = (a, b, share) => a + (b - a) * share;
const MAX_SEED = 2 ** 32 - 1;

let hello = null, state = null, frame = null;
let scene = null;                        // shapes of the table, from `hello`
let panels = [];                          // one for each table on the page
let drag = null;                         // {panel, what, ...} while the pointer holds something

window.viewer = {                        // for tests and for the browser's console
  drawn: 0,
  get state() { return state; },
  get frame() { return frame; },
  get panels() { return panels; },
};

const methodOf = (name) => hello.methods?.find((method) => method.name === name);
const percent = (share) => `${Math.round(100 * share)} %`;
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
